"""Check other people's rules against their own tables, and their multipliers against modules that have them.

`NOTATION` is the tables once more, written out by the names of one small network's parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import evenstep as es
from evenstep.errors import InputError
from evenstep.graph import Graph, dag_mlp_graph
from evenstep.graph.residual import residuals
from evenstep.init import Network
from evenstep.planning import Plan, plan_graph
from evenstep.rules import RULES, CompleteP, Factor, RateFactors
from tests.reference import chain

BASE_WIDTH, BASE_DEPTH = 16, 2


class Block(nn.Module):
    """x + multiplier * down(relu(up(norm(x))))."""

    def __init__(self, width: int, *, normed: bool = True, multiplier: float = 1.0) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width) if normed else nn.Identity()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.multiplier = multiplier

    def forward(self, x: Tensor) -> Tensor:
        branch = self.down(torch.relu(self.up(self.norm(x))))
        result: Tensor = x + (branch if self.multiplier == 1.0 else self.multiplier * branch)
        return result


class Residual(nn.Module):
    """A stem, residual blocks, a last norm and a readout."""

    def __init__(self, width: int, depth: int, *, normed: bool = True, branch: float = 1.0, readout: float = 1.0):
        super().__init__()
        self.stem = nn.Linear(6, width)
        self.blocks = nn.Sequential(*(Block(width, normed=normed, multiplier=branch) for _ in range(depth)))
        self.last = nn.LayerNorm(width) if normed else nn.Identity()
        self.out = nn.Linear(width, 3)
        self.readout = readout

    def forward(self, x: Tensor) -> Tensor:
        x = self.last(self.blocks(self.stem(x)))
        result: Tensor = self.out(x if self.readout == 1.0 else self.readout * x)  # as MuReadout: not its bias
        return result


X = torch.randn(8, 6, generator=torch.Generator().manual_seed(0))


def traced(model: nn.Module, example: Tensor = X) -> Graph:
    return es.trace(model, example)


def planned(
    rule: Any, optimizer: Any, width: int, depth: int, *, init: str = "conserve", model: Any = Residual, **base: Any
) -> Plan:
    return es.plan(
        model(width, depth),
        X,
        rule=rule,
        optimizer=optimizer,
        init=init,
        base_graph=traced(model(BASE_WIDTH, BASE_DEPTH)),
        measure=False,
        **base,
    )


# The tables


class Said(NamedTuple):
    """What a table says of one parameter, relative to the base, with its multiplier in the module."""

    rate: float = 1.0
    eps: float = 1.0
    decay: float = 1.0
    multiplier: float = 1.0


def of_mup(name: str, m: float, _: float) -> Said:
    """muP, Adam: hidden eta / m_N and decay x m_N, all else eta; the readout's output / m_N."""
    if is_hidden_matrix(name):
        return Said(rate=1 / m, decay=m)
    return Said(multiplier=1 / m if name == "out.weight" else 1.0)


def of_mup_sgd(name: str, m: float, _: float) -> Said:
    """muP, SGD: fan_out / fan_in of matrices, vectors x m_N; the readout's output / m_N, its weight a vector's kind."""
    if name == "out.bias" or is_hidden_matrix(name):
        return Said()
    return Said(rate=m, decay=1 / m, multiplier=1 / m if name == "out.weight" else 1.0)


def of_completep(name: str, m: float, deeper: float, *, alpha: float) -> Said:
    """CompleteP, AdamW: table 1 of the paper."""
    said = of_mup(name, m, deeper)
    if name == "out.bias":
        return said
    if not name.startswith("blocks"):
        return said._replace(eps=1 / m)
    multiplier = deeper**-alpha if ".down." in name else 1.0
    return Said(said.rate * deeper ** (alpha - 1), 1 / m * deeper**-alpha, said.decay, multiplier)


def of_completep_sgd(name: str, m: float, deeper: float, *, alpha: float) -> Said:
    """Adam's rate over the size of gradients; depth-muP says 'unchanged' (Yang et al. 2023)."""
    said = of_mup_sgd(name, m, deeper)
    if not name.startswith("blocks"):
        return said
    return said._replace(
        rate=said.rate * deeper ** (2 * alpha - 1), multiplier=deeper**-alpha if ".down." in name else 1.0
    )


