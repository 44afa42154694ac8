"""Check that a value's digest follows its content, and nothing else."""

import collections
import copy
import dataclasses
import enum
import functools
import operator
import random
import re
import threading
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from evenstep.search.python_values import Unreadable, ValueReader


def digest(value: Any) -> str:
    return ValueReader().digest(value, "it")


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    size: float = 0.5


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


def doubling(times: int) -> Callable[[int], int]:
    @functools.lru_cache
    def cached(value: int) -> int:
        return value * times

    return cached


def cyclic(value: int) -> list[Any]:
    held: list[Any] = [value]
    held.append(held)
    return held


# Made anew at each call, so that equal digests are of equal contents and not of one object.
PAIRS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "numbers": (lambda: 1, lambda: 1.0),
    "signs of zero": (lambda: 0.0, lambda: -0.0),
    "texts": (lambda: "a", lambda: b"a"),
    "lists": (lambda: [1, [2]], lambda: [1, [3]]),
    "nesting": (lambda: [[1], 2], lambda: [[1, 2]]),
    "kinds": (lambda: (1, 2), lambda: [1, 2]),
    "sets": (lambda: {"a", "b"}, lambda: {"a", "c"}),
    "orders of keys": (lambda: {"a": 1, "b": 2}, lambda: {"b": 2, "a": 1}),
    "cycles": (lambda: cyclic(1), lambda: cyclic(2)),
    "tensors": (lambda: torch.tensor([1.0]), lambda: torch.tensor([2.0])),
    "types of numbers": (lambda: torch.zeros(2), lambda: torch.zeros(2, dtype=torch.float64)),
    "shapes": (lambda: torch.zeros(2, 3), lambda: torch.zeros(3, 2)),
    "views": (lambda: torch.arange(6).reshape(2, 3), lambda: torch.arange(6).reshape(3, 2).T),
    "arrays": (lambda: numpy.array([1, 2]), lambda: numpy.array([1, 3])),
    "objects in arrays": (lambda: numpy.array([1, "a"], dtype=object), lambda: numpy.array([1, "b"], dtype=object)),
    "functions of torch": (lambda: F.gelu, lambda: F.silu),
    "functions of numpy": (lambda: numpy.tanh, lambda: numpy.sin),
    "operators": (lambda: torch.ops.aten.add.Tensor, lambda: torch.ops.aten.mul.Tensor),
    "getters": (lambda: operator.itemgetter(1), lambda: operator.itemgetter(2)),
    "patterns": (lambda: re.compile("a"), lambda: re.compile("b")),
    "caches": (lambda: doubling(2), lambda: doubling(3)),
    "partials": (lambda: functools.partial(F.elu, alpha=1.0), lambda: functools.partial(F.elu, alpha=2.0)),
    "slots": (lambda: Slotted(0.5), lambda: Slotted(0.6)),
    "members": (lambda: Colour.RED, lambda: Colour.BLUE),
    "queues": (lambda: collections.deque([1]), lambda: collections.deque([2])),
    "generators": (lambda: torch.Generator().manual_seed(1), lambda: torch.Generator().manual_seed(2)),
    "random numbers": (lambda: random.Random(1), lambda: random.Random(2)),
    "layers": (lambda: nn.CrossEntropyLoss(label_smoothing=0.1), lambda: nn.CrossEntropyLoss(label_smoothing=0.2)),
    "methods": (lambda: nn.Threshold(1, 0).forward, lambda: nn.Threshold(2, 0).forward),
}


@pytest.mark.parametrize("name", PAIRS)
def test_a_digest_follows_the_content(name: str) -> None:
    first, second = PAIRS[name]
    assert digest(first()) == digest(first())
    assert digest(first()) != digest(second())


def test_global_generators_are_the_same_whatever_was_drawn() -> None:
    before = digest(random.gauss), digest(numpy.random.random)
    state = random.getstate()
    random.random()
    assert (digest(random.gauss), digest(numpy.random.random)) == before
    random.setstate(state)
    assert digest(random.gauss) != digest(random.Random(1).gauss)


@pytest.mark.parametrize("value", [threading.Lock(), (n for n in (1, 2)), [{"deep": threading.Thread()}]])
def test_what_has_no_content_to_read_is_named(value: Any) -> None:
    with pytest.raises(Unreadable, match=r"^it.* is a .*, which has no content to read"):
        digest(value)


def with_gradient() -> Any:
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return 2 * x

    return Doubled


def test_what_is_noted_on_classes_in_use_is_no_part_of_them() -> None:
    """Copies, joined flags, and the count of functions with a gradient: another process has had others."""

    class Plain:
        pass

    class Parts(enum.Flag):
        ONE = 1
        TWO = 2

    before = digest(Plain), digest(Parts)
    copy.deepcopy(Plain())
    assert "__slotnames__" in vars(Plain)
    assert Parts.ONE | Parts.TWO
    assert ~Parts.ONE
    assert (digest(Plain), digest(Parts)) == before
    assert digest(with_gradient()) == digest(with_gradient())
