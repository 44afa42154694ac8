"""Steps that are really taken: what a layer makes moves as far where the field it reads has grown."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import evenstep as es
from evenstep.rules import Optimizer

pytestmark = pytest.mark.filterwarnings("ignore::evenstep.PlanWarning")  # test_checked.py says which

WIDTH = 64
BASE = es.trace(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10)), torch.zeros(2, 32))


class Grown(nn.Module):
    """A field that skips add up to so many copies, read by a layer that a norm follows, beside a branch or alone."""

    def __init__(self, copies: int, *, branch: bool, normed: bool = True) -> None:
        super().__init__()
        self.copies = copies
        self.stem, self.layer, self.readout = nn.Linear(32, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 10)
        self.branch = nn.Linear(32, WIDTH) if branch else None
        self.norm = nn.LayerNorm(WIDTH) if normed else nn.Identity()

    def made(self, x: Tensor) -> Tensor:
        """Return what the norm makes of the layer's output."""
        field = self.stem(x)
        total = field
        for _ in range(self.copies - 1):
            total = total + field
        found = self.layer(total)
        normed: Tensor = self.norm(found + self.branch(x) if self.branch is not None else found)
        return normed

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.readout(functional.relu(self.made(x)))
        return logits


def moved(copies: int, optimizer: Optimizer, *, branch: bool, seeds: int = 8) -> float:
    """Return how far a step of the layer alone moves what it makes, root mean square, at the planned rate."""
    total = 0.0
    for seed in range(seeds):
        torch.manual_seed(seed)
        model, inputs, labels = Grown(copies, branch=branch), torch.randn(128, 32), torch.randint(10, (128,))
        planned = es.plan(model, inputs, base=1e-3, optimizer=optimizer)
        es.initialize_(model, planned)
        nn.init.normal_(model.readout.weight, std=WIDTH**-0.5)  # a mean-field readout hands back next to no gradient
        (rate,) = [1e-3 * p.lr_scale for p in planned.parameters if p.name == "layer.weight"]
        kind = torch.optim.Adam if optimizer == "adam" else torch.optim.SGD
        step = kind([model.layer.weight], lr=rate)
        before = model.made(inputs).detach()
        functional.cross_entropy(model(inputs), labels).backward()  # type: ignore[no-untyped-call]
        step.step()
        total += float((model.made(inputs).detach() - before).square().mean()) / seeds
    return math.sqrt(total)


@pytest.mark.parametrize("branch", [False, True])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_a_layer_behind_a_field_that_grew_steps_as_far_as_one_behind_a_plain_field(
    optimizer: Optimizer, branch: bool
) -> None:
    plain, grown = (moved(copies, optimizer, branch=branch) for copies in (1, 30))
    ratio = grown / plain
    topology = [
        es.plan(Grown(copies, branch=branch), torch.zeros(2, 32), optimizer=optimizer).lr_scale for copies in (1, 30)
    ]
    assert ratio / (topology[1] / topology[0]) == pytest.approx(1.0, rel=0.15)


