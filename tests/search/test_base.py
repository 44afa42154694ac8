"""Check bases made of users' networks: which blocks remain, that they train, and that nothing else changes."""

import fnmatch
import functools
import math
import os
import pickle
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import evenstep as es
from evenstep.errors import InputError, TraceError
from evenstep.module.exported import split_inputs
from evenstep.module.threads import threads
from evenstep.search.job import Job
from evenstep.search.key import search_key
from evenstep.search.recipe import Recipe
from tests.search.base_networks import (
    CASES,
    AttributeMLP,
    Case,
    ListMLP,
    LSTMLanguageModel,
    TiedGPT,
    ViT,
    gpt2,
    sequential_mlp,
)
from tests.search.residual_networks import RESIDUALS, Plain, Residual, perceptron
from tests.zoo import normal, tokens

ROOT = Path(__file__).parents[2]


def _numpy_state() -> Any:
    state: Any = np.random.get_state()
    return state[1].copy()


def names_of(model: nn.Module) -> set[str]:
    return {name for name, _ in model.named_parameters(remove_duplicate=False)}


def output_of(model: nn.Module, inputs: Any) -> Any:
    args, kwargs = split_inputs(inputs, None)
    return model(*args, **kwargs)


def tensor_of(output: Any) -> Tensor:
    if isinstance(output, tuple):
        output = output[0]
    return output if isinstance(output, Tensor) else output.logits


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with threads(1, torch.device("cpu")):  # these networks are far too small for more
        yield


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> Case:
    if request.param.requires:
        pytest.importorskip(request.param.requires)
    chosen: Case = request.param
    return chosen


def test_one_block_of_each_kind_remains_and_the_rest_is_untouched(case: Case) -> None:
    model, inputs = case.make()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    states: tuple[Any, ...] = torch.get_rng_state(), random.getstate(), _numpy_state()
    hooks = [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()]
    base = es.base_of(model, inputs)

    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert hooks == [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()]
    assert all(p.grad is None for p in model.parameters())
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1] == random.getstate()
    assert np.array_equal(states[2], _numpy_state())

    small = base()
    left_out = {n for n in names_of(model) if any(fnmatch.fnmatchcase(n, f"{start}*") for start in case.left_out)}
    assert names_of(small) == names_of(model) - left_out
    assert all(torch.equal(before[name], value) for name, value in small.state_dict().items())
    assert small.training == model.training
    assert tensor_of(output_of(small, inputs)).shape == tensor_of(output_of(model, inputs)).shape
    assert (base.share == 1.0) == (not case.left_out)
    assert ("no block can be left out" in base.words) == (not case.left_out)
    assert type(model).__name__ in repr(base)

    target = torch.randn(tensor_of(output_of(small, inputs)).shape, generator=torch.Generator().manual_seed(1))
    optimizer = torch.optim.Adam(small.parameters(), lr=3e-3)
    losses = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for _ in range(12):
            loss = (tensor_of(output_of(small, inputs)) - target).square().mean()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(loss.item())
    assert losses[-1] < 0.98 * losses[0]
    assert all(
        torch.equal(value, base().state_dict()[name]) for name, value in before.items() if name in base().state_dict()
    )


def test_a_base_computes_what_a_network_of_one_layer_does() -> None:
    pairs: list[tuple[nn.Module, nn.Module, Any]] = [
        (ViT().eval(), ViT(layers=1).eval(), normal(4, 3, 8, 8)),
        (ViT(pre_norm=False).eval(), ViT(pre_norm=False, layers=1).eval(), normal(4, 3, 8, 8)),
    ]
    for model, single, inputs in pairs:
        small = es.base_of(model, inputs)()
        single.load_state_dict(small.state_dict())
        assert torch.equal(single(inputs), small(inputs))
    mlp, inputs = sequential_mlp()
    assert isinstance(mlp, nn.Sequential)
    assert torch.equal(nn.Sequential(*list(mlp)[:4], mlp[-1])(inputs), es.base_of(mlp, inputs)()(inputs))
    words = tokens(4, 6, vocabulary=31)
    language = LSTMLanguageModel()
    small = es.base_of(language, words)()
    first = nn.LSTM(8, 16, batch_first=True)
    first.load_state_dict({n: p for n, p in language.cells.state_dict().items() if n.endswith("_l0")})
    assert torch.allclose(language.readout(first(language.embedding(words))[0]), small(words))


def with_zeros(value: Any) -> Any:
    """Return inputs of twice the batch."""
    return tuple(map(with_zeros, value)) if isinstance(value, tuple) else torch.cat([value, torch.zeros_like(value)])


