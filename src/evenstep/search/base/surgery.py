"""Take blocks out of a copy of a network: the stream passes through their place, or zeros are added to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from evenstep.search.base.repeats import Group
from evenstep.search.base.skips import Argument, Size, Zeros
from evenstep.search.randomness import copied, own_randomness


class PassThrough(nn.Module):
    """Return arguments unchanged, or zeros, in the form of a block's results."""

    def __init__(self, returned: Any, kept: Mapping[str, Any]) -> None:
        super().__init__()
        for name, value in kept.items():  # networks read attributes of their blocks
            setattr(self, name, value)
        self._returned = returned

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the arguments or zeros that replace the block's results."""
        return _filled(self._returned, args, kwargs)


def _filled(form: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if isinstance(form, Argument | Zeros):
        given = args[form.place] if isinstance(form.place, int) else kwargs[form.place]
        return given if isinstance(form, Argument) else _zeros(form, given)
    if isinstance(form, list | tuple):
        return type(form)(_filled(part, args, kwargs) for part in form)
    return form


def _zeros(form: Zeros, given: Tensor) -> Tensor:
    sizes = [given.shape[size.dimension] if isinstance(size, Size) else size for size in form.sizes]
    return given.new_zeros(sizes, dtype=form.dtype or given.dtype)


def reduced(model: nn.Module, groups: Iterable[Group]) -> nn.Module:
    """Return a copy of a network without the blocks that the groups leave out."""
    model = copied(model)
    for group in groups:
        for skip in group.skips:
            block = model.get_submodule(skip.name)
            _replace_(model, block, PassThrough(skip.returned, _plain_attributes(block)).train(block.training))
        if group.recurrent is not None:
            layers = model.get_submodule(group.recurrent)
            assert isinstance(layers, nn.RNNBase)
            _replace_(model, layers, _first_layer(layers))
    for parameter in model.parameters():
        parameter.grad = None
    return model


def _plain_attributes(block: nn.Module) -> dict[str, Any]:
    held = vars(block).items()
    return {name: value for name, value in held if name[0] != "_" and isinstance(value, bool | int | float | str)}


def _replace_(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Put a module into every place of another, because a module may be registered twice."""
    for module in list(model.modules()):
        for name, child in module._modules.items():
            if child is old:
                module._modules[name] = new


def _first_layer(layers: nn.RNNBase) -> nn.RNNBase:
    """Return a recurrent module of one layer, with the first layer's parameters."""
    options: dict[str, Any] = {"nonlinearity": layers.nonlinearity} if isinstance(layers, nn.RNN) else {}
    if isinstance(layers, nn.LSTM):
        options["proj_size"] = layers.proj_size
    with own_randomness(0):
        make: Any = type(layers)
        single: nn.RNNBase = make(
            layers.input_size,
            layers.hidden_size,
            bias=layers.bias,
            batch_first=layers.batch_first,
            bidirectional=layers.bidirectional,
            **options,
        )
    for name in list(dict(single.named_parameters())):
        setattr(single, name, getattr(layers, name))
    return single.train(layers.training)
