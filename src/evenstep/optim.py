"""Optimisers that torch lacks, or has for matrices only: Muon combined with AdamW, and Lion.

Both are ordinary `torch.optim.Optimizer`s: schedulers, closures, `state_dict` and `load_state_dict` work as usual.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer

from evenstep.arguments import require_number, require_whole, shown
from evenstep.errors import InputError

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # Keller Jordan's, for the quintic iteration
ITERATIONS = 5
SMALLEST_NORM = 1e-7
PRECISION = torch.bfloat16  # of the iteration, which leaves singular values between 0.7 and 1.2 in any precision
ADAMS_SIZE = 0.2  # the root mean square of AdamW's steps in units of its rate, as measured for Moonlight

# How a parameter is read as matrices: count, rows, columns; the axis along which each is cut, and the parts' sizes.
Layout: TypeAlias = tuple[int, int, int, int, tuple[int, ...]]


def layout_of(shape: Sequence[int]) -> Layout:
    """Return the default layout of a parameter: one matrix, its first size by the product of the others.

    >>> layout_of((64, 32, 3, 3))
    (1, 64, 288, 0, ())
    """
    return 1, shape[0], math.prod(shape[1:]), 0, ()


def orthogonalized(
    update: Tensor,
    layout: Layout,
    *,
    coefficients: Sequence[float] = COEFFICIENTS,
    iterations: int = ITERATIONS,
    smallest_norm: float = SMALLEST_NORM,
) -> tuple[Tensor, float]:
    """Return an update with its matrices orthogonalised, and the factor that gives it the size of AdamW's steps.

    The factor is 0.2 sqrt(max(rows, columns)): the entries of an orthogonal matrix have root mean square
    1 / sqrt(max(rows, columns)). Leading axes may count trials. The iteration equals that of `torch.optim.Muon` bit
    for bit.
    """
    _, rows, columns, axis, sizes = layout
    matrices = update.reshape(-1, rows, columns)
    if not sizes:
        made = _newton_schulz(matrices, coefficients, iterations, smallest_norm)
        return made.reshape(update.shape), ADAMS_SIZE * math.sqrt(max(rows, columns))
    parts = torch.split(matrices, list(sizes), dim=1 + axis)
    factors = [ADAMS_SIZE * math.sqrt(max(part.shape[1:])) for part in parts]
    scaled = [
        _newton_schulz(part, coefficients, iterations, smallest_norm).to(update.dtype) * (factor / factors[0])
        for part, factor in zip(parts, factors, strict=True)
    ]
    return torch.cat(scaled, dim=1 + axis).reshape(update.shape), factors[0]


def _newton_schulz(matrices: Tensor, coefficients: Sequence[float], iterations: int, smallest_norm: float) -> Tensor:
    """Bring the singular values of matrices [n, rows, columns] close to one."""
    a, b, c = coefficients
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.to(PRECISION)
    x = x.mT if tall else x
    x = x / torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True).clamp(min=smallest_norm)
    for _ in range(iterations):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


class _Stepping(Optimizer):
    """An optimiser that runs a closure, if there is one, before each step."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step; a closure recomputes the loss, which is returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._step_()
        return loss

    @abstractmethod
    def _step_(self) -> None:
        """Move the parameters."""


