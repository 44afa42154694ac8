"""Names of parameters as the user's own module has them, whatever has been wrapped around it."""

from __future__ import annotations

from torch import nn

# Path components that wrappers put between a module and its parameters.
_WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
_PARALLEL = ("DistributedDataParallel", "DataParallel")


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the module inside `torch.compile`, `DistributedDataParallel` or `DataParallel`."""
    while True:
        if type(model).__name__ in _PARALLEL and isinstance(inner := getattr(model, "module", None), nn.Module):
            model = inner
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        else:
            return model


def own_name(name: str) -> str:
    """Return a parameter's name without wrappers' components inside it."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def named_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters of the module inside all wrappers, tied ones once, by their own names."""
    return {own_name(name): parameter for name, parameter in unwrapped(model).named_parameters()}
