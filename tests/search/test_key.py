"""Check what tells searches apart: pairs that differ in one thing, out of one store, and keys in new processes."""

import functools
import json
import math
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import evenstep as es
from evenstep.errors import InputError, SearchError, SearchWarning
from evenstep.search import LocalEngine, search_lr
from evenstep.search.job import Job
from evenstep.search.key import SearchKey, search_key
from evenstep.search.recipe import Recipe
from tests.search.test_resume import rows

ROOT = Path(__file__).parents[2]
GENERATOR = torch.Generator().manual_seed(5)
INPUTS = torch.randn(64, 8, generator=GENERATOR)
VALUES = torch.randn(64, 3, generator=GENERATOR)
CLASSES = torch.randint(0, 3, (64,), generator=GENERATOR)

Loss = Callable[[Tensor, Tensor], Tensor]


class Net(nn.Module):
    """A perceptron with something of the user's own between its layers."""

    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last, self.between = nn.Linear(8, 16), nn.Linear(16, 3), between

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.last(self.between(self.first(x)))
        return result


def same(x: Tensor) -> Tensor:
    return x


def doubled(value: Tensor) -> Tensor:
    return 2.0 * value


def tripled(value: Tensor) -> Tensor:
    return 3.0 * value


def scaled_by(factor: float) -> Loss:
    return lambda output, target: factor * F.mse_loss(output, target)


def with_default(factor: float) -> Loss:
    def loss(output: Tensor, target: Tensor, factor: float = factor) -> Tensor:
        return factor * F.mse_loss(output, target)

    return loss


def weighted(last: float) -> nn.Module:
    return nn.CrossEntropyLoss(weight=torch.tensor([1.0, 1.0, last]))


class Powered:
    """A loss with a state, in an object of the user's own."""

    def __init__(self, power: float) -> None:
        self.power = power

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        return ((output - target).abs() ** self.power).mean()


class Between(nn.Module):
    """A module that rolls, clamps, drops or adds in a forward of its own."""

    def __init__(self, what: str, how: float) -> None:
        super().__init__()
        self.what, self.how = what, how

    def forward(self, x: Tensor) -> Tensor:
        if self.what == "drop":
            return F.dropout(x, self.how, self.training)
        if self.what == "roll":
            return x.roll(int(self.how), 1)
        return x.clamp(-self.how, self.how) if self.what == "clamp" else x + self.how


def between(what: str, how: float) -> dict[str, Any]:
    return {"make": functools.partial(Net, Between(what, how))}


# The loss or network that a pair differs in, and what all of them share besides.
PAIRS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "functions called": (
        {"loss": lambda output, target: F.mse_loss(output, target)},
        {"loss": lambda output, target: F.l1_loss(output, target)},
    ),
    "closures": ({"loss": scaled_by(1.0)}, {"loss": scaled_by(1.5)}),
    "defaults": ({"loss": with_default(1.0)}, {"loss": with_default(1.5)}),
    "tensors of a loss": (
        {"loss": weighted(1.0), "targets": CLASSES},
        {"loss": weighted(4.0), "targets": CLASSES},
    ),
    "schedules": ({"schedule": lambda step: 1.0 / (1 + step)}, {"schedule": lambda step: 1.0 / (2 + step)}),
    "dropout": (between("drop", 0.1), between("drop", 0.6)),
    "added constants": (between("add", 0.0), between("add", 1.0)),
    "bounds": (between("clamp", 0.1), between("clamp", 0.5)),
    "shifts": (between("roll", 0), between("roll", 3)),
    "globals": (
        {"loss": lambda output, target: doubled(F.mse_loss(output, target))},
        {"loss": lambda output, target: tripled(F.mse_loss(output, target))},
    ),
    "activations": ({"make": lambda: Net(lambda x: F.relu(x))}, {"make": lambda: Net(lambda x: F.silu(x))}),
    "states of objects": ({"loss": Powered(2.0)}, {"loss": Powered(1.5)}),
}
OPTIONS: dict[str, Any] = {
    "epochs": 1,
    "grid": [0.05, 0.1],
    "seeds": 1,
    "batch_size": 16,
    "engine": LocalEngine(workers=1),
    "on_failure": "return",
}