@pytest.mark.parametrize("normed", [True, False])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_a_weight_that_is_drawn_smaller_steps_less_and_no_other_does(optimizer: Optimizer, normed: bool) -> None:
    scales = {}
    for copies in (1, 30):
        planned = es.plan(Grown(copies, branch=False, normed=normed), torch.zeros(2, 32), optimizer=optimizer)
        scales[copies] = {p.name: p.lr_scale / planned.lr_scale for p in planned.parameters}
    scales[1]["layer.weight"] *= 1 / 30 if optimizer == "adam" else 1 / 30**2
    assert scales[30] == pytest.approx(scales[1])


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_weights_that_start_at_zero_have_their_size_to_come(optimizer: Optimizer) -> None:
    def rates(hidden: float | None, readout: float | None, init: str = "keep") -> dict[str, float]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        for layer, factor in (("2", hidden), ("4", readout)):
            if factor is not None:
                nn.init.normal_(model.get_parameter(f"{layer}.weight"), std=factor)
        planned = es.plan(model, torch.zeros(2, 32), init=init, optimizer=optimizer, base_graph=BASE)
        return {p.name: p.lr_scale / planned.lr_scale for p in planned.parameters}

    own = rates(None, None)
    for tiny in (0.0, 1e-9, 1e-3):  # no jump where a size becomes zero
        assert rates(tiny, None) == pytest.approx(own, rel=0.05)  # torch's own start has this size but for chance
        assert rates(None, tiny) == pytest.approx(own, rel=1e-9)
    larger = rates(1.0, None)["2.weight"] / own["2.weight"]  # from 1/sqrt(3 * 64)
    assert larger == pytest.approx(math.sqrt(3 * 64) if optimizer == "adam" else 3 * 64, rel=0.1)
    # A readout's rate does not follow from how small an initialisation starts it.
    assert rates(None, None, "he")["4.weight"] == pytest.approx(rates(None, None, "degree")["4.weight"])
    assert rates(None, None, "he")["4.weight"] == pytest.approx(rates(None, None, "conserve")["4.weight"])


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("classes", [1, 10, 1000])
def test_networks_with_and_without_a_hidden_weight_go_alike(optimizer: Optimizer, classes: int) -> None:
    """The number of classes is no measure of the other layers' rates."""

    def stem(hidden: int) -> float:
        body = [layer for _ in range(hidden) for layer in (nn.ReLU(), nn.Linear(64, 64))]
        model = nn.Sequential(nn.Linear(16, 64), *body, nn.ReLU(), nn.Linear(64, classes))
        planned = es.plan(model, torch.zeros(2, 16), optimizer=optimizer, base_graph=BASE)
        return planned["0.weight"].lr_scale / planned.lr_scale

    assert stem(0) == pytest.approx(stem(1))


class Positions(nn.Module):
    """A table of positions, all of one size, added to what so many layers make together."""

    def __init__(self, layers: int, size: float) -> None:
        super().__init__()
        self.stems = nn.ModuleList(nn.Linear(8, 16) for _ in range(layers))
        self.table = nn.Parameter(torch.full((5, 16), size))
        self.norm, self.hidden, self.readout = nn.LayerNorm(16), nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        field = sum(stem(x) for stem in self.stems) + self.table
        logits: Tensor = self.readout(functional.relu(self.hidden(self.norm(field))))
        return logits


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_a_table_of_positions_goes_with_the_signal_or_with_its_own_size(optimizer: Optimizer, layers: int) -> None:
    """With `he` every layer makes second moment 2. A table of size 3 steps as a weight that reads one unit does."""
    found = {}
    for size in (0.0, 0.01, 3.0):
        planned = es.plan(Positions(layers, size), torch.zeros(2, 5, 8), init="he", optimizer=optimizer)
        found[size] = planned["table"].lr_scale / planned.lr_scale
    signal, own = (math.sqrt(2 * layers), 3 / 16**-0.5) if optimizer == "adam" else (2 * layers, 3**2 * math.sqrt(16))
    assert found == pytest.approx({0.0: signal, 0.01: signal, 3.0: own})


class Read(nn.Module):
    """Two recurrent layers over a sequence, and a readout of the last state."""

    def __init__(self, kind: Callable[..., nn.Module]) -> None:
        super().__init__()
        self.body = kind(8, 16, num_layers=2, batch_first=True)
        self.readout = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.readout(self.body(x)[0][:, -1])
        return logits


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_matrices_of_recurrent_layers_go_by_what_each_reads(
    kind: Callable[..., nn.Module], optimizer: Optimizer
) -> None:
    """All write the 16 units of a state, however many gates there are; the first reads 8, the others 16."""
    own = es.trace(Read(kind), torch.zeros(2, 5, 8))
    adam = optimizer == "adam"
    for rule in ("spectral", "weighted"):
        planned = es.plan(Read(kind), torch.zeros(2, 5, 8), rule=rule, optimizer=optimizer, base_graph=own)
        weights = [p for p in planned.parameters if p.name.startswith("body.weight")]
        assert [p.shape[1] for p in weights] == [8, 16, 16, 16]
        for p in weights:
            reads = p.shape[1]
            even = p.std * 16**0.5 if adam else reads * p.std**2 * math.sqrt(16 / reads)
            assert p.lr_scale == pytest.approx(16 / reads if rule == "spectral" else even), (rule, p.name)


