"""The benchmark's training, several networks side by side, each with its own batches, rates and random numbers.

All that an epoch draws at random is drawn before it and laid on the device: image numbers, crops and flips. A step
finds its batch by a counter that lies there too, so that on a GPU a recorded step is replayed without a word from the
host (`evenstep_research.study.nas.captured`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from evenstep.errors import InputError
from evenstep.search.cuda import Precision, autocast, fanned_out, on, streams_for
from evenstep.search.recipe import Recipe, half_cosine
from evenstep.search.stacked_optimizers import StackedSGD
from evenstep_research.data import Moves, Split, draw_moves
from evenstep_research.data.augment import padded, taken
from evenstep_research.study.nas.fused import fused_for
from evenstep_research.study.nas.protocols import Treatment

_EVALUATION_BATCH = 1000


@dataclass(frozen=True, slots=True)
class SweepTraining:
    """Say how a network is trained, whatever its rates: SGD with Nesterov's momentum, and a cosine down to 0.

    The rate changes from epoch to epoch, as in the benchmark's code, and weight decay spares nothing.
    """

    epochs: int = 12
    batch_size: int = 256
    momentum: float = 0.9
    weight_decay: float = 5e-4
    padding: int = 4
    flip: bool = True

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InputError(f"{name} is {value!r}; give a whole number from 1 up")

    def factor(self, epoch: int) -> float:
        """Return the schedule's factor of all rates in an epoch, the first being 0.

        >>> [round(SweepTraining(epochs=4).factor(epoch), 3) for epoch in range(4)]
        [1.0, 0.854, 0.5, 0.146]
        """
        return half_cosine(epoch / self.epochs)


@dataclass(frozen=True, eq=False)
class Images:
    """Hold a data set on a device: training images padded already, [n, 3, side + 2 padding, ...], and test images.

    The padding is black, which the benchmark pads with before it standardises: the darkest value of each channel.
    """

    name: str
    whole: Tensor
    labels: Tensor
    test: tuple[Tensor, Tensor]

    @classmethod
    def of(cls, split: Split, *, name: str, padding: int, device: torch.device) -> Images:
        """Lay a data set on a device; grey images fill all three channels."""
        train, test = (part.expand(-1, 3, -1, -1) for part in (split.train[0], split.test[0]))
        black = train.amin(dim=(0, 2, 3)).tolist()
        last = torch.channels_last
        return cls(
            name,
            padded(train.to(device).contiguous(memory_format=last), padding, fill=black),
            split.train[1].to(device),
            (test.to(device).contiguous(memory_format=last), split.test[1].to(device)),
        )


@dataclass(frozen=True, eq=False)
class Draws:
    """Hold what one run draws for one epoch: image numbers and moves, each [steps, batch]."""

    numbers: Tensor
    rows: Tensor
    columns: Tensor
    flips: Tensor

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All four."""
        return self.numbers, self.rows, self.columns, self.flips

    def batch(self, step_index: Tensor, padding: int) -> tuple[Tensor, Moves]:
        """Return the image numbers and moves of the step that `step_index` [1] names."""
        numbers, rows, columns, flips = (tensor.index_select(0, step_index).squeeze(0) for tensor in self.tensors)
        return numbers, Moves(rows, columns, flips, padding)


