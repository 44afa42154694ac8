"""Train trials of one network side by side: stacked as one program, or as separate modules.

A replica group is a set of trials that take every step together, on one shared batch. `StackedReplicas` stacks their
parameters and lets `torch.func.vmap` run them as one network; `SeparateReplicas` keeps plain modules, which run on
several streams on a GPU. Both use the same stacked optimisers and end with the same losses, to rounding. Networks that
draw random numbers train only as plain modules: each trial draws by its seed and the moment, whatever else trains.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from evenstep.search.cuda import Precision, autocast, cuda_settings, fanned_out, on, streams_for
from evenstep.search.fields import Column, Data, arguments_of, called, copy_of, loss_of
from evenstep.search.job import Job, Trial, norms_of
from evenstep.search.randomness import own_randomness, random_states, seed_moment_
from evenstep.search.recipe import Recipe
from evenstep.search.sharing import move_
from evenstep.search.stacked_optimizers import StackedOptimizer, stacked_optimizer, treatments
from evenstep.search.steps import CapturedReplicaStep, EagerStep

HOPELESS = 0.1  # share of the first loss: a short run that is still this far above it half way is stopped
_STATISTICS_BATCH = 4096  # on a GPU
_STATISTICS_FROM = 16384  # examples: enough for a mean and a variance


@dataclass(frozen=True, slots=True)
class TrialResult:
    """Hold a trial's loss as its recipe counts it, infinite if it diverged, and its training losses."""

    trial: Trial
    loss: float
    curve: tuple[float, ...]

    @property
    def diverged(self) -> bool:
        """Whether the loss stopped being finite."""
        return not math.isfinite(self.loss)


class ReplicaGroup(Protocol):
    """Trials that step together.

    `factor` is the schedule's factor at this step; `moment` names the step that random numbers belong to: 'step 3'.
    """

    trials: list[Trial]
    factor: Tensor
    moment: str
    has_statistics: bool

    @property
    def at_once(self) -> int:
        """Return the number of trials whose activations are in memory at once."""

    def step_(self, inputs: Column, targets: Column) -> Tensor:
        """Take one step with every trial on one batch; return their losses before it, [trials]."""

    def gradients(self, inputs: Column, targets: Column) -> tuple[Tensor, list[list[Tensor]]]:
        """Return every trial's loss on one batch, in training mode, and its gradients, parameter by parameter."""

    def evaluate(self, inputs: Column, targets: Column) -> Tensor:
        """Return every trial's loss on one batch, [trials], in evaluation mode."""

    def look_(self, inputs: Column, share: float) -> None:
        """Move batch norms' running statistics by a share towards those of one batch."""

    def drew(self) -> bool:
        """Say whether random numbers were drawn since the last trial was seeded."""

    def unseeded(self) -> contextlib.AbstractContextManager[None]:
        """Leave the random states alone in this context."""

    def state(self) -> list[Tensor]:
        """Return every tensor that a step changes."""

    def keep_(self, places: list[int]) -> None:
        """Keep only the trials at these places."""


