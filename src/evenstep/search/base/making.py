"""Make a base from the user's network: the same inputs, stem, outputs and width, and one block of each kind."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from evenstep.errors import EvenstepError, InputError
from evenstep.module.exported import check_parameters, explained, split_inputs
from evenstep.module.planning import plan
from evenstep.planning.unwrap import unwrapped
from evenstep.search.base.recording import parts_of, record, run
from evenstep.search.base.repeats import Group, repeated_groups
from evenstep.search.base.surgery import reduced
from evenstep.search.copying import require_copies
from evenstep.search.randomness import copied
from evenstep.search.sharing import packed, unpacked_


@dataclass(frozen=True, repr=False)
class Base:
    """Make a small version of the user's network at each call; `search_lr` takes it like any function.

    `words` says what is left of the user's network. `share` is the cost of a step relative to that network's, measured
    in multiplications of a forward pass.
    """

    template: nn.Module
    words: str
    share: float

    def __call__(self) -> nn.Module:
        """Return a new copy of the network."""
        return copied(self.template)

    def __repr__(self) -> str:
        """Return what the base is, and its share of the cost."""
        return f"Base({self.words}; {self.share:.2g} of its cost)"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle with a template that pickle accepts."""
        return _arrived, (*packed(self.template), self.words, self.share)


def _arrived(template: nn.Module, names: list[str], words: str, share: float) -> Base:
    return Base(unpacked_(template, names), words, share)


def base_of(model: nn.Module, example_inputs: Any, *, example_kwargs: Mapping[str, Any] | None = None) -> Base:
    """Make a base from a network itself: of the blocks that it repeats, keep one of each kind.

    Inputs, outputs, stem, readout, width and ties stay. A network in which nothing repeats, or that cannot do without
    its repeats, is its own base. The network and all random states stay as they are.

    The network runs once on the example inputs, which have the form that `plan` takes. A block is left out if:

    - another block of its kind ran before it,
    - its result has the shape of its input, and
    - nothing else reads its input.

    The stream then passes its place unchanged. If the block's result is added to the stream outside the block, zeros
    are added instead. Recurrent modules keep their first layer.

    >>> chain = [layer for _ in range(6) for layer in (nn.Linear(16, 16), nn.ReLU())]
    >>> base_of(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), *chain, nn.Linear(16, 2)), torch.zeros(4, 8))
    Base(Sequential with 1 of its 6 repeats of (Linear, ReLU) from '2' to '13'; 0.25 of its cost)
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"the model is {type(model).__name__}; give a torch.nn.Module")
    model = unwrapped(model)
    args, kwargs = split_inputs(example_inputs, example_kwargs)
    check_parameters(model)
    require_copies(model)
    kind = type(model).__name__
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # training or planning the network repeats these warnings
        whole = _copy_of(model)
        try:
            wanted = _Behaviour.of(whole, args, kwargs)
            recording = record(whole, args, kwargs)
        except Exception as error:
            raise explained(model, args, kwargs, error) from error
        groups = _possible(whole, repeated_groups(whole, recording), wanted, args, kwargs)
        template = reduced(whole, groups)
        share = min(_cost(template, args, kwargs) / _cost(whole, args, kwargs), 1.0) if groups else 1.0
    left = ", ".join(group.words for group in groups)
    return Base(
        template, f"{kind} with {left}" if groups else f"{kind} itself, of which no block can be left out", share
    )


def _copy_of(model: nn.Module) -> nn.Module:
    try:
        return copied(model)
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise InputError(
            f"{type(model).__name__} cannot be copied, but a base is made from a copy: {reason}; write a function that "
            "makes a small network of its kind, and give it to search_lr"
        ) from error


@dataclass(frozen=True)
class _Behaviour:
    """Hold how a network behaves on its inputs: the form of its output, and which parameters get a gradient."""

    form: Any
    trained: frozenset[str]

    @classmethod
    def of(cls, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Behaviour:
        """Run a copy of a network forward and backward."""
        model = copied(model)
        with torch.enable_grad():
            return cls._of_copy(model, args, kwargs)

    @classmethod
    def _of_copy(cls, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Behaviour:
        output = run(model, args, kwargs)
        total = sum(tensor.sum() for tensor in _differentiable(output))
        named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        gradients: tuple[Tensor | None, ...] = ()
        if isinstance(total, Tensor) and named:
            gradients = torch.autograd.grad(total, list(named.values()), allow_unused=True)
        trained = (name for name, gradient in zip(named, gradients, strict=False) if gradient is not None)
        return cls(_form(output), frozenset(trained))

    def lasts_in(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Say whether a reduced network behaves the same, with the parameters that it has left."""
        try:
            other = _Behaviour.of(model, args, kwargs)
        except Exception:
            return False
        names = {name for name, _ in model.named_parameters()}
        return other.form == self.form and other.trained == self.trained & names


def _possible(
    model: nn.Module, groups: tuple[Group, ...], wanted: _Behaviour, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Group, ...]:
    """Return the groups that the network can do without: all of them, or those that can go one after the other."""

    @functools.cache
    def planned() -> bool:
        return _can_be_planned(model, args, kwargs)

    def fit(chosen: tuple[Group, ...]) -> bool:
        small = reduced(model, chosen)
        # If the network itself cannot be planned, a larger base does not help.
        return wanted.lasts_in(small, args, kwargs) and (_can_be_planned(small, args, kwargs) or not planned())

    if not groups or fit(groups):
        return groups
    kept: tuple[Group, ...] = ()
    for group in groups if len(groups) > 1 else ():
        if fit((*kept, group)):
            kept = (*kept, group)
    return kept


def _can_be_planned(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    try:
        plan(model, args, example_kwargs=kwargs, on_unknown="identity", measure=False)
    except EvenstepError:
        return False
    return True


def _differentiable(output: Any) -> list[Tensor]:
    if isinstance(output, Tensor):
        return [output] if output.requires_grad and output.is_floating_point() else []
    return [tensor for _, part in parts_of(output) for tensor in _differentiable(part)]


def _form(output: Any) -> Any:
    """Return the kinds, shapes and types in an output; for an object such as a cache, only its kind."""
    if isinstance(output, Tensor):
        return tuple(output.shape), str(output.dtype)
    return type(output).__name__, tuple((name, _form(part)) for name, part in parts_of(output))


def _cost(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
    """Return the multiplications of a forward pass, or the number of parameters if none can be counted."""
    # Fused recurrent kernels are not counted, but their parts are.
    plain = torch.backends.mkldnn.flags(enabled=False), torch.backends.cudnn.flags(enabled=False)
    with plain[0], plain[1], FlopCounterMode(display=False) as counter:
        run(copied(model), args, kwargs)
    return float(counter.get_total_flops() or sum(parameter.numel() for parameter in model.parameters()) or 1)
