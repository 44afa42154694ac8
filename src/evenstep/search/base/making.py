"""Make a base of the user's own network: the same inputs, stem, outputs and width, and one block of each kind."""

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
    """Make a small network of the user's kind at each call; `search_lr` takes it in the place of a function.

    `words` say what was left of the user's network, `share` what a step costs relative to one of that network: the part
    of the multiplications in a forward pass.
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
        """Travel with a template that pickle takes."""
        return _arrived, (*packed(self.template), self.words, self.share)


def _arrived(template: nn.Module, names: list[str], words: str, share: float) -> Base:
    return Base(unpacked_(template, names), words, share)


def base_of(model: nn.Module, example_inputs: Any, *, example_kwargs: Mapping[str, Any] | None = None) -> Base:
    """Return a base for a network, made of the network itself: of the blocks that it repeats, one of each kind is left.

    The network runs once on the example inputs, which come as `plan` takes them. A block is left out where another of
    its kind ran before it, what it returns has the shape of what it takes, and nothing else reads what it takes; the
    stream then passes its place unchanged. Where what it returns is added to the stream outside it, zeros are added
    instead. Recurrent modules keep their first layer. Inputs, outputs, stem, readout,
    width and ties stay. A network in which nothing repeats is its own base, and so is one that cannot do without what
    it repeats. The network itself is not touched, nor are random states.

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
        warnings.simplefilter("ignore")  # whoever trains or plans the network hears all this there
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
            f"{type(model).__name__} cannot be copied, and its base is made of a copy: {reason}; write a function that "
            "makes a small network of its kind, and give that to search_lr"
        ) from error


@dataclass(frozen=True)
class _Behaviour:
    """Hold what a network does on its inputs: the form of its output, and which parameters get a gradient."""

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
        """Say whether a reduced network does the same with what is left of it."""
        try:
            other = _Behaviour.of(model, args, kwargs)
        except Exception:
            return False
        names = {name for name, _ in model.named_parameters()}
        return other.form == self.form and other.trained == self.trained & names


def _possible(
    model: nn.Module, groups: tuple[Group, ...], wanted: _Behaviour, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Group, ...]:
    """Return the groups that the network can do without: all, or those that do no harm one after the other."""

    @functools.cache
    def planned() -> bool:
        return _can_be_planned(model, args, kwargs)

    def fit(chosen: tuple[Group, ...]) -> bool:
        small = reduced(model, chosen)
        # A network that no plan is made of is none the better for a larger base.
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
    """Return the kinds, shapes and types in an output; of an object such as a cache, its kind alone."""
    if isinstance(output, Tensor):
        return tuple(output.shape), str(output.dtype)
    return type(output).__name__, tuple((name, _form(part)) for name, part in parts_of(output))


def _cost(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
    """Return the multiplications of a forward pass, or where none can be counted the number of parameters."""
    # Fused recurrent kernels are not counted; what they are made of is.
    plain = torch.backends.mkldnn.flags(enabled=False), torch.backends.cudnn.flags(enabled=False)
    with plain[0], plain[1], FlopCounterMode(display=False) as counter:
        run(copied(model), args, kwargs)
    return float(counter.get_total_flops() or sum(parameter.numel() for parameter in model.parameters()) or 1)
