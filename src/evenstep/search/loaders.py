"""What an epoch of a loader is: which examples it takes, and the batches of those that come in no other way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any, TypeVar

from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

from evenstep.errors import InputError
from evenstep.search.collating import plain, require_row_each, rows_of
from evenstep.search.fields import column

_ENDLESS = 1_000_000  # examples of data that do not tell how many they are: more fit into no memory
Item = TypeVar("Item")


def takes_all(loader: DataLoader[Any]) -> bool:
    """Say whether an epoch of a loader is every example of its data set once, in whatever order."""
    if type(loader.batch_sampler) is not BatchSampler:
        return False
    sampler = loader.batch_sampler.sampler  # `loader.sampler` is torch's default where a batch sampler was given
    if type(sampler) is RandomSampler and sampler.replacement:
        return False
    return type(sampler) in (RandomSampler, SequentialSampler) and len(sampler) == len(loader.dataset)  # type: ignore[arg-type]


def indices_of(loader: DataLoader[Any], limit: int | None, enough: int | None) -> list[int]:
    """Return the indices of the examples that a loader's batches take, an epoch of them or fewer."""
    assert loader.batch_sampler is not None
    batches = islice(loader.batch_sampler, _length(loader.batch_sampler))
    known = _length(loader.batch_sampler) is not None
    return list(_bounded(chain.from_iterable(batches), limit, enough, known=known))


def first_batches(loader: DataLoader[Any], limit: int | None, enough: int | None) -> list[Any]:
    """Return the batches that come first, until they hold enough examples."""
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
    """Refuse batches of examples along another axis than the first, as far as their sizes tell."""
    size = loader.batch_size
    if size is None or len(batches) > 2:
        return
    # A batch of fewer examples is the last, of one worker's share where there are several.
    followed = len(batches) == 2 and loader.num_workers < 2
    if rows_of(batches[0]) > size or (followed and rows_of(batches[0]) < size):
        require_row_each(column(batches[0], 0), size, dropped=True)


def _length(items: Any) -> int | None:
    """Return how many there are, None where that is not known."""
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
        f"the DataLoader has given {_ENDLESS} examples and no end; give steps= in place of epochs=, so that only as "
        "many are read as are trained on, or a sampler or data set with a length"
    )
