"""Try a network, its loss and its data out before anything is trained: what does not fit is said once and clearly."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from evenstep.arguments import require_number
from evenstep.errors import InputError
from evenstep.graph import Graph
from evenstep.search.job import Data, Job
from evenstep.search.randomness import own_randomness
from evenstep.search.replicas import step_count

_BATCHES = 16  # that the untrained loss is averaged over: enough beside the spread of a few seeds


@dataclass(frozen=True)
class Untrained:
    """Hold losses before training: of the first seed on the first batch, and what no learning is for every seed.

    Without learning a network ends where it began, or at the loss of guessing where that is lower: the logarithm of the
    number of classes, for cross entropy.
    """

    first: float
    seeds: tuple[float, ...]


def try_out(job: Job, data: Data, seeds: int) -> Untrained:
    """Run one batch forward and backward, and return the untrained losses; what does not fit raises."""
    require_trainable(job.template)
    _require_schedule(job, data)
    model = job.start(0).to(data[0].device).train()  # the data may be on a GPU already
    inputs, targets = next(_batches(job, data))
    try:
        with torch.no_grad(), own_randomness(0, inputs.device):  # whether a search looks further depends on it
            output = model(inputs)
            value: object = job.recipe.loss(output, targets)
    except Exception as error:
        raise unfit(job, data, error) from error
    if not isinstance(value, Tensor) or value.dim() != 0:
        shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise InputError(f"the loss returned {shape} for a batch; return one number, such as its mean")
    classes = _classes(job, output, targets)
    if classes is not None:
        _require_labels(job, data, classes)
    _require_gradient(job, model, data)
    guessing = math.inf if classes is None else math.log(classes)
    losses = tuple(min(_mean_loss(job, data, seed), guessing) for seed in range(seeds))
    return Untrained(float(value) if math.isfinite(value) else math.inf, losses)


def _require_gradient(job: Job, model: nn.Module, data: Data) -> None:
    """Refuse a loss without a gradient, and warn of parameters without one."""
    inputs, targets = next(_batches(job, data))
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    try:
        with own_randomness(0, inputs.device):
            value = job.recipe.loss(model(inputs), targets)
            differentiable = value.requires_grad and value.is_floating_point()
            gradients = torch.autograd.grad(value, list(named.values()), allow_unused=True) if differentiable else []
    except Exception as error:
        raise unfit(job, data, error) from error
    if all(gradient is None for gradient in gradients):
        raise InputError(
            f"the loss of {type(model).__name__} has no gradient, so that nothing can be trained; compute it from the "
            "network's output, without detach(), item() or no_grad()"
        )
    _report_idle(model, [n for n, g in zip(named, gradients, strict=True) if g is None])


def require_trainable(model: nn.Module) -> None:
    """Refuse a network that has nothing to train."""
    if not any(p.requires_grad for p in model.parameters()):
        raise InputError(f"{type(model).__name__} has no trainable parameters; there is nothing to train")


def require_same_network(model: nn.Module, graph: Graph) -> None:
    """Refuse a network of other parameters than a graph's: a function has to make the same one at each call."""
    known = {parameter.name: parameter.shape for parameter in graph.parameters}
    for name, p in model.named_parameters():
        if known.get(name) != tuple(p.shape):
            raise InputError(
                f"make_model returned {type(model).__name__} with '{name}' of shape {tuple(p.shape)}, unlike before; "
                "return the same network at each call"
            )


def unfit(job: Job, data: Data, error: Exception) -> InputError:
    """Say in one line that a network, its loss and its data do not fit."""
    reason = " ".join(str(error).split())[:300] or type(error).__name__
    return InputError(
        f"{type(job.template).__name__} and the loss do not fit the data (inputs {tuple(data[0].shape)}, targets "
        f"{tuple(data[1].shape)} {data[1].dtype}): {reason}"
    )


def _batches(job: Job, data: Data) -> Iterator[Data]:
    size = min(job.recipe.batch_size, len(data[0]))
    for start in range(0, min(_BATCHES * size, len(data[0]) - size + 1), size):
        yield data[0][start : start + size], data[1][start : start + size]


def _mean_loss(job: Job, data: Data, seed: int) -> float:
    """Return the loss that the network of a seed starts with, infinite where it is not finite."""
    model = job.start(seed).to(data[0].device).train()  # batch norms have no statistics yet
    try:
        with torch.no_grad(), own_randomness(seed, data[0].device):
            losses = [float(job.recipe.loss(model(inputs), targets)) for inputs, targets in _batches(job, data)]
    except Exception as error:
        raise unfit(job, data, error) from error
    mean = sum(losses) / len(losses)
    return mean if math.isfinite(mean) else math.inf


def _classes(job: Job, output: object, targets: Tensor) -> int | None:
    """Return the number of classes where the loss is torch's cross entropy of labels."""
    plain = job.recipe.loss is functional.cross_entropy or type(job.recipe.loss) is nn.CrossEntropyLoss
    if not plain or not isinstance(output, Tensor) or targets.is_floating_point():
        return None
    return int(output.shape[1 if output.dim() > 1 else 0])


def _require_labels(job: Job, data: Data, classes: int) -> None:
    """Refuse labels that are no class: those after the first batch would end the search half-way."""
    ignored = getattr(job.recipe.loss, "ignore_index", -100)
    labels = data[1]
    wrong = ((labels < 0) | (labels >= classes)) & (labels != ignored)
    if bool(wrong.any()):
        place = int(wrong.reshape(len(labels), -1).any(1).nonzero()[0])
        value = int(labels[wrong][0])
        raise InputError(
            f"{type(job.template).__name__} has {classes} outputs, which do not fit the data: the target of example "
            f"{place} is {value}; give labels from 0 to {classes - 1}, or a network of more outputs"
        )


def _require_schedule(job: Job, data: Data) -> None:
    """Refuse a schedule whose first or last factor is no number from 0 up, or that depends on how often it is asked."""
    count = step_count(len(data[0]), job.recipe)
    for step in dict.fromkeys((0, count - 1)):
        try:
            factor: object = job.recipe.schedule(step)
            factor = float(factor) if isinstance(factor, Tensor) and factor.numel() == 1 else factor
        except Exception as error:
            reason = " ".join(str(error).split())[:200]
            raise InputError(
                f"the schedule raised {type(error).__name__} at step {step} ({reason}); give a function of the step "
                "that returns a factor of the learning rate"
            ) from error
        require_number(f"the schedule's factor at step {step}", factor, least=0)
    first, second = ([float(job.recipe.schedule(step)) for step in range(count)] for _ in range(2))
    if first != second:
        step = next(step for step in range(count) if first[step] != second[step])
        raise InputError(
            f"the schedule gives the factor {first[step]:g} for step {step}, and {second[step]:g} when asked again; "
            "give a function of the step alone"
        )


def _report_idle(model: nn.Module, names: list[str]) -> None:
    """Warn of parameters that get no gradient; a plan notes those that it can see are not used."""
    if names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        warnings.warn(
            f"'{names[0]}'{more} of {type(model).__name__} gets no gradient and stays as it starts; freeze it with "
            "requires_grad_(False), or let the loss depend on it",
            stacklevel=5,
        )
