"""What an epoch of a loader is: its examples, or its batches if there is no other way to read them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any, TypeVar

from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

from evenstep.errors import InputError
from evenstep.search.collating import plain, require_row_each, rows_of
from evenstep.search.fields import column

_ENDLESS = 1_000_000  # examples of data without a length: more would not fit into memory
Item = TypeVar("Item")


def takes_all(loader: DataLoader[Any]) -> bool:
    """Say whether an epoch of a loader is every example of its data set once, in any order."""
    if type(loader.batch_sampler) is not BatchSampler:
        return False
    sampler = loader.batch_sampler.sampler  # with a batch sampler, `loader.sampler` is torch's default
    if type(sampler) is RandomSampler and sampler.replacement:
        return False
    return type(sampler) in (RandomSampler, SequentialSampler) and len(sampler) == len(loader.dataset)  # type: ignore[arg-type]


def indices_of(loader: DataLoader[Any], limit: int | None, enough: int | None) -> list[int]:
    """Return the indices of the examples that a loader's batches take, for one epoch or less."""
    assert loader.batch_sampler is not None
    batches = islice(loader.batch_sampler, _length(loader.batch_sampler))
    known = _length(loader.batch_sampler) is not None
    return list(_bounded(chain.from_iterable(batches), limit, enough, known=known))


def first_batches(loader: DataLoader[Any], limit: int | None, enough: int | None) -> list[Any]:
    """Return the first batches that together hold enough examples."""
    known = _length(loader)
    bound = limit if limit is not None else enough if known is None else None
    batches: list[Any] = []
    seen = 0
    for batch in islice(loader, known):
        batches.append(plain(batch, loader))
        _require_rows(loader, batches)
        seen += rows_of(batches[-1])
        if bound is not None and seen >= bound:
            break
        if bound is None and known is None and seen > _ENDLESS:
            raise _endless()
    return batches


def _require_rows(loader: DataLoader[Any], batches: list[Any]) -> None:
    """Refuse batches whose examples are not along the first axis, as far as their sizes tell."""
    size = loader.batch_size
    if size is None or len(batches) > 2:
        return
    # A batch with fewer examples is the last one, or the last of one worker.
    followed = len(batches) == 2 and loader.num_workers < 2
    if rows_of(batches[0]) > size or (followed and rows_of(batches[0]) < size):
        require_row_each(column(batches[0], 0), size, dropped=True)


def _length(items: Any) -> int | None:
    """Return the number of items, or None if it is unknown."""
    try:
        return len(items)
    except (TypeError, NotImplementedError):
        return None


def _bounded(items: Iterable[Item], limit: int | None, enough: int | None, *, known: bool) -> Iterator[Item]:
    bound = limit if limit is not None or known else enough
    yield from islice(items, bound) if known or bound is not None else _ending(items)


def _ending(items: Iterable[Item]) -> Iterator[Item]:
    for count, item in enumerate(items):
        if count == _ENDLESS:
            raise _endless()
        yield item


def _endless() -> InputError:
    return InputError(
        f"the DataLoader has returned {_ENDLESS} examples without an end; give steps= instead of epochs=, so that only "
        "the examples trained on are read, or a sampler or data set with a length"
    )
