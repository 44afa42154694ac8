"""What a loader's epoch is: the examples of its samplers, a row for each, and nothing drawn or changed on the way."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
)

import evenstep as es
from evenstep.search import LocalEngine
from evenstep.search.fields import Data
from evenstep.search.tensors import as_tensors, loader_batch_size

torch.set_num_threads(1)
COUNT, WIDTH = 48, 6
INPUTS = torch.randn(COUNT, WIDTH, generator=torch.Generator().manual_seed(0))
LABELS = (INPUTS[:, 0] > 0).long()
PAIRS = TensorDataset(INPUTS, LABELS)


def read(data: Any, loss: Any = None, **options: Any) -> tuple[Tensor, Tensor]:
    (inputs, targets), _ = as_tensors(data, loss, **options)
    assert isinstance(inputs, Tensor)
    assert isinstance(targets, Tensor)
    return inputs, targets


def batches(loader: Any) -> tuple[Tensor, Tensor]:
    """What the loader itself gives, as one batch."""
    inputs, targets = zip(*loader, strict=True)
    return torch.cat(inputs), torch.cat(targets)


# Which examples


@pytest.mark.parametrize(
    "inner",
    [
        SubsetRandomSampler(range(20), generator=torch.Generator()),
        SequentialSampler(range(20)),
        RandomSampler(range(20)),
        RandomSampler(PAIRS, num_samples=20, replacement=True),
    ],
    ids=["subset", "sequential", "random", "replacement"],
)
def test_the_sampler_within_a_batch_sampler_says_which_examples_count(inner: Any) -> None:
    loader: DataLoader[Any] = DataLoader(PAIRS, batch_sampler=BatchSampler(inner, 8, drop_last=False))
    inputs, targets = read(loader)
    assert len(inputs) == len(targets) == 20
    places = [int((row == INPUTS).all(1).nonzero()) for row in inputs]
    assert targets.tolist() == LABELS[places].tolist()
    if not getattr(inner, "replacement", False):
        assert sorted(places) == list(range(20))
    assert loader_batch_size(loader) == 8


def test_a_batch_sampler_over_all_examples_takes_them_all() -> None:
    loader: DataLoader[Any] = DataLoader(PAIRS, batch_sampler=BatchSampler(RandomSampler(PAIRS), 8, drop_last=True))
    assert torch.equal(read(loader)[0], INPUTS)


class Many(Dataset[Any]):
    """A data set that gives many examples at once, and none alone."""

    def __len__(self) -> int:
        return COUNT

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [(INPUTS[index], LABELS[index]) for index in indices]


def test_a_data_set_that_gives_many_at_once_is_asked_for_many() -> None:
    loader = DataLoader(Many(), batch_size=8)
    assert torch.equal(read(loader)[0], batches(loader)[0])
    assert torch.equal(read(Subset(Many(), range(3, 9)))[0], INPUTS[3:9])


def test_a_data_set_that_gives_nothing_is_refused_in_one_line() -> None:
    class Neither(Dataset[Any]):
        def __len__(self) -> int:
            return COUNT

    with pytest.raises(
        es.InputError, match="Neither does not give access to its examples; give its class a __getitem__"
    ):
        as_tensors(DataLoader(Neither(), batch_size=8))


# A row for each example


class Sequences(Dataset[Any]):
    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return torch.arange(self.length) + index, torch.arange(self.length) - index


def padded(examples: list[Any], *, batch_first: bool) -> Any:
    first, second = map(list, zip(*examples, strict=True))
    return pad_sequence(first, batch_first=batch_first), pad_sequence(second, batch_first=batch_first)


@pytest.mark.parametrize("length", [11, COUNT], ids=["other length", "as long as there are examples"])
def test_time_first_is_refused_and_said_where_the_batch_is(length: int) -> None:
    def loader(batch_first: bool) -> DataLoader[Any]:
        collate = functools.partial(padded, batch_first=batch_first)
        return DataLoader(Sequences(length), batch_size=16, collate_fn=collate)

    with pytest.raises(es.InputError, match=r"'0' of shape .* axis 1 looks like the batch.*batch_first=True") as raised:
        as_tensors(loader(False))
    assert "\n" not in str(raised.value)
    (inputs, _), _ = as_tensors(loader(True))
    assert isinstance(inputs, Tensor)
    assert torch.equal(inputs[3], torch.arange(length) + 3)


def test_time_first_in_a_stream_is_refused_too() -> None:
    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            yield from (Sequences(11)[index] for index in range(COUNT))

    loader: DataLoader[Any] = DataLoader(
        Stream(), batch_size=16, collate_fn=functools.partial(padded, batch_first=False)
    )
    with pytest.raises(es.InputError, match="axis 1 looks like the batch"):
        as_tensors(loader)
    loader = DataLoader(Stream(), batch_size=32, collate_fn=functools.partial(padded, batch_first=True))
    assert len(as_tensors(loader)[0][0]) == COUNT  # the last batch is smaller


def test_several_rows_of_an_example_are_refused() -> None:
    def views(examples: list[Any]) -> Any:
        inputs = torch.stack([example[0] for example in examples])
        labels = torch.stack([example[1] for example in examples])
        return torch.cat([inputs, -inputs]), torch.cat([labels, labels])

    def side_by_side(examples: list[Any]) -> Any:
        inputs = torch.stack([example[0] for example in examples])
        return torch.stack([inputs, -inputs], 1), torch.stack([example[1] for example in examples])

    with pytest.raises(es.InputError, match=r"makes 4 rows from 2 examples .*; return one row for each example"):
        as_tensors(DataLoader(PAIRS, batch_size=8, collate_fn=views))
    assert read(DataLoader(PAIRS, batch_size=8, collate_fn=side_by_side))[0].shape == (COUNT, 2, WIDTH)


def test_examples_that_a_data_set_cannot_give_may_be_left_out() -> None:
    class Broken(Dataset[Any]):
        def __len__(self) -> int:
            return COUNT

        def __getitem__(self, index: int) -> Any:
            return None if index % 5 == 0 else PAIRS[index]

    def whole(examples: list[Any]) -> Any:
        kept = [example for example in examples if example is not None]
        return torch.stack([example[0] for example in kept]), torch.stack([example[1] for example in kept])

    loader = DataLoader(Broken(), batch_size=8, collate_fn=whole)
    assert torch.equal(read(loader)[0], batches(loader)[0])


# Nothing changed


class Named(Dataset[Any]):
    """Examples as dictionaries, kept by the data set."""

    def __init__(self) -> None:
        self.kept = [{"x": INPUTS[index].clone(), "weight": 5.0 + index} for index in range(COUNT)]

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return self.kept[index]


@pytest.mark.parametrize("default", [(), (1.0,)], ids=["pop", "pop with a default"])
def test_a_collate_function_may_take_entries_out_of_examples(default: tuple[float, ...]) -> None:
    def collate(examples: list[Any]) -> Any:
        weights = [example.pop("weight", *default) for example in examples]
        return torch.stack([example["x"] for example in examples]), torch.tensor(weights)

    data = Named()
    for _ in range(2):
        inputs, targets = read(DataLoader(data, batch_size=8, collate_fn=collate), F.mse_loss)
        assert torch.equal(inputs, INPUTS)
        assert targets.tolist() == [5.0 + index for index in range(COUNT)]


def test_a_collate_function_that_changes_tensors_is_tried_on_copies() -> None:
    def collate(examples: list[Any]) -> Any:
        return torch.stack([example["x"].mul_(2) for example in examples]), torch.zeros(len(examples))

    assert torch.equal(read(DataLoader(Named(), batch_size=8, collate_fn=collate), F.mse_loss)[0], 2 * INPUTS)


class Drawing(Dataset[Any]):
    """A data set with generators of its own, one of them deep within its transform."""

    def __init__(self) -> None:
        self.arrays, self.legacy = np.random.default_rng(3), np.random.RandomState(3)
        self.python, generator = random.Random(3), torch.Generator().manual_seed(3)
        self.transform = [functools.partial(torch.randn, WIDTH, generator=generator)]

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        drawn = torch.tensor(self.arrays.normal() + self.legacy.normal() + self.python.gauss(0, 1))
        return INPUTS[index] + drawn.float() + self.transform[0](), LABELS[index]


class Shuffling(Sampler[int]):
    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(1)

    def __iter__(self) -> Iterator[int]:
        yield from torch.randperm(COUNT, generator=self.generator).tolist()

    def __len__(self) -> int:
        return COUNT


class OwnBatches:
    def __init__(self) -> None:
        self.sampler = RandomSampler(PAIRS, generator=torch.Generator().manual_seed(2))

    def __iter__(self) -> Iterator[list[int]]:
        order = list(self.sampler)
        yield from (order[start : start + 8] for start in range(0, COUNT, 8))


def closed_over() -> Any:
    generator = torch.Generator().manual_seed(4)

    def collate(examples: list[Any]) -> Any:
        inputs = torch.stack([example[0] for example in examples])
        return inputs + torch.randn(inputs.shape, generator=generator), torch.stack([e[1] for e in examples])

    return collate


def shuffled() -> RandomSampler:
    return RandomSampler(PAIRS, generator=torch.Generator().manual_seed(0))


LOADERS: dict[str, Any] = {
    "batch sampler": lambda: DataLoader(PAIRS, batch_sampler=BatchSampler(shuffled(), 8, drop_last=False)),
    "own sampler": lambda: DataLoader(PAIRS, batch_size=8, sampler=Shuffling()),
    "own batch sampler": lambda: DataLoader(PAIRS, batch_sampler=OwnBatches()),
    "data set": lambda: DataLoader(Subset(Drawing(), range(20)), batch_size=8),
    "collate function": lambda: DataLoader(PAIRS, batch_size=8, collate_fn=closed_over()),
}


@pytest.mark.parametrize("kind", LOADERS)
def test_every_generator_is_where_it_was(kind: str) -> None:
    seen, untouched = LOADERS[kind](), LOADERS[kind]()
    as_tensors(seen)
    loader_batch_size(seen)
    torch.manual_seed(0)
    after = batches(seen)
    torch.manual_seed(0)
    for one, other in zip(after, batches(untouched), strict=True):
        assert torch.equal(one, other)


def test_generators_of_a_data_set_without_a_loader_are_where_they_were() -> None:
    data = Drawing()
    as_tensors(data)
    assert torch.equal(data[0][0], Drawing()[0][0])


# No end


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return zip(itertools.cycle(INPUTS), itertools.cycle(LABELS))


class EndlessSampler(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return itertools.cycle(range(COUNT))


class SizedEndlessSampler(EndlessSampler):
    def __len__(self) -> int:
        return 30


def search(loader: Any, **options: Any) -> es.LRSearch:
    usual: dict[str, Any] = {"seeds": 1, "grid": [0.1], "on_failure": "return", "engine": LocalEngine(workers=1)}
    return es.search_lr(
        lambda: nn.Sequential(nn.Linear(WIDTH, 4), nn.ReLU(), nn.Linear(4, 2)), loader, **usual | options
    )


def endless(sampler: Any) -> DataLoader[Any]:
    return DataLoader(PAIRS, batch_size=8, sampler=sampler)


@pytest.mark.parametrize(
    ("loader", "count"),
    [(DataLoader(Endless(), batch_size=8), 80), (endless(EndlessSampler()), 80), (endless(SizedEndlessSampler()), 32)],
    ids=["stream", "sampler", "sampler with a length"],
)
def test_of_data_without_end_a_search_reads_what_its_steps_take(loader: Any, count: int) -> None:
    held = []

    class Reads(LocalEngine):
        def run(self, job: Any, data: Data, *rest: Any) -> Any:
            held.append(len(data[0]))
            return super().run(job, data, *rest)

    search(loader, steps=10, engine=Reads(workers=1))
    assert held == [count]


def test_a_stream_that_ends_is_read_whole_where_epochs_count() -> None:
    class Ending(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return iter(zip(INPUTS, LABELS, strict=True))

    found = search(DataLoader(Ending(), batch_size=8), epochs=2)
    assert found.steps == 2 * COUNT // 8


def test_epochs_of_data_without_end_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evenstep.search.loaders._ENDLESS", 1000)
    for loader in (DataLoader(Endless(), batch_size=8), endless(EndlessSampler())):
        with pytest.raises(es.InputError, match="1000 examples without an end; give steps= instead of epochs="):
            as_tensors(loader)
