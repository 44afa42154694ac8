"""Say what replaces modules that are left out: the stream itself, or zeros for what was added to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from evenstep.search.base.branches import is_added
from evenstep.search.base.recording import Call, Flow, Place, Recording, flows_of


@dataclass(frozen=True)
class Skip:
    """Name a module to leave out, and what it returns instead: an argument or zeros for each tensor."""

    name: str
    returned: Any


@dataclass(frozen=True)
class Argument:
    """Stand for an argument, by its place."""

    place: Place


@dataclass(frozen=True)
class Size:
    """Stand for the size of an argument along a dimension."""

    dimension: int


@dataclass(frozen=True)
class Zeros:
    """Stand for zeros made from an argument: of its type, unless one is named, and of its sizes."""

    place: Place
    sizes: tuple[int | Size, ...]
    dtype: torch.dtype | None = None


def skips_of(calls: Mapping[str, Call], recording: Recording, *, chain: bool) -> tuple[Skip, ...]:
    """Return the skips that leave a repeat, given by its modules' calls, out of the stream; none if that is impossible.

    Either the stream passes it unchanged (only if it may be part of a `chain`), or its results are added to the stream,
    and zeros are added instead. In a layer with norms after the sums, the stream passes the norms, and zeros are added
    before them.
    """
    if chain and (passed := _passed(calls, recording)):
        return passed
    carried = {
        name: skip for name, call in calls.items() if len(calls) > 1 and chain for skip in _block(name, call, recording)
    }
    added = {name: call for name, call in calls.items() if name not in carried}
    zeros = {name: _zeros(call.returned, call.taken) for name, call in added.items()}
    if not added or None in zeros.values() or not is_added(tuple(added.values()), recording):
        return ()
    return tuple(carried.get(name) or Skip(name, zeros[name]) for name in calls)


def adds_zeros(skips: Sequence[Skip]) -> bool:
    """Say whether zeros replace everything that is left out."""
    return not any(isinstance(form, Argument) for skip in skips for form in _leaves(skip.returned))


def _leaves(form: Any) -> list[Any]:
    return [leaf for part in form for leaf in _leaves(part)] if isinstance(form, list | tuple) else [form]


def _passed(calls: Mapping[str, Call], recording: Recording) -> tuple[Skip, ...]:
    """Return the skips that let the stream pass a repeat unchanged; none if others read it or its shape changes."""
    if len(calls) == 1:
        ((name, call),) = calls.items()
        return _block(name, call, recording)
    streams = [(name, place, call) for name, call in calls.items() for place in list(call.taken)[:1]]
    if len(streams) < len(calls) or not all(isinstance(call.returned, Flow) for *_, call in streams):
        return ()
    _, place, first = streams[0]
    into, flows = first.taken[place], [call.returned for *_, call in streams]
    # Pass each module: around the first of a repeat with its norm after the sum, the stream would meet itself.
    changed = [flow for flow in flows if flow.maker is not into.maker]
    if not changed or not into.like(flows[-1]) or not all(recording.carries_alone(into, flow, ()) for flow in changed):
        return ()
    return tuple(Skip(name, Argument(place)) for name, place, _ in streams)


def _block(name: str, call: Call, recording: Recording) -> tuple[Skip, ...]:
    matched = _matched(call.returned, call.taken)
    if matched is None:
        return ()
    returned, (into, out), unmatched = matched
    besides = tuple(flow for flow in call.taken.values() if flow is not into)
    clean = all(recording.carries_alone(flow, out, besides) for flow in (into, *unmatched))
    return (Skip(name, returned),) if clean else ()


def _matched(returned: Any, taken: Mapping[Place, Flow]) -> tuple[Any, tuple[Flow, Flow], list[Flow]] | None:
    """Return an argument for each returned tensor, the stream, and the results that no argument is like.

    The stream is the first result that was changed. An argument that is passed on stands for itself. Any other result
    takes the first argument of its shape and type, or None if there is none, as for attention weights that a block
    returns for inspection.
    """
    free = dict(taken)
    flows = list(flows_of(returned))
    places: dict[int, Place] = {}
    for same in (lambda a, b: a.maker is not None and a.maker is b.maker, Flow.like):
        for number, flow in enumerate(flows):
            place = next((place for place, given in free.items() if same(flow, given)), None)
            if number not in places and place is not None:
                places[number] = place
                del free[place]
    changed = [n for n in sorted(places) if taken[places[n]].maker is not flows[n].maker]
    if not changed:
        return None
    numbers = iter(range(len(flows)))

    def form(value: Any) -> Any:
        if isinstance(value, Flow):
            number = next(numbers)
            return Argument(places[number]) if number in places else None
        return type(value)(form(part) for part in value) if type(value) in (list, tuple) else value

    unmatched = [flow for number, flow in enumerate(flows) if number not in places]
    return form(returned), (taken[places[changed[0]]], flows[changed[0]]), unmatched


def _zeros(returned: Any, taken: Mapping[Place, Flow]) -> Any:
    """Return zeros for each returned tensor, or None if no argument tells their sizes."""
    if type(returned) in (list, tuple):
        forms = [_zeros(part, taken) if isinstance(part, Flow | list | tuple) else part for part in returned]
        unknown = any(form is None and part is not None for form, part in zip(forms, returned, strict=True))
        return None if unknown else type(returned)(forms)
    if not isinstance(returned, Flow) or not taken:
        return None

    def likeness(place: Place) -> tuple[bool, int]:
        sizes = _sizes(returned, taken[place])
        return taken[place].dtype == returned.dtype, sum(isinstance(size, Size) for size in sizes)

    place = max(taken, key=likeness)  # the first of those most like it
    dtype = None if taken[place].dtype == returned.dtype else returned.dtype
    return Zeros(place, _sizes(returned, taken[place]), dtype)


def _sizes(returned: Flow, given: Flow) -> tuple[int | Size, ...]:
    """Return a result's sizes; sizes that its argument shares stay the argument's in other batches."""
    return tuple(
        Size(dimension) if given.shape[dimension : dimension + 1] == (size,) else size
        for dimension, size in enumerate(returned.shape)
    )