def steps_of(count: int, training: SweepTraining) -> int:
    """Return the steps of an epoch; the incomplete last batch is left out."""
    return max(count // training.batch_size, 1)


def draws(count: int, training: SweepTraining, *, seed: int, epoch: int) -> Draws:
    """Draw an epoch of a run, the same on every device and whatever was trained before."""
    generator = torch.Generator().manual_seed(100_003 * (seed + 1) + epoch)
    steps, size = steps_of(count, training), min(training.batch_size, count)
    used = torch.randperm(count, generator=generator)[: steps * size]
    moves = draw_moves(steps * size, generator=generator, padding=training.padding, flip=training.flip)
    return Draws(*(tensor.reshape(steps, size) for tensor in (used, moves.rows, moves.columns, moves.flips)))


class _ParameterGroup:
    """Parameters of one rate and one decay, with their optimiser."""

    def __init__(self, parameters: Sequence[Tensor], lr: float, decay: float, momentum: float) -> None:
        self.parameters = [p.data for p in parameters]
        recipe = Recipe("momentum" if momentum else "sgd", momentum=momentum, weight_decay=decay)
        self.optimizer = StackedSGD(recipe, self.parameters)
        self.lr = torch.tensor(lr, dtype=self.parameters[0].dtype, device=self.parameters[0].device)

    def step_(self, gradients: list[Tensor], factor: Tensor) -> None:
        """Take a step."""
        moves = self.optimizer.moves(self.parameters, gradients)
        torch._foreach_mul_(moves, self.lr * factor)  # a number on the device: a recorded step can be slowed down
        torch._foreach_sub_(self.parameters, moves)


class Lane:
    """One run under way: its network, its optimiser, and an epoch's draws."""

    def __init__(
        self, model: nn.Module, treatment: Treatment, seed: int, images: Images, training: SweepTraining
    ) -> None:
        device = images.whole.device
        model = model.to(device)
        if device.type == "cuda":
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.model, self.seed, self.images, self.training = model, seed, images, training
        self.fused = fused_for(model, device)
        param_groups = treatment.param_groups(model, weight_decay=training.weight_decay)
        self.leaves = [p for group in param_groups for p in group["params"]]
        self.groups = [
            _ParameterGroup(g["params"], g["lr"], g["weight_decay"], training.momentum) for g in param_groups
        ]
        first = self.draw(0)
        self.draws = Draws(*(torch.empty_like(tensor, device=device) for tensor in first.tensors))
        self.lay_(first)
        self.total = torch.zeros((), device=device)

    def draw(self, epoch: int) -> Draws:
        """Draw an epoch, on the host."""
        return draws(len(self.images.labels), self.training, seed=self.seed, epoch=epoch)

    def lay_(self, drawn: Draws) -> None:
        """Lay an epoch's draws where steps read them."""
        for tensor, value in zip(self.draws.tensors, drawn.tensors, strict=True):
            tensor.copy_(value)

    def step_(self, step_index: Tensor, factor: Tensor, precision: Precision) -> None:
        """Take one step on the batch that `step_index` names, and add its loss to the total."""
        numbers, moves = self.draws.batch(step_index, self.training.padding)
        inputs = taken(self.images.whole, numbers, moves)
        self.model.train()
        network = self.fused if self.fused and precision == "bfloat16" else self.model
        with autocast(precision, inputs.device):
            loss = functional.cross_entropy(network(inputs), self.images.labels.index_select(0, numbers))
        gradients = list(torch.autograd.grad(loss, self.leaves))
        with torch.no_grad():
            done = 0
            for group in self.groups:
                group.step_(gradients[done : done + len(group.parameters)], factor)
                done += len(group.parameters)
            self.total += loss.detach()

    def state(self) -> list[Tensor]:
        """Return every tensor that a step changes."""
        momentum = [buffer for group in self.groups for buffer in group.optimizer.state()]
        return [*(p.data for p in self.leaves), *self.model.buffers(), *momentum, self.total]

    def evaluate(self, precision: Precision) -> tuple[float, float]:
        """Return accuracy in percent and mean loss on the test images, by running statistics."""
        self.model.eval()
        inputs, labels = self.images.test
        right = torch.zeros((), dtype=torch.float64, device=inputs.device)
        total = torch.zeros_like(right)
        with torch.no_grad(), autocast(precision, inputs.device):
            for x, y in zip(*(torch.split(part, _EVALUATION_BATCH) for part in (inputs, labels)), strict=True):
                logits = self.model(x).float()
                right += (logits.argmax(dim=1) == y).sum()
                total += functional.cross_entropy(logits, y, reduction="sum")
        return 100 * float(right) / len(labels), float(total) / len(labels)


class LaneGroup:
    """Lanes that step together; on a GPU over several streams."""

    def __init__(self, lanes: Sequence[Lane], precision: Precision) -> None:
        self.lanes, self.precision = list(lanes), precision
        self.device = lanes[0].images.whole.device
        self.steps = len(lanes[0].draws.numbers)
        self.step_index = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.factor = torch.ones((), device=self.device)
        self.streams = streams_for(self.device, len(lanes))

    def begin_(self, drawn: Sequence[Draws], factor: float) -> None:
        """Start an epoch."""
        for lane, epoch_draws in zip(self.lanes, drawn, strict=True):
            lane.lay_(epoch_draws)
            lane.total.zero_()
        self.step_index.zero_()
        self.factor.fill_(factor)

    def step_(self) -> None:
        """Take one step with every lane, and move on to the next batch."""
        with fanned_out(self.streams):
            for place, lane in enumerate(self.lanes):
                with on(self.streams, place):
                    lane.step_(self.step_index, self.factor, self.precision)
        self.step_index += 1

    def losses(self) -> list[float]:
        """Return the mean training loss of the epoch so far, waiting for the device."""
        return [float(lane.total) / self.steps for lane in self.lanes]

    def state(self) -> list[Tensor]:
        """Return every tensor that a step changes."""
        return [self.step_index, *(tensor for lane in self.lanes for tensor in lane.state())]
