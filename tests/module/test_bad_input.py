"""Check that bad input gets one sentence that names the thing, the value and the remedy."""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops import while_loop

import evenstep as es
from evenstep.module.ops import registry

torch.set_num_threads(1)
# Odd on purpose: what a plan says of them is the business of test_checked.py.
pytestmark = pytest.mark.filterwarnings("ignore::evenstep.PlanWarning")

X = torch.zeros(2, 4)


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)


class BranchOnData(Base):
    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x)
        if x.sum() > 0:  # the culprit
            x = 2 * x
        return x


class LoopOnData(Base):
    def forward(self, x: Tensor) -> Tensor:
        while x.norm() > 1:  # the culprit
            x = self.layer(x)
        return x


class NumberFromData(Base):
    def forward(self, x: Tensor) -> Tensor:
        count = int(x.abs().max().item())
        y: Tensor = self.layer(x)[:, : count if count > 0 else 1]  # the culprit
        return y


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner = nn.Linear(4, 4), BranchOnData()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.inner(torch.relu(self.first(x)))
        return y


class SizeFromData(Base):
    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)[x[:, 0] > 0]  # the culprit
        return y


class Constant(Base):
    def forward(self, x: Tensor) -> Tensor:
        return torch.ones(3)


class ParametersOnly(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.layer.weight.sum()


class Nothing(Base):
    def forward(self, x: Tensor) -> None:
        return None


class Failing(Base):
    def forward(self, x: Tensor) -> Tensor:
        raise RuntimeError("the pump is dry\nand so is the well")


def culprit(kind: type[nn.Module]) -> tuple[str, int]:
    """Return file and line of the statement marked in a class."""
    lines, start = inspect.getsourcelines(kind)
    offset = next(i for i, line in enumerate(lines) if "# the culprit" in line)
    return Path(__file__).name, start + offset


def message_of(error: type[es.EvenstepError], act: Callable[[], object]) -> str:
    with pytest.raises(error) as caught:
        act()
    message = str(caught.value)
    assert message.count("\n") == 0
    assert "Traceback" not in message
    return message


@pytest.mark.parametrize("model", [BranchOnData, NumberFromData, Nested, SizeFromData])
def test_what_depends_on_data_is_read_as_it_ran_where_there_are_values(model: type[nn.Module]) -> None:
    (remark,) = (r for r in es.plan(model(), torch.ones(2, 4)).remarks if "depends on its data" in r)
    assert model.__name__ in remark


@pytest.mark.parametrize(
    ("model", "kind"), [(BranchOnData, BranchOnData), (LoopOnData, LoopOnData), (Nested, BranchOnData)]
)
def test_control_flow_without_values_names_file_and_line(model: type[nn.Module], kind: type[nn.Module]) -> None:
    message = message_of(es.TraceError, lambda: es.trace(model().to("meta"), X.to("meta")))
    file, line = culprit(kind)
    for part in (model.__name__, "depends on the data", f"{file}:{line}", "torch.where"):
        assert part in message


def test_a_number_read_from_data_names_its_line() -> None:
    message = message_of(es.TraceError, lambda: es.trace(NumberFromData().to("meta"), X.to("meta")))
    assert "depends on the data" in message
    assert f"{Path(__file__).name}:" in message
    assert "count" in message  # the line is quoted


def test_a_size_that_depends_on_data_names_operator_module_and_line() -> None:
    model = nn.Sequential(nn.ReLU(), SizeFromData()).to("meta")
    message = message_of(es.TraceError, lambda: es.trace(model, X.to("meta")))
    for part in ("aten.", "'1'", "SizeFromData", "size depends on the data", "self.layer(x)[x[:, 0] > 0]"):
        assert part in message


def test_a_failing_forward_is_quoted_with_its_line() -> None:
    message = message_of(es.TraceError, lambda: es.trace(Failing(), X))
    for part in ("Failing", "the pump is dry", Path(__file__).name, "(2, 4)"):
        assert part in message


@pytest.mark.parametrize(
    ("inputs", "parts"),
    [
        (torch.zeros(2, 5), ("(2, 5)", "torch.float32")),
        ((X, X), ("positional", "(2, 4)")),
        ({"nothing": X}, ("input",)),
    ],
)
def test_example_inputs_that_do_not_fit(inputs: Any, parts: tuple[str, ...]) -> None:
    message = message_of(es.TraceError, lambda: es.plan(nn.Linear(4, 4), inputs))
    for part in ("Linear", "does not run on the example inputs", "give inputs as its forward takes them", *parts):
        assert part in message


def test_unexpected_keyword_inputs_are_named() -> None:
    message = message_of(es.TraceError, lambda: es.plan(nn.Linear(4, 4), X, example_kwargs={"temperature": X}))
    assert "temperature" in message
    assert "list" in message_of(
        es.InputError,
        lambda: es.plan(nn.Linear(4, 4), X, example_kwargs=[X]),  # type: ignore[arg-type]
    )


def test_missing_example_inputs() -> None:
    message = message_of(es.InputError, lambda: es.plan(nn.Linear(4, 4)))
    assert "example_inputs is missing" in message
    assert "torch.zeros(" in message


@pytest.mark.parametrize("inputs", [(), [], {}, (3, None)])
def test_example_inputs_without_a_tensor(inputs: Any) -> None:
    assert "no tensor" in message_of(es.InputError, lambda: es.plan(nn.Linear(4, 4), inputs))


@pytest.mark.parametrize(("inputs", "kind"), [("x", "str"), (3, "int"), (X.numpy(), "ndarray")])
def test_example_inputs_of_another_type(inputs: Any, kind: str) -> None:
    message = message_of(es.InputError, lambda: es.plan(nn.Linear(4, 4), inputs))
    assert f"example_inputs is {kind}" in message
    assert "give a tensor" in message


def test_example_inputs_of_size_zero() -> None:
    message = message_of(es.InputError, lambda: es.plan(nn.Linear(4, 4), torch.zeros(0, 4)))
    for part in ("(0, 4)", "size zero", "at least 1"):
        assert part in message
    nested = {"input": torch.zeros(2, 0)}
    assert "(2, 0)" in message_of(es.InputError, lambda: es.plan(nn.Linear(4, 4), nested))


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_a_parameter_of_size_zero_is_named() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 0))
    message = message_of(es.TraceError, lambda: es.plan(model, X))
    for part in ("'1.weight'", "(0, 3)", "size zero", "remove it"):
        assert part in message


