"""Run a module without changing the state of any random number generator, and decide whether it drops layers.

A single number is drawn to decide something, usually whether to skip a layer. Whether the layer stays for low or for
high numbers is not known, so the caller sets the level of all such draws and compares.
"""

from __future__ import annotations

import random
import sys
from contextlib import ExitStack
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

LOW, HIGH = 2.0**-20, 1.0 - 2.0**-20  # below and above every drop rate
_PYTHON = ("random", "uniform")
_NUMPY = ("random", "random_sample", "uniform", "rand")


class Draws(TorchFunctionMode):
    """Set every single number that torch, Python or numpy draws from 0 to 1 to `level`; `drew` says if there was one.

    All generators are restored afterwards, and inside they always start from the same state.
    """

    def __init__(self, model: nn.Module, level: float = HIGH) -> None:
        super().__init__()
        self.level, self.drew = level, False
        self.devices = sorted({p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"})
        self.opened = ExitStack()

    def __enter__(self) -> Draws:
        """Save the generators' states and watch the draws."""
        numpy = getattr(sys.modules.get("numpy"), "random", None)
        with ExitStack() as stack:
            stack.callback(random.setstate, random.getstate())
            if numpy is not None:
                stack.callback(numpy.set_state, numpy.get_state())
                numpy.seed(0)
            stack.enter_context(torch.random.fork_rng(devices=self.devices))
            torch.default_generator.manual_seed(0)  # torch.manual_seed would also seed devices that are not saved
            for device in self.devices:
                torch.cuda.default_generators[device].manual_seed(0)
            random.seed(0)
            for owner, names in ((random, _PYTHON), (numpy, _NUMPY)):
                for name in names if owner is not None else ():
                    draw = getattr(owner, name)
                    stack.callback(setattr, owner, name, draw)
                    setattr(owner, name, self._decided(draw))
            super().__enter__()  # type: ignore[no-untyped-call]
            self.opened = stack.pop_all()
        return self

    def __exit__(self, *raised: Any) -> None:
        """Restore everything."""
        super().__exit__(*raised)  # type: ignore[no-untyped-call]
        self.opened.close()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a torch function, or decide what it draws."""
        result = func(*args, **(kwargs or {}))
        # A symbolic tensor decides nothing.
        if func is torch.rand and type(result) is Tensor and result.numel() == 1 and result.ndim < 2:
            self.drew = True
            return torch.full_like(result, self.level)
        return result

    def _decided(self, draw: Any) -> Any:
        thread = get_ident()  # draws of other threads are left alone

        def decided(*args: Any, **kwargs: Any) -> Any:
            drawn = draw(*args, **kwargs)
            if not isinstance(drawn, float) or get_ident() != thread:
                return drawn
            self.drew = True
            low, high = args[:2] if len(args) > 1 else (0.0, 1.0)
            return low + self.level * (high - low)

        return decided
