"""Check that users can teach the tracer operators, and what it says of those it does not know."""

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import evenstep as es
from evenstep.graph import path_moments
from evenstep.graph.operators import Activation, Maximum, Norm, Operator, RMSNorm, Scale
from evenstep.module.ops import Call, Outcome, edge_from, handler_of, known_ops, op_name, registry

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore::evenstep.PlanWarning")  # factors far from what anyone would train


@torch.library.custom_op("evenstep_tests::ramp", mutates_args=())
def ramp(x: Tensor) -> Tensor:
    return torch.clamp(x, min=0.0)


@ramp.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("evenstep_tests::scaled", mutates_args=())
def scaled(x: Tensor, weight: Tensor) -> Tensor:
    return x * weight


@scaled.register_fake
def _(x: Tensor, weight: Tensor) -> Tensor:
    return torch.empty_like(x)


RAMP = torch.ops.evenstep_tests.ramp


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = ramp(self.linear(x))
        return out


class Custom(nn.Module):
    """stem -> relu -> inner.linear -> ramp -> middle -> relu -> head, beside a plain branch."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(8, 8)
        self.inner = Inner()
        self.middle = nn.Linear(8, 8)
        self.branch = nn.Linear(8, 8)
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        y = torch.relu(self.middle(self.inner(x)))
        logits: Tensor = self.head(torch.relu(self.branch(x)) + y)
        return logits


X = torch.zeros(2, 8)


@pytest.fixture(autouse=True)
def _restored_table() -> Iterator[None]:
    """Put the table of handlers back as it was, whatever a test registers."""
    before = dict(registry._HANDLERS)
    yield
    registry._HANDLERS.clear()
    registry._HANDLERS.update(before)


def twin() -> nn.Module:
    """The same network with torch's own rectifier."""

    class Plain(Custom):
        def forward(self, x: Tensor) -> Tensor:
            x = torch.relu(self.stem(x))
            y = torch.relu(self.middle(torch.relu(self.inner.linear(x))))
            logits: Tensor = self.head(torch.relu(self.branch(x)) + y)
            return logits

    return Plain()


@pytest.mark.parametrize(
    "target", ["evenstep_tests.ramp", "evenstep_tests::ramp", "evenstep_tests.ramp.default", RAMP, RAMP.default]
)
def test_a_registered_operator_is_read_like_its_twin(target: object) -> None:
    es.register_op(target, es.ops.activation("relu"))
    ours, theirs = es.plan(Custom(), X), es.plan(twin(), X)
    assert path_moments(ours.graph) == path_moments(theirs.graph)
    assert ours.lr_scale == pytest.approx(theirs.lr_scale)
    for p in ours.parameters:
        assert (p.std, p.lr_scale) == pytest.approx((theirs[p.name].std, theirs[p.name].lr_scale))


def test_an_overload_goes_before_all_overloads() -> None:
    es.register_op("evenstep_tests.ramp", es.ops.identity)
    es.register_op("evenstep_tests.ramp.default", es.ops.activation("relu"))
    assert path_moments(es.trace(Custom(), X)).m1 == 2 + 3  # paths of 2 and 3


def test_a_later_registration_replaces_an_earlier_one() -> None:
    es.register_op(RAMP, es.ops.activation("relu"))
    deep = path_moments(es.trace(Custom(), X))
    es.register_op(RAMP, es.ops.identity)
    shallow = path_moments(es.trace(Custom(), X))
    assert (deep.m1, shallow.m1) == (2 + 3, 2 + 2)


def test_the_decorator_form_returns_the_handler_and_hands_it_calls() -> None:
    seen: list[Call] = []

    @es.register_op("evenstep_tests.ramp")
    def handler(call: Call) -> Outcome:
        seen.append(call)
        return Outcome((edge_from(call.signals()[0], Activation("relu", depth=2)),))

    assert handler_of("evenstep_tests.ramp.default") is handler
    assert "evenstep_tests.ramp" in known_ops()
    assert path_moments(es.trace(Custom(), X)).m1 == 2 + 4
    (call,) = seen
    assert (call.op, call.module, call.shape) == ("evenstep_tests.ramp.default", "inner", (2, 8))
    assert call.signals()[0].shape == (2, 8)