def of_umup(name: str, m: float, deeper: float) -> Said:
    """u-muP, Adam: hidden eta fan_in^-1/2 depth^-1/2, vectors of branches eta depth^-1/2, decay independent."""
    if not name.startswith("blocks"):
        return of_completep(name, m, deeper, alpha=0.5)
    fan_in = m**-0.5 if is_hidden_matrix(name) else 1.0
    rate, branch = fan_in * deeper**-0.5, deeper**-0.5 if ".down." in name else 1.0
    return Said(rate, fan_in / m * deeper**-0.5, 1 / rate, fan_in * branch)


def is_hidden_matrix(name: str) -> bool:
    return name.endswith(("up.weight", "down.weight"))


NOTATION: Mapping[tuple[str, str], Callable[[str, float, float], Said]] = {
    ("mup", "adam"): of_mup,
    ("mup", "sgd"): of_mup_sgd,
    ("completep", "adam"): partial(of_completep, alpha=1.0),
    ("completep", "sgd"): partial(of_completep_sgd, alpha=1.0),
    ("depth-mup", "adam"): partial(of_completep, alpha=0.5),
    ("depth-mup", "sgd"): partial(of_completep_sgd, alpha=0.5),
    ("u-mup", "adam"): of_umup,
}
SIZES = [(16, 2), (64, 2), (16, 8), (48, 6), (8, 1)]


@pytest.mark.parametrize(("width", "depth"), SIZES)
@pytest.mark.parametrize(("rule", "optimizer"), NOTATION)
def test_factors_are_those_of_the_rule_s_table(rule: str, optimizer: str, width: int, depth: int) -> None:
    plan = planned(rule, optimizer, width, depth)
    m, deeper = width / BASE_WIDTH, depth / BASE_DEPTH
    for p in plan.parameters:
        said = NOTATION[rule, optimizer](p.name, m, deeper)
        a = said.multiplier
        adam = optimizer == "adam"
        assert p.lr_scale == pytest.approx(said.rate * (a if adam else a**2), rel=1e-9), p.name
        assert p.eps_scale == pytest.approx(said.eps / a if adam else 1.0, rel=1e-9), p.name
        assert p.decay_scale == pytest.approx(said.decay / (a if adam else a**2), rel=1e-9), p.name
    assert Plan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize(("width", "depth"), SIZES)
@pytest.mark.parametrize(("rule", "power"), [("mup", 0.0), ("completep", 1.0), ("depth-mup", 0.5), ("u-mup", 0.5)])
def test_starts_are_the_base_s_by_width_and_branches_smaller(rule: str, power: float, width: int, depth: int) -> None:
    """Hidden variance / m_N, the readout's deviation / m_N; branches x m_L^-alpha, from the base's 1/sqrt(blocks)."""
    plan = planned(rule, "adam", width, depth)
    branch = BASE_DEPTH**-0.5 * (depth / BASE_DEPTH) ** -power
    for block in range(depth):
        assert plan[f"blocks.{block}.up.weight"].std == pytest.approx(width**-0.5)
        assert plan[f"blocks.{block}.down.weight"].std == pytest.approx(
            branch * (2 * width) ** -0.5
        )  # half of relu's 1/2
    readout = (3 * BASE_WIDTH) ** -0.5
    # A narrower network's readout starts as torch draws it, no larger.
    narrower = math.sqrt(min(width / BASE_WIDTH, 1.0))
    assert plan["out.weight"].std == pytest.approx(readout * BASE_WIDTH / width * narrower)
    assert plan["stem.weight"].std == pytest.approx(6**-0.5)