class StackedReplicas:
    """Trials as stacked tensors [trials, ...], run as one network."""

    def __init__(self, job: Job, trials: Sequence[Trial], device: torch.device) -> None:
        self.trials, self.recipe = list(trials), job.recipe
        started = {seed: job.start(seed) for seed in {trial.seed for trial in trials}}
        models = [started[trial.seed] for trial in trials]  # trials with the same seed start alike
        # Real tensors, because moving to the device 'meta' would split tied parameters and train only one of them.
        self.skeleton = models[0]
        self.moment = ""
        self.has_statistics = bool(norms_of(self.skeleton))
        plans = {p.name: p for p in job.plan.parameters}
        tables = [dict(model.named_parameters()) for model in models]
        self.names = [name for name, p in models[0].named_parameters() if p.requires_grad]
        self.parameters = [_stacked([table[name] for table in tables], device) for name in self.names]
        self.fixed = {
            name: _stacked([table[name] for table in tables], device)
            for name, p in models[0].named_parameters()
            if not p.requires_grad
        }
        boxes = [dict(model.named_buffers()) for model in models]
        self.buffers = {name: _stacked([box[name] for box in boxes], device) for name in boxes[0]}
        rates = torch.tensor([trial.lr for trial in trials], dtype=self.parameters[0].dtype, device=device)
        self.rates = [
            (rates * plans[name].lr_scale).reshape(-1, *[1] * (p.dim() - 1))
            for name, p in zip(self.names, self.parameters, strict=True)
        ]
        self.factor = torch.ones((), dtype=rates.dtype, device=device)
        self.optimizer = stacked_optimizer(job.recipe, self.parameters, treatments(job.recipe, job.plan, self.names))

    def _losses(self, inputs: Column, targets: Column, parameters: Sequence[Tensor]) -> Tensor:
        values = dict(zip(self.names, parameters, strict=True)) | self.fixed
        args, kwargs = arguments_of(copy_of(inputs))

        def loss_of_one(values: dict[str, Tensor], buffers: dict[str, Tensor]) -> Tensor:
            return loss_of(self.recipe.loss, functional_call(self.skeleton, (values, buffers), args, kwargs), targets)

        # Stacked trials would draw from one stream, in an order that depends on their number, so drawing is refused.
        losses: Tensor = vmap(loss_of_one, randomness="error")(values, self.buffers)
        return losses

    @property
    def at_once(self) -> int:
        """All trials."""
        return len(self.trials)

    def drew(self) -> bool:
        """Stacked trials draw nothing."""
        return False

    def unseeded(self) -> contextlib.AbstractContextManager[None]:
        """Stacked trials are never seeded."""
        return contextlib.nullcontext()

    def _stacked_gradients(self, inputs: Column, targets: Column) -> tuple[Tensor, list[Tensor]]:
        """Return losses and gradients; the gradient of the summed losses holds each trial's gradient."""
        self.skeleton.train()
        leaves = [parameter.detach().requires_grad_() for parameter in self.parameters]
        losses = self._losses(inputs, targets, leaves)
        return losses.detach(), _gradients(losses.sum(), leaves)

    def gradients(self, inputs: Column, targets: Column) -> tuple[Tensor, list[list[Tensor]]]:
        """Return every trial's loss and gradients."""
        losses, gradients = self._stacked_gradients(inputs, targets)
        return losses, [[gradient[place] for gradient in gradients] for place in range(len(self.trials))]

    def step_(self, inputs: Column, targets: Column) -> Tensor:
        """Take one step."""
        losses, gradients = self._stacked_gradients(inputs, targets)
        with torch.no_grad():
            self.optimizer.step_(self.parameters, gradients, [rate * self.factor for rate in self.rates])
        return losses

    def evaluate(self, inputs: Column, targets: Column) -> Tensor:
        """Return every trial's loss on one batch."""
        self.skeleton.eval()
        with torch.no_grad():
            return self._losses(inputs, targets, self.parameters)

    def look_(self, inputs: Column, share: float) -> None:
        """Show one batch to every trial's batch norms."""
        values = dict(zip(self.names, self.parameters, strict=True)) | self.fixed
        args, kwargs = arguments_of(copy_of(inputs))

        def run_one(values: dict[str, Tensor], buffers: dict[str, Tensor]) -> Tensor:
            functional_call(self.skeleton, (values, buffers), args, kwargs)
            return torch.zeros(())  # vmap returns only tensors, but an output may be anything

        self.skeleton.train()
        with torch.no_grad(), _moving_by(share, self.skeleton):
            vmap(run_one, randomness="error")(values, self.buffers)

    def state(self) -> list[Tensor]:
        """Return every tensor that a step changes."""
        return [*self.parameters, *self.buffers.values(), *self.optimizer.state()]

    def keep_(self, places: list[int]) -> None:
        """Keep only the trials at these places."""
        index = torch.tensor(places, device=self.factor.device)
        self.trials = [self.trials[place] for place in places]
        self.parameters = [p[index] for p in self.parameters]
        self.rates = [rate[index] for rate in self.rates]
        self.buffers = {name: b[index] for name, b in self.buffers.items()}
        self.fixed = {name: f[index] for name, f in self.fixed.items()}
        self.optimizer.keep_(index)