def searched(store: Path | None = None, **changed: Any) -> tuple[tuple[float, ...], ...]:
    given: dict[str, Any] = {"make": functools.partial(Net, same), "loss": F.mse_loss, "targets": VALUES} | changed
    make, targets = given.pop("make"), given.pop("targets")
    return search_lr(make, (INPUTS, targets), store=store, **(OPTIONS | given)).losses


def key(make: Callable[[], nn.Module], loss: Any = F.mse_loss, *, name: str | None = None, **recipe: Any) -> SearchKey:
    torch.manual_seed(0)  # plans say how large a module's parameters were
    job = Job.of(make, es.plan(make(), INPUTS[:2]), Recipe(loss=loss, batch_size=16, **recipe), range(1))
    return search_key(job, (INPUTS, VALUES), name=name)


def configs(store: Path) -> set[str]:
    return {row[0] for row in rows(store)}


def test_twelve_pairs_that_differ_in_one_thing_have_their_own_losses_in_one_store(tmp_path: Path) -> None:
    assert len(PAIRS) == 12
    for name, pair in PAIRS.items():
        store = tmp_path / "s.db"
        before = len(configs(store))
        alone = [searched(**changed) for changed in pair]
        assert alone[0] != alone[1], f"{name}: the two searches are one"
        assert [searched(store, **changed) for changed in pair] == alone, name
        assert len(configs(store)) == before + 2, name
        # Asked again, either is known: nothing new is trained.
        assert [searched(store, **changed, resume=True) for changed in pair] == alone, name
        assert len(configs(store)) == before + 2, name
    assert len(configs(tmp_path / "s.db")) == 24


def test_what_does_not_change_the_losses_does_not_change_the_key() -> None:
    def loss(output: Tensor, target: Tensor) -> Tensor:
        return F.mse_loss(output, target)

    def another_name(output: Tensor, target: Tensor) -> Tensor:
        return F.mse_loss(output, target)

    make = functools.partial(Net, same)
    assert key(make, loss).config == key(make, another_name).config
    # A schedule is its values.
    assert key(make, schedule=lambda step: 0.5).config == key(make, schedule=lambda step: 1.0 / 2.0).config


class Aliased(nn.Module):
    """A network whose second layer is the first, or another just like it."""

    def __init__(self, *, tied: bool) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        if tied:
            self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.last(torch.relu(self.second(torch.relu(self.first(x)))))
        return result


class Doubling(torch.autograd.Function):
    """A function whose gradient is not its derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2.0 * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 5.0 * gradient


class Seven(Doubling):
    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 7.0 * gradient


def hooked(factor: float) -> nn.Module:
    net = Net(same)
    net.first.register_forward_hook(lambda module, given, output: factor * output)
    return net


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (lambda: Aliased(tied=True), lambda: Aliased(tied=False)),
        (lambda: Net(lambda x: Doubling.apply(x)), lambda: Net(lambda x: Seven.apply(x))),  # type: ignore[no-untyped-call]
        (lambda: hooked(1.0), lambda: hooked(2.0)),
        (lambda: Net(lambda x: x if len(x) < 999 else x + 1), lambda: Net(lambda x: x if len(x) < 999 else x + 2)),
        (lambda: Net(lambda x: x + torch.tensor([1.0])), lambda: Net(lambda x: x + torch.tensor([2.0]))),
        (lambda: Net(nn.Softplus(beta=1.0)), lambda: Net(nn.Softplus(beta=2.0))),
    ],
    ids=["ties", "gradients", "hooks", "branches not taken", "tensors made on the way", "settings of layers"],
)
def test_networks_that_compute_other_things_have_other_keys(first: Any, second: Any) -> None:
    assert key(first).config != key(second).config
    assert key(first).config == key(first).config
    assert key(first).unreadable is None


def in_numpy(power: float) -> Loss:
    """Return a loss whose work another library does: no operator of torch is seen, only what comes back."""

    class Powers(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, output: Tensor, target: Tensor) -> Tensor:
            ctx.save_for_backward(output, target)
            return torch.from_numpy(numpy_mean((output.numpy() - target.numpy()), power))

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Any:
            output, target = ctx.saved_tensors
            return gradient * (output - target), None

    return lambda output, target: Powers.apply(output, target)  # type: ignore[no-untyped-call]


def numpy_mean(difference: Any, power: float) -> Any:
    return (abs(difference) ** power).mean(keepdims=True).reshape(())


def test_what_another_library_computes_is_keyed_by_what_comes_back() -> None:
    make = functools.partial(Net, same)
    assert (
        key(make, in_numpy(2.0)).description["computed"]["steps"]
        != (key(make, in_numpy(3.0)).description["computed"]["steps"])
    )


# What cannot be read


class Connected:
    """A loss that holds a connection."""

    def __init__(self) -> None:
        self.reporter = socket.socket()

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        return F.mse_loss(output, target)


def test_a_loss_that_cannot_be_read_shares_its_trials_with_no_other_search(tmp_path: Path) -> None:
    store, loss = tmp_path / "s.db", Connected()
    try:
        for count in (1, 2):
            with pytest.warns(SearchWarning, match=r"loss\.reporter is a socket.*name="):
                searched(store, loss=loss)
            assert len(configs(store)) == count
        with pytest.raises(SearchError, match=r"loss\.reporter is a socket.*\(name=\.\.\.\)"):
            searched(store, loss=loss, resume=True)
        # A name stands for it.
        named = searched(store, loss=loss, name="squares")
        assert searched(store, loss=loss, name="squares", resume=True) == named
        assert len(configs(store)) == 3
        with pytest.raises(SearchError, match="holds no search"):
            searched(store, loss=loss, name="other squares", resume=True)
    finally:
        loss.reporter.close()


def test_a_name_stands_for_code_and_not_for_numbers() -> None:
    make = functools.partial(Net, same)
    named = key(make, name="mine").config
    assert key(make, F.l1_loss, name="mine").config == named
    assert key(make, name="yours").config != named
    assert key(make, name="mine", weight_decay=0.1).config != named
    assert key(make, name="mine", schedule=lambda step: 0.5).config != named
    assert key(lambda: nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 3)), name="mine").config != named


@pytest.mark.parametrize("name", ["", "  ", 3])
def test_a_name_is_words(name: Any) -> None:
    with pytest.raises(InputError, match="name is"):
        searched(name=name)


# Other processes

ADDRESSES = """
import functools, json, sys
import torch
import torch.nn.functional as F
from torch import nn
from evenstep.search import LocalEngine, search_lr