def test_what_reads_a_stream_of_smaller_branches_is_drawn_for_it() -> None:
    model = partial(Residual, normed=False)
    plan = planned("completep", "adam", 16, 8, model=model)
    stream = 1.0
    for block in range(8):
        assert plan[f"blocks.{block}.up.weight"].std == pytest.approx((16 * stream) ** -0.5)
        stream += 0.5 / 2 / 4**2  # half a summand's, over the base's two blocks, and m_L^-2
    carried = {v.name: v.second_moment for v in plan.vertices}
    assert carried["blocks.7.add"] == pytest.approx(stream)
    measured = es.plan(
        model(16, 8), X.repeat(8, 1), rule="completep", optimizer="adam", base_graph=traced(model(16, 2)), measure=True
    )
    assert not measured.remarks  # the forward pass shows what was computed


@pytest.mark.parametrize("init", ["conserve", "degree", "he", "keep"])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize("rule", ["mup", "completep", "depth-mup", "u-mup", "am-mup"])
def test_a_base_is_its_own_measure(rule: str, optimizer: str, init: str) -> None:
    plan = planned(rule, optimizer, BASE_WIDTH, BASE_DEPTH, init=init)
    plain = planned("constant", optimizer, BASE_WIDTH, BASE_DEPTH, init=init)
    assert [(p.lr_scale, p.eps_scale, p.decay_scale) for p in plan.parameters] == [(1.0, 1.0, 1.0)] * len(
        plan.parameters
    )
    assert init == "keep" or [p.std for p in plan.parameters] == [p.std for p in plain.parameters]


def test_kept_weights_stay_and_go_at_the_rule_s_rates() -> None:
    kept, drawn = (planned("completep", "adam", 64, 8, init=init) for init in ("keep", "conserve"))
    assert all(p.kept or p.role != "weight" for p in kept.parameters)
    assert [p.lr_scale for p in kept.parameters] == [p.lr_scale for p in drawn.parameters]
    assert {p.mean for p in kept.parameters if p.role == "gain"} <= {0.0, 1.0}


# The folded multipliers


OPTIMIZERS: Mapping[str, Callable[..., torch.optim.Optimizer]] = {
    "AdamW": partial(torch.optim.AdamW, lr=0.01, eps=1e-3, weight_decay=0.3),
    "Adam": partial(torch.optim.Adam, lr=0.01, eps=1e-3, weight_decay=0.3),
    "SGD": partial(torch.optim.SGD, lr=0.1, weight_decay=0.3),
    "momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.3),
}
USES = [
    (rule, kind) for rule, name in NOTATION for kind in OPTIMIZERS if (kind in ("AdamW", "Adam")) == (name == "adam")
]