class SeparateReplicas:
    """Trials as plain modules, one after the other, or on several streams at once on a GPU."""

    def __init__(self, job: Job, trials: Sequence[Trial], device: torch.device, *, channels_last: bool = False) -> None:
        self.trials, self.recipe, self.device = list(trials), job.recipe, device
        self.moment, self.seeding = "", True
        plans = {p.name: p for p in job.plan.parameters}
        self.models: list[nn.Module] = []
        self.parameters: list[list[Tensor]] = []
        self.rates: list[list[Tensor]] = []
        self.optimizers: list[StackedOptimizer] = []
        for trial in trials:
            model = move_(job.start(trial.seed), device, channels_last=channels_last)
            named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
            values = [p for _, p in named]
            self.models.append(model)
            self.parameters.append([p.data for p in values])
            self.rates.append(
                [torch.tensor(trial.lr * plans[n].lr_scale, dtype=p.dtype, device=device) for n, p in named]
            )
            treated = treatments(job.recipe, job.plan, [name for name, _ in named])
            self.optimizers.append(stacked_optimizer(job.recipe, [p.data for p in values], treated))
        self.factor = torch.ones((), dtype=self.parameters[0][0].dtype, device=device)
        self.has_statistics = bool(norms_of(self.models[0]))
        self.streams = streams_for(device, len(trials))

    def step_(self, inputs: Column, targets: Column) -> Tensor:
        """Take one step with every trial."""
        losses: list[Tensor] = [self.factor] * len(self.models)
        with fanned_out(self.streams):
            for place in range(len(self.models)):
                with on(self.streams, place):
                    losses[place] = self._step_one_(place, inputs, targets)
        return torch.stack(losses)

    @property
    def at_once(self) -> int:
        """One trial after the other."""
        return 1

    def _seeded(self, place: int) -> nn.Module:
        """Return a trial's model, with random states seeded for this moment."""
        if self.seeding:
            seed_moment_(self.trials[place].seed, self.moment)
        return self.models[place]

    def drew(self) -> bool:
        """Say whether random numbers were drawn since the last trial was seeded."""
        states = random_states(self.device)
        seed_moment_(self.trials[-1].seed, self.moment)
        return states != random_states(self.device)

    @contextlib.contextmanager
    def unseeded(self) -> Iterator[None]:
        """Leave the random states alone in this context."""
        self.seeding = False
        try:
            yield
        finally:
            self.seeding = True

    def _gradients_of(self, place: int, inputs: Column, targets: Column) -> tuple[Tensor, list[Tensor]]:
        model = self._seeded(place).train()
        leaves = [p for p in model.parameters() if p.requires_grad]
        loss = loss_of(self.recipe.loss, called(model, inputs), targets)
        return loss.detach(), _gradients(loss, leaves)

    def gradients(self, inputs: Column, targets: Column) -> tuple[Tensor, list[list[Tensor]]]:
        """Return every trial's loss and gradients."""
        pairs = [self._gradients_of(place, inputs, targets) for place in range(len(self.models))]
        return torch.stack([loss for loss, _ in pairs]), [gradients for _, gradients in pairs]

    def _step_one_(self, place: int, inputs: Column, targets: Column) -> Tensor:
        loss, gradients = self._gradients_of(place, inputs, targets)
        with torch.no_grad():
            rates = [rate * self.factor for rate in self.rates[place]]
            self.optimizers[place].step_(self.parameters[place], gradients, rates)
        return loss

    def evaluate(self, inputs: Column, targets: Column) -> Tensor:
        """Return every trial's loss on one batch."""
        with torch.no_grad():
            outputs = (called(self._seeded(place).eval(), inputs) for place in range(len(self.models)))
            return torch.stack([loss_of(self.recipe.loss, output, targets) for output in outputs])

    def look_(self, inputs: Column, share: float) -> None:
        """Show one batch to every trial's batch norms."""
        for place, model in enumerate(self.models):
            with torch.no_grad(), _moving_by(share, model):
                called(self._seeded(place).train(), inputs)

    def state(self) -> list[Tensor]:
        """Return every tensor that a step changes."""
        tensors = [p for values in self.parameters for p in values]
        tensors += [buffer for model in self.models for buffer in model.buffers()]
        return tensors + [tensor for optimizer in self.optimizers for tensor in optimizer.state()]

    def keep_(self, places: list[int]) -> None:
        """Keep only the trials at these places."""
        for name in ("trials", "models", "parameters", "rates", "optimizers"):
            values = getattr(self, name)
            setattr(self, name, [values[place] for place in places])