class Averaged(nn.Module):
    """A readout of the mean over positions."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.readout = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.readout(functional.relu(self.stem(x)).mean(1))
        return logits


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_a_readout_of_averages_is_larger_the_less_of_them_varies(optimizer: Optimizer) -> None:
    """Of a mean over n positions an n-th varies, a tenth at least: so much variance more, and an even step for it."""
    plans = {
        count: es.plan(Averaged(), torch.zeros(2, count, 8), optimizer=optimizer) for count in (1, 2, 4, 9, 11, 100)
    }
    stds = {count: plan["readout.weight"].std for count, plan in plans.items()}
    assert stds == pytest.approx({count: stds[1] * min(count, 10) ** 0.5 for count in stds})
    rates = {count: plan["readout.weight"].lr_scale / plan.lr_scale for count, plan in plans.items()}
    power = 1 if optimizer == "adam" else 2
    assert rates == pytest.approx({count: rates[1] * (stds[count] / stds[1]) ** power for count in rates})
    others = {(p.name, p.std, p.lr_scale) for plan in plans.values() for p in plan.parameters if p.role == "weight"}
    assert len({one for one in others if one[0] == "stem.weight"}) == 1  # no other parameter has a part in it


@pytest.mark.parametrize(("optimizer", "power"), [("sgd", 0.5), ("momentum", 0.5), ("adam", 0.0)])
@pytest.mark.parametrize("rows", [1, 2, 1000, 100_000])
def test_a_table_of_words_goes_by_the_rows_that_share_its_uses(rows: int, optimizer: Optimizer, power: float) -> None:
    """By Zipf's law the r-th word is met 1/r as often; as many equally frequent ones would meet as seldom twice."""
    model = nn.Sequential(nn.Embedding(rows, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))
    own = es.trace(model, torch.zeros(2, 5, dtype=torch.long))
    chances = [1 / rank for rank in range(1, rows + 1)]
    shared = sum(chances) ** 2 / sum(chance**2 for chance in chances)
    planned = es.plan(model, torch.zeros(2, 5, dtype=torch.long), optimizer=optimizer, base_graph=own)
    # SGD: fan_in var(W) sqrt(out / in), of fan_in = in = the rows that share; Adam's step knows no gradient.
    assert planned["0.weight"].std == 1.0
    assert planned["0.weight"].lr_scale == pytest.approx(4 * shared**power)


class Adds(nn.Module):
    """Numbers that are added to a hidden signal."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.first, self.second, self.readout = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 3)
        self.added = nn.Parameter(torch.full(shape, 5.0))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.readout(torch.relu(self.second(self.first(x) + self.added)))
        return logits


@pytest.mark.parametrize(("optimizer", "own"), [("sgd", 25 * 4), ("momentum", 25 * 4), ("adam", 5 * 4)])
def test_a_table_goes_with_its_own_size_and_a_vector_with_the_signal(optimizer: Optimizer, own: float) -> None:
    """A table of n rows is a weight of fan_in 1 that writes 16 units; a large bias is large on purpose."""
    example = torch.zeros(2, 7, 8)
    vector, table = (es.plan(Adds(*shape), example, optimizer=optimizer) for shape in ((16,), (7, 16)))
    assert vector["added"].lr_scale == pytest.approx(vector.lr_scale)  # the signal is of second moment one
    assert table["added"].lr_scale == pytest.approx(own * table.lr_scale)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_what_a_weight_is_computed_from_goes_as_the_weight_would(optimizer: Optimizer) -> None:
    plain = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))
    normed = copy.deepcopy(plain)
    nn.utils.parametrizations.weight_norm(normed[2])
    kept = es.plan(plain, torch.zeros(2, 8), init="keep", optimizer=optimizer)
    planned = es.plan(normed, torch.zeros(2, 8), init="keep", optimizer=optimizer)
    for part in ("original0", "original1"):
        assert planned[f"2.parametrizations.weight.{part}"].lr_scale == pytest.approx(kept["2.weight"].lr_scale)