@pytest.mark.parametrize(("rule", "kind"), USES)
def test_a_folded_network_trains_as_one_with_multipliers_in_it(rule: str, kind: str) -> None:
    """Start, forward, and the function after steps with epsilon and decay, in double precision."""
    width, depth = 48, 6
    optimizer, name = OPTIMIZERS[kind], "adam" if kind in ("AdamW", "Adam") else "sgd"
    plan = planned(rule, optimizer, width, depth)
    folded = Residual(width, depth).double()
    say = NOTATION[rule, name]
    notation = {n: say(n, width / BASE_WIDTH, depth / BASE_DEPTH) for n, _ in folded.named_parameters()}
    es.initialize_(folded, plan, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():  # biases that show
        for n, p in folded.named_parameters():
            if n.endswith("bias"):
                p.normal_(0.0, 0.1, generator=torch.Generator().manual_seed(2))
    _trains_alike(plan, folded, notation, optimizer)


def _trains_alike(plan: Plan, folded: nn.Module, notation: Mapping[str, Said], optimizer: Any) -> None:
    explicit = Multiplied(folded, {n: said.multiplier for n, said in notation.items()})
    groups = []
    usual = optimizer.keywords
    for n, p in explicit.raw.items():
        said = notation[n]
        group = {"params": [p], "lr": usual["lr"] * said.rate, "weight_decay": usual["weight_decay"] * said.decay}
        groups.append(group | ({"eps": usual["eps"] * said.eps} if "eps" in usual else {}))
    steps = (plan.optimizer(folded, lr=usual["lr"], no_decay=False), optimizer(groups))
    x = X.double()
    target = torch.arange(len(x)) % 3
    torch.testing.assert_close(folded(x), explicit(x))
    for _ in range(4):
        for output, step in zip((folded(x), explicit(x)), steps, strict=True):
            step.zero_grad()
            torch.autograd.backward(nn.functional.cross_entropy(output, target))
            step.step()
        torch.testing.assert_close(folded(x), explicit(x), rtol=1e-9, atol=1e-9)


class Multiplied:
    """A module whose parameters are multipliers times raw ones, which are trained."""

    def __init__(self, module: nn.Module, multipliers: Mapping[str, float]) -> None:
        self.module, self.multipliers = module, multipliers
        self.raw = {n: (p.detach() / multipliers[n]).clone().requires_grad_() for n, p in module.named_parameters()}

    def __call__(self, x: Tensor) -> Tensor:
        values = {n: self.multipliers[n] * p for n, p in self.raw.items()}
        result: Tensor = torch.func.functional_call(self.module, values, (x,))
        return result


def test_a_multiplier_on_a_layer_is_one_on_its_weight() -> None:
    """The multiplied parameters above are a module with multipliers in its forward."""
    width, depth, branch, readout = 32, 4, 0.5, 0.25
    explicit = Residual(width, depth, branch=branch, readout=readout).double()
    plain = Residual(width, depth).double()
    plain.load_state_dict(explicit.state_dict())
    with torch.no_grad():
        for n, p in plain.named_parameters():
            p.mul_(branch if ".down." in n else readout if n == "out.weight" else 1.0)
    torch.testing.assert_close(plain(X.double()), explicit(X.double()))


class NormedEnd(nn.Module):
    """Blocks whose branches end in a norm with gains, as those of ResNets do."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.stem = nn.Linear(6, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.out = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = x + norm(layer(torch.relu(x)))
        result: Tensor = self.out(torch.relu(x))
        return result


def test_a_branch_that_ends_in_a_norm_is_multiplied_by_its_gains() -> None:
    plan = planned("completep", OPTIMIZERS["AdamW"], 16, 6, model=NormedEnd)
    gain, bias, weight = (plan[f"{name}"] for name in ("norms.1.weight", "norms.1.bias", "layers.1.weight"))
    assert gain.mean == pytest.approx(2**-0.5 / 3)  # the base's two blocks, and m_L
    assert gain.lr_scale == bias.lr_scale == pytest.approx(1 / 3)
    assert weight.lr_scale == 1.0
    assert "starts at 1, x 0.4082 on its residual branch, x branch 0.5774" in gain.reason
    carried = {v.name: v.second_moment for v in plan.vertices}
    assert carried["add"] == pytest.approx(1 + 1 / 2 / 9)
    model = NormedEnd(16, 6).double()
    es.initialize_(model, plan, generator=torch.Generator().manual_seed(1))
    notation = {
        p.name: Said(
            eps=1 / 3 if p.name[:5] in ("norms", "layer") else 1.0, multiplier=1 / 3 if "norms" in p.name else 1
        )
        for p in plan.parameters
    }
    _trains_alike(plan, model, notation, OPTIMIZERS["AdamW"])


# Depth and branches


class Plain(nn.Module):
    """A chain of layers, without skips."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.stem = nn.Linear(6, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.out = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for layer in self.layers:
            x = layer(torch.relu(x))
        result: Tensor = self.out(torch.relu(x))
        return result


def test_without_branches_hidden_layers_are_the_depth_and_nothing_is_multiplied() -> None:
    plan = planned("depth-mup", "adam", 16, 8, model=Plain)
    assert {p.name: p.lr_scale for p in plan.parameters} == pytest.approx(
        {p.name: 0.5 if p.name.startswith("layers") else 1.0 for p in plan.parameters}  # (8 / 2)^(1/2 - 1)
    )
    assert [p.std for p in plan.parameters] == [p.std for p in planned("mup", "adam", 16, 8, model=Plain).parameters]


class Decoder(nn.Module):
    """A pre-norm transformer of torch's own layers."""

    def __init__(self, width: int, depth: int, heads: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, 2 * width, dropout=0.0, norm_first=True, batch_first=True)
            for _ in range(depth)
        )
        self.last, self.out = nn.LayerNorm(width), nn.Linear(width, 11)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        result: Tensor = self.out(self.last(x))
        return result


