"""What a network, a loss or a schedule keeps to itself trains right, or is refused."""

import enum
import functools
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import evenstep as es
from evenstep.search import LocalEngine
from evenstep.search.engines.batching import Batching
from evenstep.search.python_values import ValueReader
from tests.search import plain

torch.set_num_threads(1)

DATA = plain.images(48)
OPTIONS: dict[str, Any] = {"epochs": 1, "seeds": 2, "batch_size": 12, "grid": [0.05, 0.1, 0.2], "on_failure": "return"}


class In:
    """The engine of this process, with a form that is given."""

    def __init__(self, kind: Any, chunk: int) -> None:
        self.local, self.batching = LocalEngine(workers=1), Batching(kind, chunk)

    def choose(self, *_: Any) -> Batching:
        return self.batching

    def run(self, *arguments: Any) -> Any:
        return self.local.run(*arguments)

    def close(self) -> None: ...


def contrastive(output: Tensor, target: Tensor) -> Tensor:
    """A loss of pairs of a batch, and so of its size."""
    del target
    similar = F.normalize(output, dim=1) @ F.normalize(output, dim=1).T
    return F.cross_entropy(10 * similar, torch.arange(len(output)))


@pytest.mark.parametrize("loss", [contrastive, functools.partial(F.cross_entropy, reduction="sum")])
def test_a_loss_of_whole_batches_is_the_same_in_any_company(loss: Any) -> None:
    found = [
        es.search_lr(plain.mlp, DATA, loss=loss, engine=In(kind, chunk), **OPTIONS).losses
        for kind, chunk in (("single", 1), ("stacked", 2), ("stacked", 5), ("stacked", 6))
    ]
    for losses in found[1:]:
        assert [x for row in losses for x in row] == pytest.approx([x for row in found[0] for x in row], rel=1e-4)


class Fades(nn.Module):
    """A buffer that every step puts another tensor in the place of."""

    size: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.body = plain.mlp()
        self.register_buffer("size", torch.tensor(1.0))

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.size * self.body(x)
        if self.training:
            self.size = 0.7 * self.size
        return output


def test_buffers_that_are_replaced_train_as_in_a_plain_loop() -> None:
    by_default, single = (
        es.search_lr(Fades, DATA, engine=engine, **OPTIONS).losses
        for engine in (LocalEngine(workers=1), In("single", 1))
    )
    assert by_default == single


def hooked() -> nn.Module:
    model = plain.mlp()
    next(model.parameters()).register_hook(lambda gradient: 10 * gradient)  # type: ignore[no-untyped-call]
    return model


class HoldsItself(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = plain.mlp()
        self.drop = lambda x: F.dropout(x, 0.5, self.training)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.drop(self.body(x))  # type: ignore[no-untyped-call]
        return output


@pytest.mark.parametrize(
    ("make", "words"),
    [(hooked, r"has a hook on its gradient"), (HoldsItself, r"'drop' of HoldsItself is or has a function that holds")],
)
def test_what_copies_would_lose_is_refused(make: Callable[[], nn.Module], words: str) -> None:
    with pytest.raises(es.InputError, match=words):
        es.search_lr(make, DATA, **OPTIONS)


def test_a_schedule_that_counts_its_calls_is_refused() -> None:
    calls = itertools.count()
    with pytest.raises(es.InputError, match=r"the schedule returns .* when called again; give a function of"):
        es.search_lr(plain.mlp, DATA, schedule=lambda step: 0.9 ** next(calls), **OPTIONS)


def test_what_workers_would_see_otherwise_is_trained_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "of_mine.py").write_text(
        "import torch.nn.functional as F\nSHARE = 1.0\n"
        "def loss(output, target):\n    return SHARE * F.cross_entropy(output, target)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    of_mine: Any = __import__("of_mine")
    try:
        options = OPTIONS | {"loss": of_mine.loss}
        assert es.search_lr(plain.mlp, DATA, engine=LocalEngine(workers=2), **options).losses
        of_mine.SHARE = 5.0
        words = r"train in one process: .* reads 'of_mine\.SHARE', which is not in a new process what it is in yours"
        with pytest.warns(es.SearchWarning, match=words) as told:
            there = es.search_lr(plain.mlp, DATA, engine=LocalEngine(workers=2), **options)
        assert len(told) == 1
        assert there.losses == es.search_lr(plain.mlp, DATA, engine=LocalEngine(workers=1), **options).losses
    finally:
        del sys.modules["of_mine"]


# Keys


class Mode(enum.Enum):
    ONE = 1


class OtherMode(enum.Enum):
    ONE = 2


OtherMode.__qualname__ = Mode.__qualname__


class Wraps:
    def __init__(self, threshold: float) -> None:
        functools.update_wrapper(self, F.cross_entropy)
        self.threshold = threshold

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(output, target).clamp(min=self.threshold)


def with_attribute(value: Any) -> nn.Module:
    model = nn.Linear(2, 2)
    model._forward_mode = value  # looks like one of torch's own
    return model


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Mode.ONE, OtherMode.ONE),
        (Wraps(0.0), Wraps(0.6)),
        *((with_attribute(a), with_attribute(b)) for a, b in (("ab", "ba"), (["a", "b"], ["b", "a"]), (0.5, 1.0))),
    ],
    ids=["enum", "wrapper", "text", "list", "number"],
)
def test_values_that_differ_have_different_digests(one: Any, other: Any) -> None:
    if isinstance(one, nn.Module):
        names = {id(tensor): name for model in (one, other) for name, tensor in model.named_parameters()}
    else:
        names = {}
    assert ValueReader(names).digest(one, "value") != ValueReader(names).digest(other, "value")