def outer():
    weights = torch.tensor([1.0, 2.0, 3.0])
    def inner(output, target):
        return (weights * (output - target) ** 2).mean()
    return inner

class Sharp:
    kinds = {"soft", "sharp", "blunt", "even"}
    def __init__(self):
        self.delta = 0.5
        self.inner = functools.partial(F.huber_loss, delta=0.25)
    def __call__(self, output, target):
        return self.inner(output, target) + self.delta * F.huber_loss(output, target)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 3)
        self.act = lambda x: torch.tanh(x) if "a" in {"a", "b", "c"} else x
        self.layer.register_forward_hook(lambda module, given, output: 2 * output)
    def forward(self, x):
        return self.act(self.layer(x))

losses = {"partial": functools.partial(F.huber_loss, delta=0.5), "inner": outer(), "instance": Sharp()}
generator = torch.Generator().manual_seed(5)
data = torch.randn(64, 8, generator=generator), torch.randn(64, 3, generator=generator)
answers = {}
for name, loss in losses.items():
    answers[name] = search_lr(Net, data, loss=loss, grid=[0.05, 0.1], epochs=1, seeds=2, batch_size=16,
                              store=sys.argv[1], resume="--resume" in sys.argv, engine=LocalEngine(workers=1),
                              on_failure="return").losses
print(json.dumps(answers))
"""


def test_partials_inner_functions_and_instances_resume_in_a_new_process(tmp_path: Path) -> None:
    """Another order of sets and other addresses, and a script of another name in another folder."""
    answers, store = [], tmp_path / "s.db"
    for place, options in enumerate(([], ["--resume"])):
        script = tmp_path / f"folder{place}" / f"script{place}.py"
        script.parent.mkdir()
        script.write_text(ADDRESSES)
        done = subprocess.run(
            [sys.executable, str(script), str(store), *options],
            capture_output=True,
            text=True,
            check=False,
            env=environment(PYTHONHASHSEED=str(place + 1)),
        )
        assert done.returncode == 0, done.stderr
        answers.append(json.loads(done.stdout))
        assert len(configs(store)) == 3
        assert len(rows(store)) == 3 * 4
    assert answers[0] == answers[1]
    assert all(math.isfinite(loss) for losses in answers[0].values() for seeds in losses for loss in seeds)


def environment(**changed: str) -> dict[str, str]:
    return {**os.environ, **changed}
