"""Load the loss that `--loss` names."""

from __future__ import annotations

from typing import Any

from evenstep.cli.target import load_object
from evenstep.errors import InputError


def load_loss(named: str) -> Any:
    """Return the loss that a target, or a name in torch.nn.functional, stands for."""
    if ":" in named:
        return load_object(named, returns="a loss")
    from torch.nn import functional

    is_loss = named.endswith(("_loss", "cross_entropy", "with_logits"))
    found = getattr(functional, named, None) if is_loss else None
    if not callable(found):
        raise InputError(
            f"loss is '{named}'; give one in torch.nn.functional, such as cross_entropy or mse_loss, or "
            "'file.py:function'"
        )
    return found
