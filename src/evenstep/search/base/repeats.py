"""Find the blocks that a network repeats, and those that it can do without."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.nn.utils.parametrize import type_before_parametrizations as _class

from evenstep.search.base.recording import Call, Recording
from evenstep.search.base.skips import Skip, adds_zeros, skips_of

# A recurrent network's blocks are layers inside one module.
_RECURRENT = (nn.LSTM, nn.GRU, nn.RNN)


@dataclass(frozen=True)
class Group:
    """Hold one kind of repeated block, and the skips that leave one of them (or one recurrent layer)."""

    words: str
    skips: tuple[Skip, ...] = ()
    recurrent: str | None = None


@dataclass(frozen=True)
class _Part:
    """Hold a module that runs inside another, with its calls."""

    name: str
    module: nn.Module
    calls: tuple[Call, ...]


def repeated_groups(model: nn.Module, recording: Recording) -> tuple[Group, ...]:
    """Return the groups of repeated blocks, outermost first: a layer of a transformer, not the parts inside it."""
    modules = dict(model.named_modules())
    # In the order in which they first began.
    matrices = [name for name in recording.calls if _matrices(modules[name], deep=False)]
    ends = (matrices[0], matrices[-1]) if matrices else ("", "")
    return tuple(_inside("", model, recording, ends))


def _inside(name: str, module: nn.Module, recording: Recording, ends: tuple[str, str]) -> Iterator[Group]:
    place = {called: number for number, called in enumerate(recording.calls)}
    parts = sorted(_parts(name, module, recording), key=lambda part: place[part.name])
    start = 0
    while start < len(parts):
        found = next(_runs(parts, start, recording, ends), None)
        if found is not None:
            group, length = found
            yield group
            start += length
            continue
        part = parts[start]
        start += 1
        layers = part.module
        if isinstance(layers, nn.RNNBase) and type(layers) in _RECURRENT and layers.num_layers > 1:
            words = f"1 of the {layers.num_layers} layers of {type(layers).__name__} '{part.name}'"
            yield Group(words, recurrent=part.name)
        yield from _inside(part.name, part.module, recording, ends)


def _parts(name: str, module: nn.Module, recording: Recording) -> Iterator[_Part]:
    """Yield the modules that run inside another, looking into those that only hold others, such as lists."""
    for child_name, child in module.named_children():
        path = f"{name}.{child_name}" if name else child_name
        count = len(recording.calls.get(path, ()))
        if count == 0:
            yield from _parts(path, child, recording)
        elif count == 1 or any(True for _ in child.parameters()):  # an activation that runs often is like a function
            yield _Part(path, child, recording.calls[path])


def _runs(
    parts: Sequence[_Part], start: int, recording: Recording, ends: tuple[str, str]
) -> Iterator[tuple[Group, int]]:
    """Yield groups of repeats that begin at a part, with the parts that they span, the longest first."""
    found: list[tuple[list[Sequence[_Part]], bool]] = []
    for period in range(1, (len(parts) - start) // 2 + 1):
        count = _count(parts, start, period)
        places = [start + shift for shift in range(period) if _matrices(parts[start + shift].module)]
        if count > 1 and places:
            # In a chain a matrix goes with the norm after it, so repeats begin with a matrix if they can.
            chain = start in places or all(_count(parts, at, period) < count for at in places)
            repeats = [parts[start + place * period : start + (place + 1) * period] for place in range(count)]
            found.append((repeats, chain))
    for repeats, chain in sorted(found, key=lambda run: _preference(run[0])):
        period, count = len(repeats[0]), len(repeats)
        left_out = [each for repeat in _inner(repeats, ends) if (each := _skips(repeat, recording, chain=chain))]
        if left_out:
            skips = tuple(skip for each in left_out for skip in each)
            kind = "branches" if adds_zeros(skips) else "blocks" if period == 1 else "repeats"
            words = f"{count - len(left_out)} of its {count} {kind} {_words(repeats, parts)}"
            yield Group(words, skips), period * count


def _preference(repeats: list[Sequence[_Part]]) -> tuple[int, bool, int]:
    """Rank repeats: the longest first, then those whose names count one thing: layers, not layers' experts."""

    def counts_one_thing(names: tuple[str, ...]) -> bool:
        paths = [name.split(".") for name in names]
        same_depth = len({len(path) for path in paths}) == 1
        return same_depth and sum(len(set(step)) > 1 for step in zip(*paths, strict=True)) == 1

    named = zip(*([part.name for part in repeat] for repeat in repeats), strict=True)
    return -len(repeats) * len(repeats[0]), not all(map(counts_one_thing, named)), len(repeats[0])


