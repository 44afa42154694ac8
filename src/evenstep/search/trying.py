"""Try out a network, its loss and its data before anything trains, to report once and clearly what does not fit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from evenstep.arguments import require_number
from evenstep.errors import InputError, warn
from evenstep.graph import Graph
from evenstep.module.exported import remedy_of_types
from evenstep.search.fields import LABELS, Column, Data, Fields, called, loss_of, own_loss, words
from evenstep.search.job import Job
from evenstep.search.randomness import own_randomness
from evenstep.search.replicas import step_count

_ALIKE = 0.1  # share of a loss: a model that adds a little to its cross entropy still shows the loss of guessing
_BATCHES = 16  # that the untrained loss is averaged over: enough, given the spread of a few seeds


@dataclass(frozen=True)
class Untrained:
    """Hold losses before training: the first seed's on the first batch, and each seed's loss without learning.

    Without learning a network ends where it began, or at the loss of guessing if that is lower; for cross entropy, that
    is the logarithm of the number of classes. If a model computes its own loss, its logits show whether that is a cross
    entropy.
    """

    first: float
    seeds: tuple[float, ...]


def try_out(job: Job, data: Data, seeds: int) -> Untrained:
    """Run one batch forward and backward and return the untrained losses; raise if something does not fit."""
    require_trainable(job.template)
    _require_schedule(job, data)
    model = job.start(0).to(data[0].device).train()  # the data may be on a GPU already
    inputs, targets = next(_batches(job, data))
    with torch.no_grad(), own_randomness(0, inputs.device):  # seeded, because it decides whether a search looks further
        try:
            output = called(model, inputs)
        except Exception as error:
            raise unfit(job, data, error) from error
        _require_logits(job, data, output, targets)
        try:
            value: object = loss_of(job.recipe.loss, output, targets)
        except Exception as error:
            raise unfit(job, data, error) from error
    if not isinstance(value, Tensor) or value.dim() != 0:
        shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise InputError(f"the loss returned {shape} for a batch; return one number, such as its mean")
    _require_gradient(job, model, data)
    guessing = _guessing(job, output, inputs, targets, float(value))
    losses = tuple(min(_mean_loss(job, data, seed), guessing) for seed in range(seeds))
    return Untrained(float(value) if math.isfinite(value) else math.inf, losses)


def _require_gradient(job: Job, model: nn.Module, data: Data) -> None:
    """Refuse a loss without a gradient, and warn of parameters without one."""
    inputs, targets = next(_batches(job, data))
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    try:
        with own_randomness(0, inputs.device):
            value = loss_of(job.recipe.loss, called(model, inputs), targets)
            differentiable = value.requires_grad and value.is_floating_point()
            gradients = torch.autograd.grad(value, list(named.values()), allow_unused=True) if differentiable else []
    except Exception as error:
        raise unfit(job, data, error) from error
    if all(gradient is None for gradient in gradients):
        raise InputError(
            f"the loss of {type(model).__name__} has no gradient, so nothing can be trained; compute it from the "
            "network's output, without detach(), item() or no_grad()"
        )
    _report_idle(model, [n for n, g in zip(named, gradients, strict=True) if g is None])


def require_values(model: nn.Module) -> None:
    """Refuse a network without values, which can be planned but not run."""
    tensors = (*model.named_parameters(), *model.named_buffers())
    if (name := next((name for name, tensor in tensors if tensor.is_meta), None)) is not None:
        raise InputError(
            f"'{name}' of {type(model).__name__} is on the device 'meta' and holds no values; make the network on a "
            "real device, or give it memory with model.to_empty(device='cpu') and initialise it"
        )


def require_trainable(model: nn.Module) -> None:
    """Refuse a network that has nothing to train."""
    require_values(model)
    if not any(p.requires_grad for p in model.parameters()):
        raise InputError(f"{type(model).__name__} has no trainable parameters; there is nothing to train")


def require_same_network(model: nn.Module, graph: Graph) -> None:
    """Refuse a network whose parameters differ from a graph's: every call must make the same network."""
    known = {parameter.name: parameter.shape for parameter in graph.parameters}
    for name, p in model.named_parameters():
        if known.get(name) != tuple(p.shape):
            raise InputError(
                f"make_model returned {type(model).__name__} with '{name}' of shape {tuple(p.shape)}, unlike before; "
                "return the same network at each call"
            )


def unfit(job: Job, data: Data, error: Exception) -> InputError:
    """Return an error that says in one line that a network, its loss and its data do not fit."""
    reason = " ".join(str(error).split())[:300] or type(error).__name__
    remedy = remedy_of_types(job.template, data[0].value if isinstance(data[0], Fields) else data[0], reason)
    if "to match target batch_size" in reason:
        remedy = (
            "examples are padded to the longest length that was read; a model whose output is as long as the "
            "longest row of a batch needs that length, pad_packed_sequence as total_length="
        )
    return InputError(
        f"{type(job.template).__name__} and the loss do not fit the data (inputs {words(data[0])}, targets "
        f"{words(data[1])}{_type_of(data[1])}): {reason}{remedy and f'; {remedy}'}"
    )


def _type_of(targets: Column) -> str:
    """Return the type of a tensor's numbers, because labels that are not whole numbers are a common mistake."""
    return f" {targets.dtype}" if isinstance(targets, Tensor) else ""


def _batches(job: Job, data: Data) -> Iterator[Data]:
    size = min(job.recipe.batch_size, len(data[0]))
    for start in range(0, min(_BATCHES * size, len(data[0]) - size + 1), size):
        yield data[0][start : start + size], data[1][start : start + size]