def test_a_lazy_parameter_is_named() -> None:
    model = nn.Sequential(nn.LazyLinear(3))
    message = message_of(es.TraceError, lambda: es.plan(model, X))
    for part in ("'0.weight'", "lazy", "forward"):
        assert part in message
    model(X)
    assert {p.name for p in es.plan(model, X).parameters} == {"0.weight", "0.bias"}


@pytest.mark.parametrize("model", [Constant, ParametersOnly, Nothing])
def test_outputs_that_do_not_depend_on_inputs(model: type[nn.Module]) -> None:
    message = message_of(es.TraceError, lambda: es.plan(model(), X))
    for part in ("no output", model.__name__, "depends on its inputs", "return a tensor"):
        assert part in message


def test_a_module_that_returns_its_input_is_no_graph() -> None:
    assert "two vertices" in message_of(es.GraphError, lambda: es.plan(nn.Identity(), X))


@pytest.mark.parametrize(
    ("model", "kind"), [(None, "NoneType"), (nn.Linear, "type"), (torch.relu, "builtin"), ({}, "dict")]
)
def test_not_a_module(model: Any, kind: str) -> None:
    message = message_of(es.InputError, lambda: es.plan(model, X))
    assert f"the model is {kind}" in message
    assert "torch.nn.Module" in message


@pytest.mark.parametrize(
    ("option", "value", "remedies"),
    [
        ("rule", "best", ("weighted", "paths", "constant", "mup", "completep")),
        ("init", "xavier", ("conserve", "degree", "he", "keep")),
        ("optimizer", "lamb", ("sgd", "momentum", "adam")),
        ("on_unknown", "warn", ("raise", "identity")),
        ("base", -0.1, ("above 0",)),
        ("base", math.nan, ("above 0",)),
        ("base", "0.1", ("learning rate",)),
    ],
)
def test_wrong_options_name_the_value_and_the_choices(option: str, value: Any, remedies: tuple[str, ...]) -> None:
    message = message_of(es.InputError, lambda: es.plan(nn.Linear(4, 4), X, **{option: value}))
    for part in (option, str(value), *remedies):
        assert part in message


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_kept_weights_that_are_not_finite_are_named(value: float) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    with torch.no_grad():
        next(model.parameters()).fill_(value)
    assert "'0.weight'" in message_of(es.InputError, lambda: es.plan(model, X, init="keep"))
    planned = es.plan(model, X)  # drawn anew: what was there does not matter
    assert math.isfinite(planned["0.weight"].std)
    model[0].requires_grad_(False)
    assert "not finite" in message_of(es.InputError, lambda: es.plan(model, X))


def test_damaged_and_foreign_plan_files_are_refused() -> None:
    text = es.plan(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), X).to_json()
    for damaged in ("", "not json", text[:-40], "[]", "{}", '{"format": "other/1"}', "null"):
        message = message_of(es.PlanError, partial(es.Plan.from_json, damaged))
        assert "plan.to_json()" in message
    for key in ("parameters", "graph", "rule", "factors"):
        broken = text.replace(f'"{key}"', '"elsewhere"', 1)
        assert "damaged" in message_of(es.PlanError, partial(es.Plan.from_json, broken))
    for value in ("NaN", "-1.0", '"large"', "null"):
        broken = text.replace('"std": 0.5', f'"std": {value}', 1)
        assert broken != text
        assert "0.weight" in message_of(es.PlanError, partial(es.Plan.from_json, broken))


