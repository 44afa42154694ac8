"""Data as people have it: every form trains to the losses of a pair of tensors and a plain model, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, WeightedRandomSampler

import evenstep as es
from evenstep.search import LocalEngine
from evenstep.search.fields import Fields
from evenstep.search.tensors import as_tensors, loader_batch_size, takes_output_alone

COUNT, WIDTH, CLASSES = 48, 6, 3
RATES = [0.02, 0.1, 0.5]


def made() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    first, second = (torch.randn(COUNT, WIDTH, generator=generator) for _ in range(2))
    return first, second, (first[:, :CLASSES] + second[:, :CLASSES]).argmax(1)


FIRST, SECOND, LABELS = made()


class Joined(nn.Module):
    """The plain form: one tensor in, logits out."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.readout = nn.Linear(2 * WIDTH, 16), nn.Linear(16, CLASSES)

    def forward(self, both: Tensor) -> Tensor:
        logits: Tensor = self.readout(F.relu(self.hidden(both)))
        return logits


class Two(Joined):
    """Two inputs, by position or by name."""

    def forward(self, first: Tensor, second: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(torch.cat([first, second], 1))


class WithLoss(Joined):
    """A model that computes its own loss, as transformers' do."""

    def forward(self, first: Tensor, second: Tensor, labels: Tensor | None = None) -> Any:  # type: ignore[override]
        logits = super().forward(torch.cat([first, second], 1))
        return {"logits": logits} | ({} if labels is None else {"loss": F.cross_entropy(logits, labels)})


class NeedsLabels(WithLoss):
    """A model that does not run without labels, as T5 does not."""

    def forward(self, first: Tensor, second: Tensor, labels: Tensor | None = None) -> Any:  # type: ignore[override]
        if labels is None:
            raise ValueError("You have to specify labels")
        return super().forward(first, second, labels)


class Rows(Dataset[Any]):
    """Examples as tuples of both inputs and a label."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return FIRST[index], SECOND[index], int(LABELS[index])


class Named(Rows):
    """Examples as dictionaries."""

    def __getitem__(self, index: int) -> Any:
        return {"first": FIRST[index], "second": SECOND[index], "labels": int(LABELS[index])}


class Ragged(Rows):
    """Examples of different lengths, which only their own collate function can put together."""

    def __getitem__(self, index: int) -> Any:
        return FIRST[index][: 2 + index % 4], SECOND[index], int(LABELS[index])


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from (Named()[index] for index in range(COUNT))


def padded(examples: list[Any]) -> Any:
    first = torch.stack([F.pad(example[0], (0, WIDTH - len(example[0]))) for example in examples])
    return first, torch.stack([e[1] for e in examples]), torch.tensor([e[2] for e in examples])


def of_output(output: Any) -> Tensor:
    loss: Tensor = output["loss"]
    return loss


def searched(make: Any, data: Any, **options: Any) -> tuple[tuple[float, ...], ...]:
    batch_size = None if isinstance(data, DataLoader) else 12
    engine = LocalEngine(workers=1)
    found = es.search_lr(
        make, data, steps=20, seeds=2, grid=RATES, batch_size=batch_size, engine=engine, on_failure="return", **options
    )
    return found.losses


WHOLE = {"first": FIRST, "second": SECOND, "labels": LABELS}


@pytest.fixture(scope="module")
def plain() -> tuple[tuple[float, ...], ...]:
    return searched(Joined, (torch.cat([FIRST, SECOND], 1), LABELS))


@pytest.mark.parametrize(
    ("make", "data", "options"),
    [
        (Two, (FIRST, SECOND, LABELS), {}),
        (Two, Rows(), {}),
        (Two, DataLoader(Rows(), batch_size=12, shuffle=True), {}),
        (Two, WHOLE, {"loss": F.cross_entropy}),
        (Two, Named(), {"loss": nn.CrossEntropyLoss()}),
        (WithLoss, WHOLE, {}),
        (WithLoss, Named(), {}),
        (NeedsLabels, Named(), {}),
        (WithLoss, [Named()[index] for index in range(COUNT)], {}),
        (WithLoss, DataLoader(Named(), batch_size=12), {"loss": of_output}),
        (WithLoss, DataLoader(Stream(), batch_size=12), {}),
        (WithLoss, (FIRST, SECOND, LABELS), {"loss": of_output}),
    ],
    ids=[
        *("tuple of tensors", "examples of three", "loader of three", "dictionary", "examples by name"),
        *(
            "own loss",
            "examples, own loss",
            "labels needed",
            "list of examples",
            "loader, loss of the output",
            "stream",
        ),
        "all to the model",
    ],
)
def test_every_form_trains_to_the_same_losses(make: Any, data: Any, options: Any, plain: Any) -> None:
    assert searched(make, data, **options) == plain


def test_a_collate_function_pads_all_examples_as_it_would_a_batch() -> None:
    loader = DataLoader(Ragged(), batch_size=12, collate_fn=padded)
    assert searched(Two, loader) == searched(Two, padded([Ragged()[index] for index in range(COUNT)]))


def test_a_store_tells_forms_of_data_apart_and_goes_on_from_its_own(tmp_path: Any) -> None:
    store = tmp_path / "runs.sqlite"
    first = searched(WithLoss, WHOLE, store=store)
    assert searched(WithLoss, WHOLE, store=store, resume=True) == first
    with pytest.raises(es.SearchError, match="holds no search of this configuration"):
        searched(WithLoss, WHOLE | {"first": SECOND}, store=store, resume=True)


def test_a_loader_draws_the_same_order_after_it_was_read() -> None:
    def order() -> tuple[DataLoader[Any], torch.Generator]:
        generator = torch.Generator().manual_seed(3)
        return DataLoader(Rows(), batch_size=12, shuffle=True, generator=generator), generator

    read, untouched = order()[0], order()[0]
    before = torch.random.get_rng_state()
    as_tensors(read)
    assert torch.equal(before, torch.random.get_rng_state())
    for one, other in zip(read, untouched, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_a_limit_takes_examples_from_all_over_the_data() -> None:
    (inputs, targets), _ = as_tensors(Rows(), limit=20)
    assert isinstance(inputs, Fields)
    assert len(inputs) == len(targets) == 20
    places = [int((row == FIRST).all(1).nonzero()) for row in inputs.value[0]]
    assert len(set(places)) == 20
    assert max(places) >= 20


def test_a_sampler_of_ones_own_says_which_examples_count() -> None:
    weights = torch.zeros(COUNT)
    weights[5] = 1.0
    loader = DataLoader(Rows(), batch_size=12, sampler=WeightedRandomSampler(weights.tolist(), COUNT))
    (inputs, _), _ = as_tensors(loader)
    assert isinstance(inputs, Fields)
    assert torch.equal(inputs.value[0], FIRST[5].expand(COUNT, WIDTH))


def test_a_batch_sampler_of_ones_own_says_which_examples_count_and_how_many_a_step_takes() -> None:
    class Sampler:
        def __iter__(self) -> Iterator[list[int]]:
            yield from ([4, 9, 1], [7, 3, 0])

        def __len__(self) -> int:
            return 2

    loader: DataLoader[Any] = DataLoader(Rows(), batch_sampler=Sampler())
    (inputs, _), _ = as_tensors(loader)
    assert isinstance(inputs, Fields)
    assert torch.equal(inputs.value[0], FIRST[[4, 9, 1, 7, 3, 0]])
    assert loader_batch_size(loader) == 3


def test_a_sampler_of_fewer_examples_reads_no_more() -> None:
    sampler = torch.utils.data.RandomSampler(Rows(), num_samples=10)
    (inputs, _), _ = as_tensors(DataLoader(Rows(), batch_size=5, sampler=sampler))
    assert len(inputs) == 10


def test_batches_that_come_ready_are_taken_as_they_are() -> None:
    batches = [(FIRST[start : start + 12], LABELS[start : start + 12]) for start in range(0, COUNT, 12)]
    loader: DataLoader[Any] = DataLoader(batches, batch_size=None)  # type: ignore[arg-type]
    (inputs, targets), _ = as_tensors(loader)
    assert isinstance(inputs, Tensor)
    assert isinstance(targets, Tensor)
    assert torch.equal(inputs, FIRST)
    assert torch.equal(targets, LABELS)
    assert loader_batch_size(loader) == 12


def test_values_that_depend_on_the_batch_are_refused_and_random_ones_are_not() -> None:
    def in_batch(examples: list[Any]) -> Any:
        return torch.stack([e[0] for e in examples]), torch.arange(len(examples))

    def noisy(examples: list[Any]) -> Any:
        first = torch.stack([e[0] for e in examples])
        return first + torch.randn_like(first), torch.tensor([e[2] for e in examples])

    with pytest.raises(es.InputError, match="collate_fn makes different values of an example in different batches"):
        as_tensors(DataLoader(Rows(), batch_size=12, collate_fn=in_batch))
    as_tensors(DataLoader(Rows(), batch_size=12, collate_fn=noisy))


def test_numbers_to_regress_on_ask_for_a_loss() -> None:
    with pytest.raises(es.InputError, match="neither classes nor probabilities, and no loss is given; give loss="):
        as_tensors((FIRST, SECOND))
    shares = torch.softmax(SECOND, 1)
    assert as_tensors((FIRST, shares))[1] is F.cross_entropy
    assert as_tensors((FIRST, SECOND), F.mse_loss)[1] is F.mse_loss


def test_a_loss_that_may_do_without_targets_gets_those_of_pairs() -> None:
    def loss(output: Tensor, target: Tensor | None = None) -> Tensor:
        return F.cross_entropy(output, output.argmax(1) if target is None else target)

    (_, targets), _ = as_tensors((FIRST, LABELS), loss)
    assert isinstance(targets, Tensor)
    assert torch.equal(targets, LABELS)


def test_losses_say_by_their_signature_what_they_are_of() -> None:
    assert takes_output_alone(of_output)
    assert takes_output_alone(lambda output, scale=2.0: output.loss * scale)
    for loss in (F.cross_entropy, nn.MSELoss(), lambda *parts: parts[0], lambda output, target: output - target):
        assert not takes_output_alone(loss)


@pytest.mark.parametrize(
    ("make", "data", "options", "message"),
    [
        (Two, WHOLE, {}, r"'labels'|labels"),
        (Two, {"first": FIRST, "second": SECOND}, {"loss": F.cross_entropy}, r"name the targets 'labels'"),
        (WithLoss, {"first": FIRST, "second": SECOND}, {}, r"without a loss; give loss="),
        (WithLoss, WHOLE | {"names": ["a"] * COUNT}, {}, r"'names' of dict holds str"),
        (WithLoss, WHOLE | {"second": SECOND[:5]}, {}, r"give tensors of one length"),
        (Two, DataLoader(Ragged(), batch_size=12), {}, r"a DataLoader whose collate_fn pads them"),
        (Two, (FIRST, SECOND, LABELS), {"loss": nn.MSELoss}, r"loss is the class MSELoss; give an instance"),
        (Joined, (FIRST.numpy(), LABELS.numpy()), {}, r"data is tuple of ndarray; give a pair of tensors"),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(make: Any, data: Any, options: Any, message: str) -> None:
    with pytest.raises(es.EvenstepError, match=message) as raised:
        searched(make, data, **options)
    assert "\n" not in str(raised.value)