def _mean_loss(job: Job, data: Data, seed: int) -> float:
    """Return the loss at which a seed's network starts, infinite if it is not finite."""
    model = job.start(seed).to(data[0].device).train()  # batch norms have no statistics yet
    try:
        with torch.no_grad(), own_randomness(seed, data[0].device):
            losses = [float(loss_of(job.recipe.loss, called(model, x), y)) for x, y in _batches(job, data)]
    except Exception as error:
        raise unfit(job, data, error) from error
    mean = sum(losses) / len(losses)
    return mean if math.isfinite(mean) else math.inf


def _guessing(job: Job, output: Any, inputs: Column, targets: Column, value: float) -> float:
    """Return the loss of guessing: that of equal logits if targets are classes, or infinity if it is unknown.

    A network may start above it, and coming down to it is not learning. An output counts as logits if adding a number
    to all of them leaves the loss unchanged: for log-probabilities, or for a loss itself, zeros are not a guess.
    """
    if isinstance(targets, Tensor) and isinstance(output, Tensor) and not targets.is_floating_point():
        try:
            zeros = torch.zeros_like(output)
            guess, shifted = (float(loss_of(job.recipe.loss, logits, targets)) for logits in (zeros, zeros + 1))
        except Exception:  # the loss does not accept this output
            return math.inf
        return guess if math.isfinite(guess) and math.isclose(guess, shifted, rel_tol=1e-3) else math.inf
    held = inputs.value if isinstance(inputs, Fields) and isinstance(inputs.value, dict) else {}
    labels = next((held[name] for name in LABELS if name in held), None)
    logits = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    classes = isinstance(labels, Tensor) and not labels.is_floating_point()
    if job.recipe.loss is not own_loss or not classes or not isinstance(logits, Tensor) or logits.dim() < 2:
        return math.inf
    assert isinstance(labels, Tensor)
    if not any(math.isclose(value, own, rel_tol=_ALIKE) for own in _cross_entropies(logits, labels)):
        return math.inf
    return math.log(logits.shape[-1]) if logits.shape[-1] > 1 else math.inf


def _cross_entropies(logits: Tensor, labels: Tensor) -> Iterator[float]:
    """Yield the cross entropies that a model may have computed: of its labels, and of the next ones."""
    for shift in (0, 1):
        read, wanted = (logits[:, :-1], labels[:, 1:]) if shift and labels.dim() > 1 else (logits, labels)
        try:
            yield float(functional.cross_entropy(read.flatten(0, -2).float(), wanted.flatten()))
        except (RuntimeError, IndexError, ValueError):  # labels of another form
            return


def _require_logits(job: Job, data: Data, output: Any, targets: Column) -> None:
    """If the loss is torch's cross entropy, as it is by default, refuse outputs that it does not take."""
    loss, kind = job.recipe.loss, type(job.template).__name__
    plain = loss is functional.cross_entropy or (type(loss) is nn.CrossEntropyLoss and loss.reduction == "mean")
    if not plain:
        return
    if not isinstance(output, Tensor):
        raise InputError(
            f"{kind} returns a {type(output).__name__}, but the loss is the cross entropy of one tensor; give "
            f"loss=lambda output, target: torch.nn.functional.cross_entropy({_place_of_logits(output)}, target), or "
            "another function of what it returns"
        )
    if not isinstance(targets, Tensor) or targets.is_floating_point() or output.dim() < 2:
        return
    if targets.shape == output.shape[:-1] != (len(output), *output.shape[2:]):
        last = output.dim() - 2
        raise InputError(
            f"{kind} returns logits {tuple(output.shape)} for targets {tuple(targets.shape)}, but the cross entropy "
            "takes classes from axis 1; give loss=lambda output, target: torch.nn.functional.cross_entropy("
            f"output.flatten(0, {last}), target.flatten())"
        )
    _require_labels(job, data, output.shape[1])


def _place_of_logits(output: Any) -> str:
    if isinstance(output, Mapping):
        return f"output[{'logits' if 'logits' in output else next(iter(output), 'logits')!r}]"
    return "output[0]" if isinstance(output, list | tuple) else "output.logits"


def _require_labels(job: Job, data: Data, classes: int) -> None:
    """Refuse labels that are not classes: after the first batch, they would end the search half way."""
    ignored = getattr(job.recipe.loss, "ignore_index", -100)
    labels = data[1]
    assert isinstance(labels, Tensor)
    wrong = ((labels < 0) | (labels >= classes)) & (labels != ignored)
    if bool(wrong.any()):
        place = int(wrong.reshape(len(labels), -1).any(1).nonzero()[0])
        value = int(labels[wrong][0])
        raise InputError(
            f"{type(job.template).__name__} has {classes} outputs, which do not fit the data: the target of example "
            f"{place} is {value}; give labels from 0 to {classes - 1}, or a network with more outputs"
        )


def _require_schedule(job: Job, data: Data) -> None:
    """Refuse a schedule with a first or last factor that is no number from 0 up, or one that counts its calls."""
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
            f"the schedule returns {first[step]:g} for step {step}, and {second[step]:g} when called again; "
            "give a function of the step alone"
        )


def _report_idle(model: nn.Module, names: list[str]) -> None:
    """Warn of parameters that get no gradient; plans note those that they know are not used."""
    if names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        warn(
            f"'{names[0]}'{more} of {type(model).__name__} gets no gradient and stays as it starts; freeze it with "
            "requires_grad_(False), or let the loss depend on it"
        )