@dataclass
class Answer:
    logits: Tensor


class LeavesTorch(Base):
    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(torch.from_numpy(x.numpy()))  # the culprit
        return y


class ReturnsADataclass(Base):
    def forward(self, x: Tensor) -> Answer:
        return Answer(self.layer(x))


class DropsLayers(Base):
    def forward(self, x: Tensor) -> Tensor:
        if self.training and torch.rand(()) < 0.5:
            return x
        y: Tensor = self.layer(x)
        return y


class RepeatsOnData(Base):
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = while_loop(  # type: ignore[no-untyped-call]
            lambda x: x.sum() < 3, lambda x: (torch.relu(self.layer(x)),), (x,)
        )[0]
        return out


def test_a_forward_that_leaves_torch_is_told_so() -> None:
    message = message_of(es.TraceError, lambda: es.plan(LeavesTorch(), X))
    file, line = culprit(LeavesTorch)
    for part in ("LeavesTorch", "passes a tensor to numpy", f"{file}:{line}", "torch's operators"):
        assert part in message
    assert "give inputs" not in message


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_code_is_told_so() -> None:
    script: Any = torch.jit.script(nn.Linear(4, 4))
    traced: Any = torch.jit.trace(nn.Linear(4, 4), X)  # type: ignore[no-untyped-call]
    whole, held = "is a ScriptModule", "holds a ScriptModule, '1'"
    for model, what in ((script, whole), (traced, whole), (nn.Sequential(nn.ReLU(), script), held)):
        message = message_of(es.TraceError, partial(es.plan, model, X))
        for part in (what, "plan the plain module"):
            assert part in message
        assert "give inputs" not in message


@pytest.mark.parametrize("act", [es.plan, es.trace])
def test_inputs_and_module_swapped(act: Any) -> None:
    message = message_of(es.InputError, lambda: act(X, nn.Linear(4, 4)))
    for part in ("the model is Tensor", "example_inputs is Linear", "give the module first"):
        assert part in message


def test_plan_and_module_swapped() -> None:
    model = nn.Linear(4, 4)
    plan: Any = es.plan(model, X, base=0.1, optimizer="sgd")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    calls: list[Any] = [es.initialize_, partial(es.check_groups, optimizer=optimizer)]
    for act in calls:
        message = message_of(es.InputError, partial(act, plan, model))
        for part in ("the model is a Plan", "the plan is Linear", "give the module first"):
            assert part in message
        assert "the model is dict; give the torch.nn.Module" in message_of(es.InputError, partial(act, {}, plan))
        assert "the plan is float; give what evenstep.plan" in message_of(es.InputError, partial(act, model, 0.1))
        # One given twice is not two that are swapped.
        assert message_of(es.InputError, partial(act, plan, plan)).startswith(
            "the model is Plan; give the torch.nn.Mod"
        )
        assert message_of(es.InputError, partial(act, model, model)).startswith(
            "the plan is Linear; give what evenstep"
        )


@pytest.mark.parametrize("generator", ["x", 0, torch.Generator])
def test_a_generator_that_is_none_is_named(generator: Any) -> None:
    model = nn.Linear(4, 4)
    before = model.weight.detach().clone()
    message = message_of(es.InputError, lambda: es.initialize_(model, es.plan(model, X), generator=generator))
    assert "give a torch.Generator, or leave it out" in message
    assert torch.equal(model.weight, before)


def test_a_module_with_nothing_to_train() -> None:
    assert "the network has no parameters" in message_of(es.InputError, lambda: es.plan(nn.ReLU(), X))
    frozen = nn.Linear(4, 4).requires_grad_(False)
    message = message_of(es.InputError, lambda: es.plan(frozen, X))
    for part in ("nothing to plan: 'weight' and all other parameters are frozen", "requires_grad_()"):
        assert part in message
    assert len(es.trace(frozen, X).parameters) == 2  # its graph can be read all the same


def test_outputs_of_a_type_export_does_not_know() -> None:
    with pytest.raises(es.TraceError, match=r"Answer.*register_dataclass"):
        es.plan(ReturnsADataclass().to("meta"), X.to("meta"))


def test_layers_dropped_at_random_are_named_where_nothing_can_run() -> None:
    with pytest.raises(es.TraceError, match=r"call eval\(\) first"):
        es.plan(DropsLayers().to("meta"), X.to("meta"))
    assert len(es.plan(DropsLayers().to("meta").eval(), X.to("meta")).parameters) == 2


def test_loops_over_data_are_an_unknown_operator_that_can_be_taught() -> None:
    with pytest.raises(es.TraceError, match=r"register_op\('higher_order.while_loop'"):
        es.plan(RepeatsOnData(), X)
    es.register_op("higher_order.while_loop", es.ops.identity)
    try:
        assert es.plan(RepeatsOnData(), X).path_count == 1
    finally:
        del registry._HANDLERS["higher_order.while_loop"]