def test_a_transformer_has_two_branches_a_layer() -> None:
    tokens = torch.arange(10).reshape(2, 5)
    base = traced(Decoder(16, 1), tokens)
    plan = es.plan(Decoder(32, 4), tokens, rule="completep", optimizer="adam", base_graph=base)
    found = residuals(plan.graph)
    assert len(found.sums) == 8
    ends = {name for edge_index in found.ends for name in plan.graph.edges[edge_index].parameters}
    of_layer = ("self_attn.out_proj.weight", "self_attn.out_proj.bias", "linear2.weight", "linear2.bias")
    assert ends == {f"layers.{layer}.{name}" for layer in range(4) for name in of_layer}
    expected = {"embedding.weight": 1.0, "out.weight": 0.5, "last.weight": 1.0}  # m_N = 2, m_L = 4
    expected |= {"layers.2.self_attn.in_proj_weight": 0.5, "layers.2.linear2.weight": 0.125, "layers.0.norm1.bias": 1.0}
    assert {name: plan[name].lr_scale for name in expected} == pytest.approx(expected)
    unit = es.plan(Decoder(32, 4), tokens, rule="u-mup", optimizer="adam", base_graph=base)
    expected = {"embedding.weight": 0.5**0.5, "layers.2.self_attn.in_proj_weight": 0.5 * 0.5, "last.weight": 1.0}
    assert {name: unit[name].lr_scale for name in expected} == pytest.approx(expected)