def test_torchs_own_operators_can_be_replaced_too() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    es.register_op("aten.relu", es.ops.activation("tanh"))
    assert {edge.activation for edge in es.trace(model, X).edges} == {None, "tanh"}


def test_names_of_operators() -> None:
    assert op_name(RAMP.default) == "evenstep_tests.ramp.default"
    assert op_name(torch.ops.aten.add.Tensor) == "aten.add.Tensor"
    # An in-place twin falls back on its original.
    assert handler_of("aten.relu_.default") is handler_of("aten.relu.default") is not None
    assert handler_of("evenstep_tests.ramp.default") is None


def test_an_unknown_operator_raises_and_names_itself_its_module_and_the_remedy() -> None:
    with pytest.raises(es.TraceError) as caught:
        es.trace(Custom(), X)
    message = str(caught.value)
    for part in ("'evenstep_tests.ramp.default'", "'inner'", "Inner", "register_op", "on_unknown='identity'"):
        assert part in message
    assert "\n" not in message


def test_an_unknown_operator_of_the_traced_module_itself_is_named_so() -> None:
    with pytest.raises(es.TraceError, match=r"the module itself \(Inner\)"):
        es.trace(Inner(), X)


def test_letting_an_unknown_operator_through_marks_the_parameters_beside_it() -> None:
    planned = es.plan(Custom(), X, on_unknown="identity")
    marked = {p.name for p in planned.parameters if "outside the theory" in p.reason}
    assert marked == {"inner.linear.weight", "inner.linear.bias", "middle.weight", "middle.bias"}
    assert "evenstep_tests.ramp" in planned["middle.weight"].reason
    # As an identity: no depth of its own.
    assert (planned.path_count, path_moments(planned.graph).m1) == (2, 2 + 2)


def test_parameters_of_an_unknown_operator_are_kept_and_marked() -> None:
    class Scaling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 2)
            self.weight = nn.Parameter(torch.full((8,), 0.7))

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.last(torch.relu(torch.tanh(scaled(self.first(x), self.weight))))
            return logits

    with pytest.raises(es.TraceError, match=r"evenstep_tests\.scaled"):
        es.trace(Scaling(), X)
    planned = es.plan(Scaling(), X, on_unknown="identity", measure=False)
    assert planned["weight"].kept
    assert "outside the theory" in planned["weight"].reason
    assert {p.name for p in planned.parameters} == {name for name, _ in Scaling().named_parameters()}


def test_a_handler_that_raises_is_reported_with_its_operator() -> None:
    @es.register_op(RAMP)
    def broken(call: Call) -> Outcome:
        raise ZeroDivisionError("no ramp today")

    with pytest.raises(es.TraceError) as caught:
        es.trace(Custom(), X)
    message = str(caught.value)
    for part in ("evenstep_tests.ramp.default", "'inner'", "ZeroDivisionError", "no ramp today", "register_op"):
        assert part in message
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_handler_that_returns_nothing_is_reported_with_its_operator() -> None:
    es.register_op(RAMP, lambda call: None)  # type: ignore[arg-type, return-value]
    with pytest.raises(es.TraceError, match=r"'evenstep_tests\.ramp\.default' in module 'inner'.*returned NoneType"):
        es.trace(Custom(), X)


def test_an_activation_that_does_not_exist_is_refused_at_once() -> None:
    with pytest.raises(es.InputError, match="activation 'relu_squared' is not known"):
        es.ops.activation("relu_squared")


def test_a_weight_of_a_handler_must_stand_on_an_edge() -> None:
    class Scaling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last, self.weight = nn.Linear(8, 2), nn.Parameter(torch.ones(8))

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.last(torch.relu(scaled(x, self.weight)))
            return logits

    def forgetful(call: Call) -> Outcome:
        uses = tuple(es.ops.Parameter(name, "weight") for name in call.parameters()[0].names)
        return Outcome((edge_from(call.signals()[0], es.ops.Weight(8, 8)),), uses=uses)

    es.register_op("evenstep_tests.scaled", forgetful)
    with pytest.raises(es.TraceError, match=r"uses the weight 'weight' on no edge; name it in edge_from"):
        es.trace(Scaling(), X)
    es.register_op(
        "evenstep_tests.scaled",
        lambda call: es.ops.weight(call.signals()[0], call.parameters()[0], es.ops.Weight(8, 8)),
    )
    assert es.plan(Scaling(), X, measure=False)["weight"].role == "weight"