def _gradients(loss: Tensor, leaves: Sequence[Tensor]) -> list[Tensor]:
    """Return the gradient for every leaf, zero for leaves that the loss does not use."""
    gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
    return [torch.zeros_like(leaf) if g is None else g for g, leaf in zip(gradients, leaves, strict=True)]


@contextlib.contextmanager
def _moving_by(share: float, model: nn.Module) -> Iterator[None]:
    """Let norms move their running statistics by this share, instead of their own, in this context."""
    norms = norms_of(model)
    before = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = share
    try:
        yield
    finally:
        for norm, momentum in zip(norms, before, strict=True):
            norm.momentum = momentum


@contextlib.contextmanager
def stacked_quietly() -> Iterator[None]:
    """Silence torch's warning about operators that it stacks in a loop: their speed has been timed."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop because we have not yet implemented")
        yield


def _stacked(tensors: list[Tensor], device: torch.device) -> Tensor:
    return torch.stack([tensor.detach() for tensor in tensors]).to(device)


def order(count: int, recipe: Recipe) -> Iterator[Tensor]:
    """Yield the indices of every step's batch, without the incomplete last batch of each epoch.

    >>> [len(batch) for batch in order(10, Recipe(batch_size=4, epochs=2))]
    [4, 4, 4, 4]
    """
    generator = torch.Generator().manual_seed(recipe.order_seed)
    size = min(recipe.batch_size, count)
    left = recipe.steps if recipe.steps is not None else recipe.epochs * (count // size)
    while left > 0:
        shuffled = torch.randperm(count, generator=generator)
        for start in range(0, count - size + 1, size):
            if left == 0:
                return
            left -= 1
            yield shuffled[start : start + size]


def step_count(count: int, recipe: Recipe) -> int:
    """Return how many steps a recipe takes on `count` examples."""
    return recipe.steps if recipe.steps is not None else recipe.epochs * (count // min(recipe.batch_size, count))


def train(
    group: ReplicaGroup, data: Data, recipe: Recipe, *, precision: Precision = "float32"
) -> Iterator[TrialResult]:
    """Train a group, yielding stopped trials as soon as they stop and the others at the end."""
    total = step_count(len(data[0]), recipe)
    last = None if recipe.counted is None else max(round(recipe.counted * total), 1)
    pause = max(total // 16, 1)  # steps between checks of the losses: each check waits for the device
    curves: dict[Trial, list[float]] = {trial: [] for trial in group.trials}
    gone: set[Trial] = set()
    recent: list[Tensor] = []
    with cuda_settings(precision, group.factor.device), own_randomness(0, group.factor.device), stacked_quietly():
        stepping = CapturedReplicaStep.of(group, data, recipe, precision) or EagerStep(group, data, precision)
        for step, index in enumerate(order(len(data[0]), recipe)):
            group.factor.fill_(recipe.schedule(step))
            group.moment = f"step {step}"
            recent.append(stepping.step_(index))
            if (step + 1) % pause == 0 or step + 1 == total:
                ended = list(_diverged(group, recent, curves, gone))
                if last is not None and step + 1 - len(recent) < total // 2 <= step + 1 < total:
                    ended += _hopeless(curves, gone.union(result.trial for result in ended), last=last)
                for result in ended:
                    gone.add(result.trial)
                    yield result
                recent = []
                alive = [place for place, trial in enumerate(group.trials) if trial not in gone]
                if not alive:
                    return
                if len(alive) < len(group.trials) and stepping.shrinks:
                    group.keep_(alive)
        if last is not None:
            yield from _counted(group, curves, gone, last=last)
            return
        if group.has_statistics:
            _settle_statistics_(group, data, recipe, precision)
        yield from _finished(group, data, curves, gone, precision=precision, batch_size=recipe.batch_size)


def step_seconds(group: ReplicaGroup, data: Data, recipe: Recipe, precision: Precision, steps: int) -> float:
    """Return the time of a group's step, after one step that warms up caches and allocators."""
    device = group.factor.device
    with cuda_settings(precision, device), own_randomness(0, device), stacked_quietly():
        stepping = CapturedReplicaStep.of(group, data, recipe, precision) or EagerStep(group, data, precision)
        batches = itertools.cycle(itertools.islice(order(len(data[0]), recipe), steps + 1))
        stepping.step_(next(batches))
        start = _now(device)
        for _ in range(steps):
            stepping.step_(next(batches))
        return (_now(device) - start) / steps


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _diverged(
    group: ReplicaGroup, recent: list[Tensor], curves: dict[Trial, list[float]], gone: set[Trial]
) -> Iterator[TrialResult]:
    """Extend the curves, and yield the trials whose loss is no longer finite."""
    columns = torch.stack(recent).T.tolist()
    for trial, values in zip(group.trials, columns, strict=True):
        if trial in gone:
            continue
        bad = next((i for i, value in enumerate(values) if not math.isfinite(value)), None)
        curves[trial] += values if bad is None else values[:bad]
        if bad is not None:
            yield TrialResult(trial, math.inf, (*curves[trial], math.inf))