class Ending(nn.Module):
    """x + last(layer(x)), twice."""

    def __init__(self, last: Callable[[], nn.Module], depth: int = 2) -> None:
        super().__init__()
        self.stem, self.out = nn.Linear(6, 8), nn.Linear(8, 3)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(depth))
        self.lasts = nn.ModuleList(last() for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for layer, last in zip(self.layers, self.lasts, strict=True):
            x = x + last(layer(x))
        result: Tensor = self.out(x)
        return result


@pytest.mark.parametrize(
    ("last", "words"),
    [(nn.Tanh, "tanh"), (partial(nn.LayerNorm, 8, elementwise_affine=False), "a norm without gains")],
)
def test_a_branch_that_takes_no_factor_is_refused_with_a_remedy(last: Any, words: str) -> None:
    base = traced(Ending(last, 1))
    with pytest.raises(InputError, match=rf"rule 'completep' multiplies .* ends in {words}.*end it in a trained"):
        es.plan(Ending(last), X, rule="completep", optimizer="adam", base_graph=base)
    es.plan(Ending(last, 1), X, rule="completep", optimizer="adam", base_graph=base)  # nothing to multiply
    es.plan(Ending(last), X, rule="am-mup", optimizer="adam", base_graph=base)


def test_a_frozen_end_is_refused() -> None:
    model = Ending(nn.ReLU)
    model.layers[1].weight.requires_grad_(False)
    with pytest.raises(InputError, match=r"ends in 'layers.1.weight', which is frozen"):
        es.plan(model, X, rule="depth-mup", optimizer="adam", base_graph=traced(Ending(nn.ReLU, 1)))


@pytest.mark.parametrize(
    ("edges", "sums", "ends"),
    [
        ([("x", "a", "weight"), ("a", "b", "weight"), ("b", "y", "weight")], (), set()),
        # a skip around two weights
        (
            [
                ("x", "a", "weight"),
                ("a", "b", "weight"),
                ("b", "c", "weight"),
                ("a", "c", "skip"),
                ("c", "y", "weight"),
            ],
            ("c",),
            {2},
        ),
        # a weight on the shortcut: the longer way is the branch
        (
            [
                ("x", "a", "weight"),
                ("a", "b", "weight"),
                ("b", "c", "weight"),
                ("a", "c", "weight"),
                ("c", "y", "weight"),
            ],
            ("c",),
            {2},
        ),
        # ways of one length, and what does not come from the signal that it joins
        ([("x", "a", "weight"), ("a", "c", "weight"), ("a", "c", "weight"), ("c", "y", "weight")], (), set()),
        (
            [
                ("x", "a", "weight"),
                ("z", "b", "weight"),
                ("b", "a", "weight"),
                ("a", "y", "weight"),
                ("b", "y", "skip"),
            ],
            ("y",),
            {3},
        ),
        ([("x", "a", "weight"), ("z", "a", "skip"), ("z", "y", "weight"), ("a", "y", "weight")], (), set()),
        # a branch in a branch: the outer one ends in a signal that is read twice
        (
            [("x", "a", "weight"), ("a", "b", "weight"), ("b", "c", "weight"), ("b", "c", "skip"), ("c", "y", "skip")]
            + [("a", "y", "skip")],
            ("y",),
            {2},
        ),
    ],
)
def test_what_counts_as_a_branch(edges: list[tuple[str, str, str]], sums: tuple[str, ...], ends: set[int]) -> None:
    graph = Graph.from_edges(edges)
    found = residuals(graph)
    if len(edges) < 6:
        assert found.sums == sums
        assert found.ends.keys() == ends
    else:
        assert "c" in found.sums
        assert found.ends.keys() >= ends


# AM-muP


def test_am_mup_goes_by_the_shortest_path_and_the_number_of_blocks() -> None:
    """A stem, blocks of one addition each, a readout: 2 + K; branches have variance c / (K fan_in)."""
    plan, base = (planned("am-mup", "sgd", 32, depth) for depth in (6, 2))
    assert plan.lr_scale == pytest.approx((4 / 8) ** 1.5)
    assert {p.lr_scale for p in plan.parameters} == {plan.lr_scale}
    for name in ("blocks.1.up.weight", "blocks.1.down.weight"):
        assert plan[name].std == pytest.approx(base[name].std / math.sqrt(3))
    assert plan["out.weight"].std == base["out.weight"].std
    deep, shallow = (plan_graph(_chain(n), rule="am-mup", base_graph=_chain(2)) for n in (8, 2))
    assert deep.lr_scale == pytest.approx((4 / 10) ** 1.5)
    assert shallow.lr_scale == 1.0


def _chain(layers: int) -> Graph:
    return dag_mlp_graph(chain(layers))


# Rules of one's own


class Halved:
    """Halve what the readout gives, and a quarter of epsilon for stems."""

    name = "halved"
    layerwise = False

    def factors(self, network: Network, base: Network, optimizer: Any) -> RateFactors:
        half, quarter = (Factor("half", 0.5, "to see"),), (Factor("quarter", 0.25, "to see"),)
        return RateFactors((), multipliers={"out.weight": half}, eps={"stem.weight": quarter})


def test_any_rule_may_multiply_and_groups_hold_what_follows() -> None:
    plan = planned(Halved(), "adam", 16, 2)
    plain = planned("constant", "adam", 16, 2)
    out = plan["out.weight"]
    assert (out.std, out.lr_scale, out.eps_scale, out.decay_scale) == (plain["out.weight"].std / 2, 0.5, 2.0, 2.0)
    assert "lr: half 0.5 (to see); eps: half 2 (to see); decay: half 2 (to see)" in out.reason
    model = Residual(16, 2)
    groups = {g["name"].split(" ")[0]: g for g in plan.param_groups(model, lr=1.0, weight_decay=0.1, no_decay=False)}
    assert [groups[n]["eps"] for n in ("stem.weight", "stem.bias", "out.weight")] == [0.25e-8, 1e-8, 2e-8]
    assert [groups[n]["weight_decay"] for n in ("stem.weight", "out.weight")] == [0.1, 0.2]
    assert all("weight_decay" not in g for g in plan.param_groups(model, lr=1.0))  # the optimiser's own, whatever it is
    even = plan.param_groups(model, lr=1.0, weight_decay=0.1, even_decay=True, no_decay=False)
    assert {g["lr"] * g["weight_decay"] for g in even} == {0.1}
    assert "eps" not in plain.param_groups(model, lr=1.0)[0]


# Flat where the papers say so

WIDE, DEEP = (16, 32, 64), (2, 4, 8, 16)


def check(rule: str, optimizer: Any, networks: Mapping[int, tuple[int, int]], model: Any = Residual) -> es.Check:
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(64, 6, generator=generator)
    targets = (inputs[:, 0] > 0).long() + (inputs[:, 1] > 0).long()
    base = traced(model(*next(iter(networks.values()))))
    made = {
        label: (
            partial(model, *size),
            es.plan(model(*size), X, rule=rule, optimizer=optimizer, base_graph=base, measure=False),
        )
        for label, size in networks.items()
    }
    return es.check(made, (inputs, targets), lr=0.01, steps=1, seeds=8)


@pytest.mark.parametrize("rule", ["mup", "completep", "depth-mup", "u-mup"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_steps_are_even_over_width(rule: str, optimizer: str) -> None:
    found = check(rule, optimizer, {width: (width, 2) for width in WIDE})
    assert found.compare == "layers"
    assert found.ok, str(found)


@pytest.mark.parametrize("rule", ["completep", "depth-mup", "u-mup"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("normed", [True, False])
def test_steps_are_even_over_the_number_of_blocks(rule: str, optimizer: str, normed: bool) -> None:
    found = check(rule, optimizer, {depth: (32, depth) for depth in DEEP}, partial(Residual, normed=normed))
    assert abs(found.worst.slope) < 0.25, str(found)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_mup_alone_is_not_even_over_the_number_of_blocks(optimizer: str) -> None:
    assert not check("mup", optimizer, {depth: (32, depth) for depth in DEEP}).ok


def test_am_mup_is_even_over_the_depth_of_chains_under_sgd() -> None:
    found = check("am-mup", "sgd", {depth: (64, depth) for depth in DEEP}, Plain)
    assert found.ok, str(found)


def test_the_registry_has_every_name() -> None:
    assert {"completep", "mup", "depth-mup", "u-mup", "am-mup"} <= RULES.keys()
    assert isinstance(RULES["depth-mup"], CompleteP)


@pytest.mark.parametrize("rule", ["mup", "completep", "depth-mup"])
def test_multipliers_fold_alike_wherever_steps_are_as_large_as_their_rates(rule: str) -> None:
    """`a W x` under Lion and under Muon trains as `V x` with V = a W whose rate is a times as large, as under AdamW."""
    adam, lion, muon = (planned(rule, optimizer, 64, 8) for optimizer in ("adam", "lion", "muon"))
    assert any(p.decay_scale not in (1.0, adam.parameters[0].decay_scale) for p in adam)
    for one in adam:
        assert lion[one.name].lr_scale == pytest.approx(one.lr_scale)
        assert (lion[one.name].decay_scale, muon[one.name].decay_scale) == pytest.approx((one.decay_scale,) * 2)
        assert muon[one.name].eps_scale == pytest.approx(one.eps_scale)


class TwoStreams(nn.Module):
    """An encoder of two blocks, read by every block of a decoder of five: streams of different lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.start, self.out = nn.Linear(6, 16), nn.Linear(6, 16), nn.Linear(16, 3)
        self.encoder = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))
        self.decoder = nn.ModuleList(nn.Linear(32, 16) for _ in range(5))

    def forward(self, x: Tensor) -> Tensor:
        encoded, stream = self.stem(x), self.start(x)
        for block in self.encoder:
            encoded = encoded + block(torch.relu(encoded))
        for block in self.decoder:
            stream = stream + block(torch.relu(torch.cat((stream, encoded), 1)))
        logits: Tensor = self.out(stream)
        return logits


@pytest.mark.parametrize("rule", ["mup", "completep", "depth-mup", "u-mup", "am-mup"])
def test_a_network_with_streams_of_several_lengths_is_its_own_measure(rule: Any) -> None:
    graph = traced(TwoStreams())
    by_rule, plain = (plan_graph(graph, rule=name, base_graph=graph, optimizer="adam") for name in (rule, "constant"))
    assert [p.std for p in by_rule.parameters] == pytest.approx([p.std for p in plain.parameters])
    assert {p.lr_scale for p in by_rule.parameters} == {1.0}
    network = Network.of(graph)
    assert network.branch_scales["encoder.0.weight"] == pytest.approx(2**-0.5)
    assert network.branch_scales["decoder.0.weight"] == pytest.approx(5**-0.5)