class Muon(_Stepping):
    """Step hidden matrices by Muon and all other parameters by AdamW, in one optimiser.

    `plan.param_groups(model)` of a plan for 'muon' sorts the parameters: groups with `muon=True` hold matrices, and
    `layouts` says how each is read; AdamW steps the other groups. Kernels are flattened to outputs x (inputs taps).
    A matrix moves by the rate times 0.2 sqrt(max(rows, columns)) times the orthogonalised momentum, as in
    `torch.optim.Muon` with `adjust_lr_fn='match_rms_adamw'`, so that rates and decays are of AdamW's size
    (Liu et al. 2025, arXiv 2502.16982). `momentum`, `nesterov` and the `ns_` settings apply to matrices, `betas` and
    `eps` to AdamW's groups. Decay is decoupled in both.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        *,
        weight_decay: float = 0.0,
        momentum: float = 0.95,
        nesterov: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        ns_coefficients: tuple[float, float, float] = COEFFICIENTS,
        ns_steps: int = ITERATIONS,
        ns_eps: float = SMALLEST_NORM,
    ) -> None:
        require_number("lr", lr, least=0)
        require_number("weight_decay", weight_decay, least=0)
        require_number("momentum", momentum, least=0, below=1)
        if len(ns_coefficients) != 3:
            raise InputError(f"ns_coefficients is {shown(ns_coefficients)}; give three numbers, such as {COEFFICIENTS}")
        of_matrices = {
            "momentum": momentum,
            "nesterov": nesterov,
            "ns_coefficients": tuple(ns_coefficients),
            "ns_steps": require_whole("ns_steps", int(ns_steps)),
            "ns_eps": ns_eps,
        }
        adamw = AdamW([torch.empty(0)], lr=lr, betas=betas, eps=eps, weight_decay=weight_decay).defaults
        super().__init__(params, {**adamw, **of_matrices, "muon": True, "layouts": None})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; parameters that are not matrices have to be in a group with `muon=False`."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        if not group["muon"]:
            return
        for parameter in group["params"]:
            if parameter.dim() < 2 or parameter.is_complex():
                kind = "complex" if parameter.is_complex() else f"of shape {tuple(parameter.shape)}"
                raise InputError(
                    f"Muon steps matrices, but a parameter is {kind}; put it into a group with muon=False, or build "
                    "the optimizer with plan.optimizer(model), which sorts the parameters"
                )
        if group["layouts"] is None:
            group["layouts"] = [layout_of(parameter.shape) for parameter in group["params"]]

    def _step_(self) -> None:
        for group in self.param_groups:
            if group["muon"]:
                for parameter, layout in zip(group["params"], group["layouts"], strict=True):
                    if parameter.grad is not None:
                        self._step_matrix_(parameter, layout, group)
        others = [group for group in self.param_groups if not group["muon"]]
        if others:
            adamw = self._adamw()
            # AdamW works on this optimiser's groups and state: schedulers change them, load_state_dict replaces them.
            adamw.param_groups, adamw.state = others, self.state
            adamw.step()

    def _step_matrix_(self, parameter: Tensor, layout: Layout, group: dict[str, Any]) -> None:
        gradient, state = parameter.grad, self.state[parameter]
        assert gradient is not None
        if gradient.is_sparse:
            raise InputError("Muon cannot use sparse gradients; put the parameter into a group with muon=False")
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(gradient, memory_format=torch.preserve_format)
        buffer, lr = state["momentum_buffer"], float(group["lr"])
        buffer.lerp_(gradient, 1 - group["momentum"])
        update = gradient.lerp(buffer, group["momentum"]) if group["nesterov"] else buffer
        update, factor = orthogonalized(
            update,
            layout,
            coefficients=group["ns_coefficients"],
            iterations=group["ns_steps"],
            smallest_norm=group["ns_eps"],
        )
        parameter.mul_(1 - lr * group["weight_decay"])
        parameter.add_(update, alpha=-lr * factor)

    def _adamw(self) -> AdamW:
        """Return the AdamW that steps the other groups; copies of this optimiser make their own."""
        if "_inner" not in self.__dict__:
            self._inner = AdamW([torch.empty(0)])
        return self._inner


class Lion(_Stepping):
    """Step by the sign of an interpolated momentum, with decoupled weight decay (Chen et al. 2023, arXiv 2302.06675).

    With gradient g, momentum m and rate eta: w <- (1 - eta weight_decay) w - eta sign(beta1 m + (1 - beta1) g), then
    m <- beta2 m + (1 - beta2) g.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-4,
        *,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        require_number("lr", lr, least=0)
        require_number("weight_decay", weight_decay, least=0)
        for beta in betas:
            require_number("a number of betas", beta, least=0, below=1)
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    def _step_(self) -> None:
        for group in self.param_groups:
            lr, (beta1, beta2) = float(group["lr"]), group["betas"]
            for parameter in group["params"]:
                gradient = parameter.grad
                if gradient is None:
                    continue
                if gradient.is_sparse:
                    raise InputError("Lion cannot use sparse gradients; make the embedding with sparse=False")
                state = self.state[parameter]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(gradient, memory_format=torch.preserve_format)
                buffer = state["momentum_buffer"]
                if group["weight_decay"]:
                    parameter.mul_(1 - lr * group["weight_decay"])
                parameter.add_((buffer * beta1).add_(gradient, alpha=1 - beta1).sign_(), alpha=-lr)
                buffer.mul_(beta2).add_(gradient, alpha=1 - beta2)