def _hopeless(curves: dict[Trial, list[float]], gone: set[Trial], *, last: int) -> Iterator[TrialResult]:
    """Yield the trials whose last losses are all well above their first; their loss is the mean of these."""
    for trial, curve in curves.items():
        if trial not in gone and min(curve[-last:]) > curve[0] + HOPELESS * abs(curve[0]):
            yield TrialResult(trial, math.fsum(curve[-last:]) / last, tuple(curve))


def _counted(
    group: ReplicaGroup, curves: dict[Trial, list[float]], gone: set[Trial], *, last: int
) -> Iterator[TrialResult]:
    """Yield the mean training loss of every trial's last steps."""
    for trial in group.trials:
        if trial not in gone:
            yield TrialResult(trial, math.fsum(curves[trial][-last:]) / last, tuple(curves[trial]))


def _settle_statistics_(group: ReplicaGroup, data: Data, recipe: Recipe, precision: Precision) -> None:
    """Recompute batch norms' statistics over examples with the final weights.

    Running statistics trail behind the weights, which at large rates makes the loss in evaluation mode a matter of
    chance. The loss then belongs to the weights, as after `torch.optim.swa_utils.update_bn`.
    """
    device = group.factor.device
    size = _STATISTICS_BATCH if device.type == "cuda" else recipe.batch_size
    shown = replace(recipe, batch_size=min(size, len(data[0])), epochs=1, steps=None)
    batches = itertools.islice(order(len(data[0]), shown), max(_STATISTICS_FROM // shown.batch_size, 1))
    for number, index in enumerate(batches, 1):
        with autocast(precision, device):
            group.moment = f"look {number}"
            group.look_(data[0][index.to(device)], 1 / number)


def _finished(
    group: ReplicaGroup,
    data: Data,
    curves: dict[Trial, list[float]],
    gone: set[Trial],
    *,
    precision: Precision,
    batch_size: int,
) -> Iterator[TrialResult]:
    """Evaluate the remaining trials on the whole data set, in batches of a step's size.

    A loss need not be a mean over examples: on other batches, whose size depends on how many trials train together, it
    would be another number.
    """
    total = torch.zeros(len(group.trials), dtype=torch.float64, device=group.factor.device)
    for start in range(0, len(data[0]), batch_size):
        part = slice(start, start + batch_size)
        group.moment = f"evaluation {start}"
        with autocast(precision, group.factor.device):
            losses = group.evaluate(data[0][part], data[1][part])
        total += losses.double() * len(data[0][part])
    for trial, loss in zip(group.trials, (total / len(data[0])).tolist(), strict=True):
        if trial not in gone:
            yield TrialResult(trial, loss if math.isfinite(loss) else math.inf, tuple(curves[trial]))
