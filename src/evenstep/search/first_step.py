"""Measure how far the first optimiser steps move the output of each layer of one network.

All on one fixed batch: the first step to first order, by forward-mode differentiation along it, then steps taken.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp
from torch.nn.attention import SDPBackend, sdpa_kernel

from evenstep.graph.roles import roles
from evenstep.planning import Plan
from evenstep.planning.groups import matched
from evenstep.planning.unwrap import named_parameters, own_name, unwrapped
from evenstep.search.fields import Data, arguments_of, copy_of, loss_of
from evenstep.search.job import Job
from evenstep.search.plain_values import finite_or_none, mapping, reading, sequence, size_or_infinite
from evenstep.search.recipe import Recipe
from evenstep.search.stacked_optimizers import Treatment, stacked_optimizer, treatments

Values = dict[str, Tensor]
# Share of the parameters' size to move by when a difference replaces a derivative.
_SMALL = 1e-3


@dataclass(frozen=True, slots=True)
class Changes:
    """Hold root mean squares, over units and examples, of one recorded signal.

    `start` is its size before training, `predicted` its change by the first step to first order, and `changes` its
    change from the start after each step taken.
    """

    start: float
    predicted: float
    changes: tuple[float, ...]

    @property
    def finite(self) -> bool:
        """Whether all of them are finite."""
        return all(map(math.isfinite, (self.start, self.predicted, *self.changes)))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; what is not finite is None."""
        return {
            "start": finite_or_none(self.start),
            "predicted": finite_or_none(self.predicted),
            "changes": [finite_or_none(change) for change in self.changes],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Changes:
        """Read changes from `to_dict`; a change of None was not finite."""
        with reading("the signal", remedy="make it again with to_dict()"):
            changes = sequence("changes", mapping("a signal", values)["changes"])
            return cls(
                size_or_infinite("start", values["start"]),
                size_or_infinite("predicted", values["predicted"]),
                tuple(size_or_infinite("a change", change) for change in changes),
            )


@dataclass(frozen=True)
class RecordedModules:
    """Name the modules to record: those with weights, and those among them that return the output."""

    layers: Mapping[str, nn.Module]
    readouts: tuple[str, ...]

    @property
    def last(self) -> tuple[str, ...]:
        """Name what readouts read, the last hidden vertex, or the last layer if a network has no readout."""
        return tuple(map(read_by, self.readouts)) or tuple(self.layers)[-1:]


def read_by(readout: str) -> str:
    """Name the signal that a readout reads: the last hidden vertex, after its activation and pool."""
    return f"{readout} reads"


def recorded_modules(model: nn.Module, plan: Plan) -> RecordedModules:
    """Return the modules that own a weight on a path from input to output, in the model's order."""
    use = roles(plan.graph.live())
    wanted = {p.name for p in plan.graph.parameters if p.role == "weight" and p.name in use.edges_of}
    name_of = {id(tensor): name for name, tensor in named_parameters(model).items() if name in wanted}
    layers: dict[str, nn.Module] = {}
    readouts = []
    for path, module in unwrapped(model).named_modules():
        held = [name_of[id(p)] for p in module.parameters(recurse=False) if id(p) in name_of]
        if held:
            name = own_name(path) or type(module).__name__
            layers[name] = module
            if all(use.position_of(parameter) == "readout" for parameter in held):
                readouts.append(name)
    return RecordedModules(layers, tuple(readouts))


def measure(job: Job, data: Data, *, lr: float, steps: int, seed: int) -> dict[str, Changes]:
    """Return the changes of every recorded signal of a job's network under one seed's weights and batch.

    The derivative is along the optimiser's first step. All steps see the same batch, and random layers draw the same
    numbers in every forward pass, so that only the parameters differ.
    """
    order = torch.randperm(len(data[0]), generator=torch.Generator().manual_seed(seed))
    index = order[: job.recipe.batch_size].to(data[0].device)
    model = unwrapped(job.start(seed)).to(data[0].device).train()
    return _FirstSteps(model, job.plan, job.recipe, (data[0][index], data[1][index]), lr, seed).run(steps)


@dataclass
class _FirstSteps:
    """One network on one batch; parameters are passed as values, and the module never changes."""

    model: nn.Module
    plan: Plan
    recipe: Recipe
    batch: Data
    lr: float
    seed: int
    recorded: RecordedModules = field(init=False)
    buffers: Values = field(init=False)
    names: list[str] = field(init=False)
    rates: list[Tensor] = field(init=False)
    treated: list[Treatment] = field(init=False)

    def __post_init__(self) -> None:
        self.recorded = recorded_modules(self.model, self.plan)
        self.buffers = {name: buffer.detach().clone() for name, buffer in self.model.named_buffers()}
        pairs = matched(self.model, self.plan)
        full = {id(parameter): name for name, parameter in self.model.named_parameters()}
        self.names = [full[id(parameter)] for _, parameter in pairs]
        self.rates = [parameter.new_tensor(self.lr * planned.lr_scale) for planned, parameter in pairs]
        self.treated = treatments(self.recipe, self.plan, [planned.name for planned, _ in pairs])

    def run(self, steps: int) -> dict[str, Changes]:
        values = {name: parameter.detach().clone() for name, parameter in self.model.named_parameters()}
        start = self.signals(values)
        predicted = self.first_order(values)
        moving = [values[name] for name in self.names]
        optimizer = stacked_optimizer(self.recipe, moving, self.treated)
        changes_of: dict[str, list[float]] = {name: [] for name in start}
        for _ in range(steps):
            optimizer.step_(moving, self.gradients(values), self.rates)
            for name, signal in self.signals(values).items():
                changes_of[name].append(_rms(signal - start[name]))
        return {
            name: Changes(_rms(start[name]), _rms(predicted[name]), tuple(changes))
            for name, changes in changes_of.items()
        }

    def signals(self, values: Values) -> Values:
        """Return every recorded signal for these parameters."""
        with torch.no_grad():
            return self._listen(values)

    def gradients(self, values: Values) -> list[Tensor]:
        """Return the loss's gradients, zero for parameters that are not used."""
        trained = {name: values[name].detach().requires_grad_() for name in self.names}
        loss = loss_of(self.recipe.loss, self._forward(values | trained), self.batch[1])
        return list(torch.autograd.grad(loss, list(trained.values()), allow_unused=True, materialize_grads=True))

    def first_order(self, values: Values) -> Values:
        """Return the derivative of every signal along the optimiser's first step."""
        gradients = self.gradients(values)
        # Starting from zero, the optimiser's step is the move itself, without rounding to the parameters' size.
        move = [torch.zeros_like(gradient) for gradient in gradients]
        stacked_optimizer(self.recipe, move, self.treated).step_(move, gradients, self.rates)
        along = dict(zip(self.names, move, strict=True))
        try:
            point = {name: values[name] for name in self.names}
            with warnings.catch_warnings():
                # torch warns when forward-mode differentiation loads for the first time.
                warnings.filterwarnings("ignore", message=".*torch.jit", category=DeprecationWarning)
                change: Values = jvp(lambda moving: self._listen(values | moving), (point,), (along,))[1]
        except RuntimeError:  # the forward pass ran before, so an operator lacks a forward-mode derivative
            return self._difference(values, along)
        return change

    def _difference(self, values: Values, along: Values) -> Values:
        """Return the derivative of every signal along a move as a central difference."""
        length = _length(along.values())
        small = _SMALL * _length([values[name] for name in along]) / length if length else 1.0
        ahead, behind = (
            self.signals(values | {name: values[name] + side * move for name, move in along.items()})
            for side in (small, -small)
        )
        return {name: (ahead[name] - behind[name]) / (2 * small) for name in ahead}

    def _listen(self, values: Values) -> Values:
        recordings: dict[str, list[Tensor]] = {}
        with _listening(self.recorded, recordings):
            self._forward(values)
        # A layer that is used several times counts as one signal.
        return {name: torch.cat([part.flatten() for part in parts]) for name, parts in recordings.items()}

    def _forward(self, values: Values) -> Any:
        buffers = {name: buffer.clone() for name, buffer in self.buffers.items()}
        inputs = self.batch[0]
        on_gpu = inputs.device.type == "cuda"
        # Only the plain form of attention has a forward-mode derivative.
        with torch.random.fork_rng(devices=[inputs.device] if on_gpu else []), sdpa_kernel(SDPBackend.MATH):
            torch.manual_seed(self.seed) if on_gpu else torch.default_generator.manual_seed(self.seed)
            return functional_call(self.model, (values, buffers), *arguments_of(copy_of(inputs)))


@contextmanager
def _listening(recorded: RecordedModules, recordings: dict[str, list[Tensor]]) -> Iterator[None]:
    """Append to `recordings` what layers return and what readouts read, within this context."""

    def gives(name: str) -> Callable[..., None]:
        return lambda _module, _args, output: _note(recordings, name, output)

    def reads(name: str) -> Callable[..., None]:
        return lambda _module, args, kwargs: _note(recordings, read_by(name), (*args, *kwargs.values()))

    handles = [layer.register_forward_hook(gives(name)) for name, layer in recorded.layers.items()]
    for name in recorded.readouts:
        handles.append(recorded.layers[name].register_forward_pre_hook(reads(name), with_kwargs=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _note(recordings: dict[str, list[Tensor]], name: str, values: Any) -> None:
    """Keep a clone of the first tensor: an activation after it may work in place."""
    while isinstance(values, list | tuple) and values:
        values = values[0]
    if isinstance(values, Tensor) and values.is_floating_point():
        recordings.setdefault(name, []).append(values.clone())


def _rms(values: Tensor) -> float:
    return float(values.detach().double().square().mean().sqrt())


def _length(tensors: Iterable[Tensor]) -> float:
    return math.sqrt(sum(float(tensor.double().square().sum()) for tensor in tensors))