@pytest.mark.filterwarnings("ignore::evenstep.PlanWarning")  # of scales that stay, and of matrices that are made
@pytest.mark.parametrize("residual", RESIDUALS, ids=lambda residual: residual.name)
def test_branches_that_are_added_outside_their_modules_are_left_out(residual: Residual) -> None:
    """The network written with one layer is the oracle: the same outputs at any batch size, and the same plan."""
    whole = residual.make(3).eval()
    base = es.base_of(whole, residual.inputs)
    small, single = base(), residual.make(1).eval()
    gone = tuple(f"{name}.{layer}." for name in residual.lists for layer in (1, 2))
    assert names_of(small) == {name for name in names_of(whole) if not name.startswith(gone)}
    assert base.share < 0.8

    single.load_state_dict({name: value for name, value in small.state_dict().items() if name in single.state_dict()})
    for inputs in (residual.inputs, with_zeros(residual.inputs)):
        assert torch.equal(output_of(single, inputs), output_of(small, inputs))

    planned, known = (
        es.plan(model.train(), residual.inputs, base=0.1, optimizer="momentum", measure=False)
        for model in (small, single)
    )
    for parameter in known.parameters:
        other = planned[parameter.name]
        assert (other.std, other.lr_scale) == pytest.approx((parameter.std, parameter.lr_scale), rel=1e-9, abs=1e-12)


class Halved(Plain):
    """Divides its sums: to leave a branch out would leave the factor behind."""

    def step(self, h: Tensor, layer: int) -> Tensor:
        return super().step(h, layer) / 2


class Mixed(Plain):
    """Adds to its branches what comes from the inputs alone: without them nothing would be left of the stream."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        for block in self.blocks:  # type: ignore[union-attr]
            h = block(h) + x.repeat(1, 2)
        result: Tensor = self.readout(h)
        return result


@pytest.mark.parametrize("kind", [Halved, Mixed])
def test_branches_stay_where_zeros_would_leave_another_network(kind: type[Plain]) -> None:
    assert es.base_of(kind(3, blocks=perceptron), normal(4, 8)).words.endswith("of which no block can be left out")


def test_words_say_that_branches_were_left_out() -> None:
    assert es.base_of(Plain(6, blocks=perceptron), normal(4, 8)).words == "Plain with 1 of its 6 branches 'blocks.*'"


@pytest.mark.parametrize("trained", [0, 5])
def test_frozen_blocks_do_not_stand_for_trained_ones(trained: int) -> None:
    model = Plain(6, blocks=perceptron)
    blocks: Any = model.blocks
    blocks.requires_grad_(False)
    blocks[trained].requires_grad_(True)
    left = {
        name.split(".")[1]: p.requires_grad
        for name, p in es.base_of(model, normal(4, 8))().named_parameters()
        if name.startswith("blocks.")
    }
    assert left == ({"0": True, "1": False} if trained == 0 else {"0": False, "5": True})


class ByFunction(nn.Module):
    """A block that is given its activation as a function."""

    def __init__(self, act: Any) -> None:
        super().__init__()
        self.mix, self.act = nn.Linear(16, 16), act

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x + self.act(self.mix(x))
        return result


def leaky(slope: float) -> Any:
    return functools.partial(nn.functional.leaky_relu, negative_slope=slope)


@pytest.mark.parametrize(
    ("acts", "left"),
    [
        ((torch.relu, torch.relu, torch.relu), "1 of its 3 blocks '1' to '3'"),
        ((torch.relu, torch.tanh, torch.sin), None),
        ((torch.relu, torch.tanh, torch.tanh), "1 of its 2 blocks '2' to '3'"),
        ((leaky(0.1), leaky(0.1)), "1 of its 2 blocks '1' to '2'"),
        ((leaky(0.1), leaky(0.3)), None),
        (tuple(lambda x: x.sigmoid() for _ in range(2)), "1 of its 2 blocks '1' to '2'"),
    ],
)
def test_blocks_with_other_functions_are_other_blocks(acts: tuple[Any, ...], left: str | None) -> None:
    net = nn.Sequential(nn.Linear(8, 16), *map(ByFunction, acts), nn.Linear(16, 3))
    words = es.base_of(net, normal(4, 8)).words
    assert words == (f"Sequential with {left}" if left else "Sequential itself, of which no block can be left out")


def test_ties_stay() -> None:
    small = es.base_of(TiedGPT(), tokens(4, 8, vocabulary=31))()
    assert isinstance(small, TiedGPT)
    assert small.readout.weight is small.tokens.weight
    assert small.readout.weight is not es.base_of(TiedGPT(), tokens(4, 8, vocabulary=31))().tokens.weight  # type: ignore[union-attr]


def test_the_share_counts_multiplications() -> None:
    model, inputs = sequential_mlp()
    assert es.base_of(model, inputs).share == pytest.approx((8 * 16 + 256 + 16 * 3) / (8 * 16 + 4 * 256 + 16 * 3))


class Watching(nn.Module):
    """Looks into one list of its blocks, which no pass-through allows, and not into the other."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(8, 16), nn.Linear(16, 3)
        self.seen = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.ReLU()) for _ in range(3))
        self.rest = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in (*self.seen, *self.rest):
            x = block(x)
        result: Tensor = self.head(x) + sum(block[0].bias.sum() for block in self.seen)  # type: ignore[index]
        return result


def test_only_the_blocks_that_cannot_be_missed_stay() -> None:
    base = es.base_of(Watching(), normal(4, 8))
    assert base.words == "Watching with 1 of its 3 blocks 'rest.*'"
    assert {name for name in names_of(base()) if "rest" in name} == {"rest.0.0.weight", "rest.0.0.bias"}
    assert sum("seen" in name for name in names_of(base())) == 6