def _skips(repeat: Sequence[_Part], recording: Recording, *, chain: bool) -> tuple[Skip, ...]:
    """Return the skips that leave a repeat out, or none if they differ between its runs."""
    runs = zip(*(part.calls for part in repeat), strict=True)
    names = [part.name for part in repeat]
    first, *others = (skips_of(dict(zip(names, calls, strict=True)), recording, chain=chain) for calls in runs)
    return first if all(other == first for other in others) else ()


def _count(parts: Sequence[_Part], start: int, period: int) -> int:
    """Return how often the parts from `start` run, including the first time."""
    count = 1
    while (end := start + (count + 1) * period) <= len(parts):
        repeat = parts[end - period : end]
        if not all(_covers(one, two) for one, two in zip(parts[start : start + period], repeat, strict=True)):
            break
        count += 1
    return count


def _covers(kept: _Part, other: _Part) -> bool:
    """Say whether one module has everything that another has: weight sizes, and the same classes in the same places.

    A stage's first block, which halves the field, covers the others.
    """
    if len(kept.calls) != len(other.calls) or _class(kept.module) is not _class(other.module):
        return False
    theirs, ours = dict(other.module.named_modules()), dict(kept.module.named_modules())
    if not all(_alike(ours[name], theirs[name]) for name in ours.keys() & theirs.keys()):
        return False
    if not _matrices(other.module):
        return _shapes(kept.module, 0) == _shapes(other.module, 0)
    return _shapes(other.module, 2) <= _shapes(kept.module, 2)


def _alike(one: nn.Module, other: nn.Module) -> bool:
    """Say whether two modules are of one kind: the same class, strings, flags and functions, and trainable parameters.

    Numbers do not count, because they often tell a layer's place.
    """
    if nn.Identity in (type(one), type(other)):  # an Identity may be dropout in later layers
        return True
    if _class(one) is not _class(other) or _flags(one) != _flags(other):
        return False
    theirs = dict(other.named_parameters(recurse=False))
    frozen = ((p.requires_grad, theirs[n].requires_grad) for n, p in one.named_parameters(recurse=False) if n in theirs)
    return all(ours == others for ours, others in frozen)


def _flags(module: nn.Module) -> dict[str, Any]:
    held = {name: value for name, value in vars(module).items() if isinstance(value, str | bool) and name != "training"}
    return held | {name: _function(value) for name, value in vars(module).items() if callable(value)}


def _function(function: Callable[..., Any]) -> Any:
    """Return a function's identity: functions written in one place that hold the same values are one."""
    if isinstance(function, functools.partial):
        return _function(function.func), function.args, tuple(function.keywords.items())
    plain = getattr(function, "__func__", function)  # blocks share their class's methods
    code = getattr(plain, "__code__", None)
    if code is None:
        return plain if hasattr(plain, "__name__") else type(plain)
    held = (cell.cell_contents for cell in getattr(plain, "__closure__", None) or ())
    return code, tuple(_function(value) for value in held if callable(value) and not isinstance(value, nn.Module))


def _shapes(module: nn.Module, dimensions: int) -> set[tuple[int, ...]]:
    return {tuple(p.shape) for p in module.parameters() if p.dim() >= dimensions}


def _matrices(module: nn.Module, *, deep: bool = True) -> int:
    return sum(parameter.dim() > 1 for parameter in module.parameters(recurse=deep))


def _inner(repeats: list[Sequence[_Part]], ends: tuple[str, str]) -> list[Sequence[_Part]]:
    """Return the inner repeats: single matrices at the network's ends are its stem and readout, not blocks."""
    first, last = 1, len(repeats)
    if sum(_matrices(part.module) for part in repeats[0]) == 1:
        first += any(_holds(part, ends[0]) for part in repeats[0])
        last -= any(_holds(part, ends[1]) for part in repeats[-1])
    return repeats[first:last]


def _holds(part: _Part, name: str) -> bool:
    return name == part.name or name.startswith(f"{part.name}.")


def _words(repeats: list[Sequence[_Part]], parts: Sequence[_Part]) -> str:
    first, *_, last = repeats
    if len(first) > 1:
        kinds = ", ".join(type(part.module).__name__ for part in first)
        return f"of ({kinds}) from '{first[0].name}' to '{last[-1].name}'"
    holder = first[0].name.rpartition(".")[0]
    if holder and sum(part.name.rpartition(".")[0] == holder for part in parts) == len(repeats):
        return f"'{holder}.*'"
    return f"'{first[0].name}' to '{last[0].name}'"
