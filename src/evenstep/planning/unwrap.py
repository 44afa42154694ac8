"""Names of parameters as the user's module has them, whatever is wrapped around it.

Modules are recognised by their attributes, so that plans and their groups need no torch.
"""

from __future__ import annotations

from typing import Any

# Path components that wrappers insert between a module and its parameters.
_WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
# This wrapper makes parameters pieces of one flat tensor, without their shapes.
FLATTENED = "FullyShardedDataParallel"
_PARALLEL = ("DistributedDataParallel", "DataParallel")


def is_module(value: Any) -> bool:
    """Return whether a value is a torch module."""
    return hasattr(value, "named_parameters") and hasattr(value, "named_modules")


def unwrapped(model: Any) -> Any:
    """Return the module inside `torch.compile`, `DistributedDataParallel` or `DataParallel`."""
    while True:
        if type(model).__name__ in _PARALLEL and is_module(inner := getattr(model, "module", None)):
            model = inner
        elif is_module(inner := getattr(model, "_orig_mod", None)):
            model = inner
        else:
            return model


def is_sharded(tensor: Any) -> bool:
    """Return whether a tensor is sharded over several devices, as `fully_shard` does with parameters."""
    # By its attributes: the module of its class takes long to load and is not part of every build of torch.
    return hasattr(tensor, "device_mesh") and hasattr(tensor, "placements")


def sharded_by(model: Any) -> str | None:
    """Return the name of the wrapper that shards a module's parameters over devices; None if none does."""
    if any(type(module).__name__ == FLATTENED for module in model.modules()):
        return FLATTENED
    return "fully_shard" if any(is_sharded(parameter) for parameter in model.parameters()) else None


def own_name(name: str) -> str:
    """Return a parameter's name without the components that wrappers insert."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def named_parameters(model: Any) -> dict[str, Any]:
    """Return the parameters of the module inside all wrappers by name, tied ones once."""
    return {own_name(name): parameter for name, parameter in unwrapped(model).named_parameters()}
