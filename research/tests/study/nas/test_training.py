"""Check the training against a plain loop of torch.optim, side by side and alone, and its draws and checkpoints."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from evenstep.errors import InputError, StoreError
from evenstep_research.data import Split, augment, digits, draw_moves, moved
from evenstep_research.study.nas.captured import Checkpoint, TrainingResult, stepping_of, train
from evenstep_research.study.nas.protocols import BenchmarkProtocol, Pace, Treatment, WeightedProtocol
from evenstep_research.study.nas.training import Images, Lane, LaneGroup, SweepTraining, draws, steps_of
from research.tests.study.nas.tiny import LIGHT, SHAPE, TRAINING, images

TWO = replace(TRAINING, epochs=2)
CODE = "303101"


def lane(protocol: BenchmarkProtocol | WeightedProtocol, seed: int, training: SweepTraining = TWO) -> Lane:
    treatment = protocol.treatment(CODE, SHAPE)
    return Lane(treatment.start(lambda: SHAPE.network(CODE), seed), treatment, seed, images(training), training)


def one_by_one(split: Split, training: SweepTraining, treatment: Treatment, seed: int) -> tuple[nn.Module, list[float]]:
    """Train as one would by hand: torch.optim, a scheduler, and every image padded, cropped and flipped on its own."""
    model = treatment.start(lambda: SHAPE.network(CODE), seed).double()
    groups = treatment.param_groups(model, weight_decay=training.weight_decay)
    optimizer = torch.optim.SGD(groups, momentum=training.momentum, nesterov=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, training.epochs)
    inputs, labels = split.train[0].expand(-1, 3, -1, -1).double(), split.train[1]
    black = float(inputs.min())
    means = []
    for epoch in range(training.epochs):
        drawn = draws(len(inputs), training, seed=seed, epoch=epoch)
        losses = []
        for step in range(len(drawn.numbers)):
            batch: list[Tensor] = []
            for number, row, column, flip in zip(*(tensor[step] for tensor in drawn.tensors), strict=True):
                whole = functional.pad(inputs[number], [training.padding] * 4, value=black)
                crop = whole[:, int(row) : int(row) + 8, int(column) : int(column) + 8]
                batch.append(crop.flip(2) if flip else crop)
            optimizer.zero_grad()
            loss = functional.cross_entropy(model.train()(torch.stack(batch)), labels[drawn.numbers[step]])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(float(loss.detach()))
        means.append(sum(losses) / len(losses))
        scheduler.step()
    return model, means


@pytest.mark.parametrize("protocol", [BenchmarkProtocol(), WeightedProtocol(0.3)], ids=lambda one: one.name)
def test_training_is_the_plain_loops(protocol: BenchmarkProtocol | WeightedProtocol) -> None:
    """In double precision: norms of nearly constant pixels blow rounding up."""
    split = digits()
    treatment = protocol.treatment(CODE, SHAPE)
    assert (len({pace.lr for pace in treatment.paces}) == 1) == (protocol.name == "benchmark")
    data = images(TWO)
    data = replace(data, whole=data.whole.double(), test=(data.test[0].double(), data.test[1]))
    ours = Lane(treatment.start(lambda: SHAPE.network(CODE), 4).double(), treatment, 4, data, TWO)
    (found,) = train([ours], TWO)
    model, losses = one_by_one(split, TWO, treatment, seed=4)
    assert found.train_losses == pytest.approx(losses, rel=1e-6)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(ours.model.state_dict()[name], value, rtol=1e-6, atol=1e-7, msg=name)
    logits = model.eval()(split.test[0].expand(-1, 3, -1, -1).double()).detach()
    right = (logits.argmax(dim=1) == split.test[1]).double().mean()
    assert found.accuracy == pytest.approx(100 * float(right))
    assert found.test_loss == pytest.approx(float(functional.cross_entropy(logits, split.test[1])), rel=1e-5)
    assert not found.diverged
    assert found.seconds > 0


def test_side_by_side_is_as_alone() -> None:
    alone = [train([lane(BenchmarkProtocol(lr), seed)], TWO)[0] for lr, seed in ((0.1, 0), (0.2, 0), (0.1, 1))]
    together = train([lane(BenchmarkProtocol(lr), seed) for lr, seed in ((0.1, 0), (0.2, 0), (0.1, 1))], TWO)
    assert [replace(one, seconds=0.0) for one in together] == [replace(one, seconds=0.0) for one in alone]
    assert len({one.train_losses for one in alone}) == 3


def test_decay_spares_nothing_and_has_its_own_factor() -> None:
    """Without gradients worth the name a step at rate 1 shrinks a weight by its own decay."""
    labels = torch.zeros(8, dtype=torch.long)
    split = Split((torch.zeros(8, 3, 8, 8), labels), (torch.zeros(8, 3, 8, 8), labels))
    training = SweepTraining(epochs=1, batch_size=8, momentum=0.0, weight_decay=0.1, padding=0)
    data = Images.of(split, name="zeros", padding=0, device=torch.device("cpu"))
    paces = tuple(
        Pace(name, 1.0, decay=2.0 if name == "stem.norm.weight" else 1.0)
        for name, _ in SHAPE.network(LIGHT).named_parameters()
    )
    model = Treatment(paces, "").start(lambda: SHAPE.network(LIGHT), 0)
    train([Lane(model, Treatment(paces, ""), 0, data, training)], training)
    found = dict(model.named_parameters())
    # Nothing but zeros goes through the convolutions, so only biases and the readout learn.
    torch.testing.assert_close(found["stem.norm.weight"].detach(), torch.full((4,), 0.8))
    torch.testing.assert_close(found["cells.0.edges.0_3.norm.weight"].detach(), torch.full((4,), 0.9))


def test_the_schedule_is_the_benchmarks_from_epoch_to_epoch() -> None:
    training = SweepTraining(epochs=12)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 12)
    for epoch in range(12):
        assert training.factor(epoch) == pytest.approx(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()


def test_draws_follow_seed_and_epoch() -> None:
    training = SweepTraining(epochs=2, batch_size=10)
    first = draws(35, training, seed=0, epoch=0)
    assert first.numbers.shape == (3, 10)
    assert steps_of(35, training) == 3
    assert len(set(first.numbers.flatten().tolist())) == 30
    assert int(first.rows.max()) <= 8
    assert first.flips.any()
    assert not first.flips.all()
    assert torch.equal(first.rows, draws(35, training, seed=0, epoch=0).rows)
    others = [draws(35, training, seed=seed, epoch=epoch) for seed, epoch in ((0, 1), (1, 0), (1, 1))]
    assert len({str(one.numbers) for one in (first, *others)}) == 4
    assert draws(6, training, seed=0, epoch=0).numbers.shape == (1, 6)


def test_padding_is_black_and_grey_images_fill_all_channels() -> None:
    data, split = images(), digits()
    side = 8 + 2 * TRAINING.padding
    assert data.whole.shape == (1437, 3, side, side)
    assert (data.whole[:, :, 0] == split.train[0].min()).all()
    for channel in range(3):
        assert torch.equal(data.whole[:, channel, 1:-1, 1:-1], split.train[0][:, 0])
    assert data.whole.is_contiguous(memory_format=torch.channels_last)


def test_every_channel_is_padded_with_its_own_number() -> None:
    generator = torch.Generator().manual_seed(0)
    pictures, fill = torch.randn(6, 3, 5, 4, generator=generator), [1.0, -2.0, 0.5]
    moves = draw_moves(6, generator=generator, padding=2)
    for form in (torch.contiguous_format, torch.channels_last):
        found = moved(pictures.contiguous(memory_format=form), moves, fill=fill)
        for image, crop, row, column, flip in zip(pictures, found, moves.rows, moves.columns, moves.flips, strict=True):
            planes = [functional.pad(plane, [2] * 4, value=value) for plane, value in zip(image, fill, strict=True)]
            expected = torch.stack(planes)[:, int(row) : int(row) + 5, int(column) : int(column) + 4]
            assert torch.equal(crop, expected.flip(2) if flip else expected)
    with pytest.raises(InputError, match="fill has 2 numbers and images 3 channels"):
        moved(pictures, moves, fill=[0.0, 1.0])
    whole = augment(pictures, generator=torch.Generator().manual_seed(1), padding=9, fill=7.0)
    assert (whole == 7.0).any()


class CutError(Exception):
    """Stand for a kill."""


def test_a_training_that_was_cut_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    training = replace(TRAINING, epochs=3)
    seeds = (0, 1)
    whole = train([lane(BenchmarkProtocol(), seed, training) for seed in seeds], training)

    def stop(epoch: int) -> None:
        if epoch == 3:
            raise CutError

    path = tmp_path / "c.pt"
    with pytest.raises(CutError):
        train(
            [lane(BenchmarkProtocol(), seed, training) for seed in seeds],
            training,
            checkpoint=Checkpoint(path, "these", every=0.0),
            notify=stop,
        )
    heard: list[int] = []
    again = train(
        [lane(BenchmarkProtocol(), seed, training) for seed in seeds],
        training,
        checkpoint=Checkpoint(path, "these"),
        notify=heard.append,
    )
    assert heard == [3]
    assert [replace(one, seconds=0.0) for one in again] == [replace(one, seconds=0.0) for one in whole]
    others: list[int] = []
    train([lane(BenchmarkProtocol(), 0)], TWO, checkpoint=Checkpoint(path, "others"), notify=others.append)
    assert others == [1, 2]
    path.write_text("nonsense")
    with pytest.raises(StoreError, match="cannot be read"):
        train([lane(BenchmarkProtocol(), 0)], TWO, checkpoint=Checkpoint(path, "these"))


def test_a_rate_too_high_diverges_and_says_so() -> None:
    (found,) = train([lane(BenchmarkProtocol(1e30), 0)], TWO)
    assert found.diverged
    assert math.isinf(found.train_losses[-1])
    assert 0 <= found.accuracy < 30
    assert not TrainingResult(90.0, math.inf, (1.0,), 0.0).diverged


@pytest.mark.parametrize("name", ["epochs", "batch_size"])
def test_wrong_numbers_are_refused(name: str) -> None:
    with pytest.raises(InputError, match=f"{name} is 0; give a whole number from 1 up"):
        SweepTraining(**{name: 0})  # type: ignore[arg-type]


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


@needs_gpu
@pytest.mark.parametrize("count", [1, 3])
def test_recorded_steps_are_those_taken_one_by_one(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    data = Images.of(digits(), name="digits", padding=1, device=torch.device("cuda"))
    treatment = BenchmarkProtocol().treatment(CODE, SHAPE)

    def lanes() -> list[Lane]:
        starts = [treatment.start(lambda: SHAPE.network(CODE), seed) for seed in range(count)]
        return [Lane(model, treatment, seed, data, TWO) for seed, model in enumerate(starts)]

    recorded = train(lanes(), TWO)
    monkeypatch.setattr("evenstep_research.study.nas.captured.stepping_of", lambda group: group.step_)
    plain = train(lanes(), TWO)
    for one, other in zip(recorded, plain, strict=True):
        assert one.train_losses == pytest.approx(other.train_losses, rel=1e-2)


@needs_gpu
def test_a_step_can_be_recorded(recwarn: pytest.WarningsRecorder) -> None:
    data = Images.of(digits(), name="digits", padding=1, device=torch.device("cuda"))
    treatment = WeightedProtocol(0.3).treatment(CODE, SHAPE)
    lanes = [Lane(treatment.start(lambda: SHAPE.network(CODE), seed), treatment, seed, data, TWO) for seed in range(2)]
    group = LaneGroup(lanes, "bfloat16")
    before = [tensor.clone() for tensor in group.state()]
    assert stepping_of(group) != group.step_
    assert all(torch.equal(a, b) for a, b in zip(group.state(), before, strict=True))
    assert not recwarn