def test_a_handlers_own_error_passes_through() -> None:
    @es.register_op(RAMP)
    def refusing(call: Call) -> Outcome:
        raise es.InputError("ramp is not for you; use relu")

    with pytest.raises(es.InputError, match="use relu"):
        es.trace(Custom(), X)


@pytest.mark.parametrize("target", ["ramp", "", 7])
def test_a_target_without_a_name_is_refused(target: object) -> None:
    with pytest.raises(es.InputError, match=r"library\.operator"):
        es.register_op(target, es.ops.identity)


def test_a_handler_must_be_callable() -> None:
    with pytest.raises(es.InputError, match=r"evenstep_tests\.ramp.*function"):
        es.register_op("evenstep_tests.ramp", "relu")  # type: ignore[call-overload]


def test_on_unknown_takes_two_values() -> None:
    with pytest.raises(es.InputError, match=r"on_unknown is 'skip'.*raise.*identity"):
        es.trace(Custom(), X, on_unknown="skip")  # type: ignore[arg-type]


class Scaled(nn.Module):
    """Three layers, the operator behind the first, and what it makes multiplied by a factor written out."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 2)
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        x = ramp(self.first(x))
        x = x if self.factor == 1.0 else self.factor * x
        logits: Tensor = self.last(torch.relu(self.second(x)))
        return logits


OPERATORS = [Activation("relu", 4), Norm(depth=1), RMSNorm(depth=1), Maximum(4, depth=1), Scale(1.0, depth=1)]


@pytest.mark.parametrize("factor", [0.5, 0.1, -3.0])
@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.op)
def test_an_operator_s_factor_counts_as_one_written_out_does(operator: Operator, factor: float) -> None:
    def handler(call: Call, amplitude: float) -> Outcome:
        scale = () if amplitude == 1.0 else (Scale(amplitude),)
        return Outcome((edge_from(call.signals()[0], operator, *scale),))

    es.register_op(RAMP, lambda call: handler(call, 1.0))
    plain, written = es.plan(Scaled(), X, measure=False), es.plan(Scaled(factor), X, measure=False)
    es.register_op(RAMP, lambda call: handler(call, factor))
    taught = es.plan(Scaled(), X, measure=False)
    assert [p.std for p in taught.parameters] == pytest.approx([p.std for p in written.parameters])
    assert taught.lr_scale == pytest.approx(written.lr_scale)
    first, second = (taught[name].std / plain[name].std for name in ("first.weight", "second.weight"))
    assert first * second == pytest.approx(1 / abs(factor), rel=1e-6)


def test_several_operators_on_an_edge_are_the_same_in_a_row() -> None:
    def in_a_row(call: Call) -> Outcome:
        return Outcome((edge_from(call.signals()[0], Norm(over_batch=True), Activation("relu"), Scale(0.1)),))

    class Written(Scaled):
        def forward(self, x: Tensor) -> Tensor:
            h = F.batch_norm(self.first(x), None, None, training=True)
            logits: Tensor = self.last(torch.relu(self.second(0.1 * torch.relu(h))))
            return logits

    es.register_op(RAMP, in_a_row)
    taught, written = es.plan(Scaled(), X, measure=False), es.plan(Written(), X, measure=False)
    assert taught.lr_scale == pytest.approx(written.lr_scale)
    assert [p.std for p in taught.parameters] == pytest.approx([p.std for p in written.parameters])


def test_a_factor_weighs_one_summand_among_others() -> None:
    def handler(amplitude: float) -> es.ops.Handler:
        return lambda call: Outcome(
            (
                edge_from(call.signals()[0], Activation("relu"), Scale(amplitude)),
                edge_from(call.signals()[0]),
            )
        )

    moments = []
    for amplitude in (0.0, 2.0):
        es.register_op(RAMP, handler(amplitude))
        plan = es.plan(Scaled(), X, measure=False)
        (moment,) = (v.second_moment for v in plan.vertices if v.name == "ramp")
        moments.append(moment)
    # z alone, and z + 2 relu(z), the activation counted as a field of its own but for its mean.
    assert moments == pytest.approx([1.0, 1.0 + 4 * 0.5])