def test_frozen_networks_in_eval_mode_are_reduced_as_they_are() -> None:
    model = ViT().eval()
    model.patches.requires_grad_(False)
    model.blocks.requires_grad_(False)
    small = es.base_of(model, normal(4, 3, 8, 8))()
    assert not small.training
    assert sum(1 for name in names_of(small) if name.startswith("blocks.0.")) == 16
    assert all(not p.requires_grad for n, p in small.named_parameters() if n.startswith(("patches", "blocks")))


def test_wrappers_are_taken_off() -> None:
    base = es.base_of(nn.DataParallel(AttributeMLP()), normal(4, 8))
    assert base.words == "AttributeMLP with 1 of its 3 blocks 'fc2' to 'fc4'"
    assert names_of(base()) == {f"fc{number}.{kind}" for number in (1, 2, 5) for kind in ("weight", "bias")}


def test_bases_pickle() -> None:
    model = AttributeMLP()
    parametrizations.weight_norm(model.fc2)
    for name in ("fc3", "fc4"):
        parametrizations.weight_norm(getattr(model, name))
    base = es.base_of(model, normal(4, 8))
    again = pickle.loads(pickle.dumps(base))
    assert again.words == base.words == "AttributeMLP with 1 of its 3 blocks 'fc2' to 'fc4'"
    assert torch.equal(again()(normal(4, 8)), base()(normal(4, 8)))


@pytest.mark.parametrize("name", ["sequential_mlp", "batch_norm_cnn", "torch_encoder", "tied_gpt", "lstm"])
def test_a_search_takes_a_base_and_a_plan_takes_the_search(name: str) -> None:
    model, inputs = next(case.make() for case in CASES if case.name == name)
    generator = torch.Generator().manual_seed(0)
    if inputs.is_floating_point():
        examples = torch.randn((64, *inputs.shape[1:]), generator=generator)
        targets = (examples.flatten(1).mean(1) > 0).long()
        loss: Any = nn.functional.cross_entropy
    else:
        examples = torch.randint(31, (64, *inputs.shape[1:]), generator=generator)
        targets, loss = examples, predicts_itself
    base = es.base_of(model, inputs)
    found = es.search_lr(
        base, (examples, targets), loss=loss, steps=4, batch_size=16, seeds=1, grid=(0.01, 0.1), on_failure="return"
    )
    assert min(math.inf, *(loss for row in found.losses for loss in row)) < math.inf
    plan = es.plan(model, inputs, base=replace(found, status="ok"), measure=False)
    assert plan.history[0] == found.words
    # A flat curve of so few steps is named, not hidden.
    assert plan.history[1:] == ((f"the base's search: {found.remark}",) if found.remark else ())
    assert found.words.startswith("base: ")
    assert {parameter.name for parameter in plan.parameters} == {name for name, _ in model.named_parameters()}
    assert {parameter.name for parameter in found.graph.parameters} == {name for name, _ in base().named_parameters()}


def predicts_itself(output: Tensor, target: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())


def test_a_search_takes_the_base_of_a_model_with_a_loss_of_its_own() -> None:
    pytest.importorskip("transformers")
    model, inputs = gpt2()
    base = es.base_of(model, inputs)
    data = {name: value.repeat(8, 1) for name, value in inputs.items()}
    found = es.search_lr(
        base, data, steps=3, batch_size=8, seeds=1, grid=(0.003, 0.01), optimizer="adam", on_failure="return"
    )
    plan = es.plan(model, inputs, base=replace(found, status="ok"), measure=False)
    assert {parameter.name for parameter in plan.parameters} == {name for name, _ in model.named_parameters()}
    small: Any = base()
    assert small.lm_head.weight is small.transformer.wte.weight


def key_of(model: nn.Module) -> str:
    """Return the key under which a store keeps a search of a network's base."""
    inputs, labels = torch.ones(8, 8), torch.zeros(8, dtype=torch.long)
    base = es.base_of(model, inputs)
    recipe = Recipe(loss=nn.functional.cross_entropy)
    key = search_key(Job.of(base, es.plan(base(), inputs, measure=False), recipe, range(1)), (inputs, labels))
    assert key.unreadable is None
    return key.config


def test_a_store_knows_a_base_again_in_another_process() -> None:
    code = "from tests.search.test_base import *; torch.set_num_threads(1); print(key_of(AttributeMLP()))"
    environment = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == key_of(AttributeMLP()) != key_of(ListMLP())


def test_what_is_no_network_or_does_not_run_is_said_in_a_line() -> None:
    with pytest.raises(InputError, match="the model is function; give a"):
        es.base_of(sequential_mlp, normal(4, 8))  # type: ignore[arg-type]
    with pytest.raises(TraceError, match="does not run on the example inputs"):
        es.base_of(sequential_mlp()[0], normal(4, 7))
    model: Any = nn.Linear(8, 8)
    with Path(__file__).open() as model.file, pytest.raises(InputError, match="Linear cannot be copied"):
        es.base_of(model, normal(4, 8))
