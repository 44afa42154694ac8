"""Keep what modules share when they move: tied parameters, shared buffers, parametrised weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from evenstep.search.randomness import copied


def move_(model: nn.Module, device: torch.device, *, channels_last: bool = False) -> nn.Module:
    """Move a module to a device; a buffer that several modules share stays shared.

    `Module.to` keeps parameters tied, because it refills them, but replaces every buffer by a new tensor.
    """
    shared = _shared_buffers(model)
    model = model.to(device)
    if channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    for places in shared:
        (first, name), *others = places
        for module, other in others:
            module._buffers[other] = first._buffers[name]
    return model


def _shared_buffers(model: nn.Module) -> list[list[tuple[nn.Module, str]]]:
    """Return the places (module, name) of every buffer that has more than one."""
    places: dict[int, list[tuple[nn.Module, str]]] = {}
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if isinstance(buffer, Tensor):
                places.setdefault(id(buffer), []).append((module, name))
    return [several for several in places.values() if len(several) > 1]


def packed(model: nn.Module) -> tuple[nn.Module, list[str]]:
    """Return a module that pickle accepts, and the names of the parts that `unpacked_` has to make parametrised again.

    The class of a parametrised module is made at run time and refuses to be pickled. Any other module is returned
    unchanged.
    """
    if not any(_parametrised(model)):
        return model, []
    plain = copied(model)
    names = [name for name, _ in _parametrised(plain)]
    for name in names:
        module = plain.get_submodule(name)
        module.__class__ = parametrize.type_before_parametrizations(module)
        module._load_state_dict_pre_hooks.clear()  # torch's hooks for states of older versions, which pickle refuses
    return plain, names


def unpacked_(model: nn.Module, names: Sequence[str]) -> nn.Module:
    """Make the named parts of a module parametrised again."""
    for name in names:
        module = model.get_submodule(name)
        lists = module._modules["parametrizations"]
        assert isinstance(lists, nn.ModuleDict)
        parametrize._inject_new_class(module)
        for tensor in lists:
            parametrize._inject_property(module, tensor)
    return model


def _parametrised(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    return ((name, module) for name, module in model.named_modules() if parametrize.is_parametrized(module))
