"""Finished trials as rows of a store: plain values, checked when they are read back."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evenstep.errors import EvenstepError, StoreError
from evenstep.search import plain_values

_LATEST = 1e11  # seconds since 1970: about three thousand years


@dataclass(frozen=True, slots=True)
class StoreRow:
    """A finished trial; `loss` is infinite if it diverged."""

    config: str
    lr: float
    seed: int
    loss: float
    curve: tuple[float, ...]
    seconds: float
    provenance: Mapping[str, Any]

    @property
    def status(self) -> str:
        """`ok` or `diverged`."""
        return "ok" if math.isfinite(self.loss) else "diverged"

    def to_values(self) -> tuple[Any, ...]:
        """Return the row's values for a store."""
        return (
            self.config,
            self.lr,
            self.seed,
            plain_values.finite_or_none(self.loss),
            json.dumps([plain_values.finite_or_none(value) for value in self.curve]),
            self.status,
            self.seconds,
            json.dumps(self.provenance),
        )

    @classmethod
    def from_values(cls, values: tuple[Any, ...], path: Path) -> StoreRow:
        """Read a row of a store; a value that no search writes raises an error that names the row."""
        config, lr, seed, loss, curve, status, seconds, provenance = values
        with damage_named(path, f"the trial of search {str(config)[:12]}, lr {lr}, seed {seed}"):
            if plain_values.one_of("status", status, ("ok", "diverged")) != ("diverged" if loss is None else "ok"):
                raise ValueError(f"loss is {loss}, with the status '{status}'")
            if type(seed) is not int:
                raise ValueError(f"seed is {seed!r}, not a whole number")
            return cls(
                plain_values.text("config", config),
                plain_values.positive("lr", lr),
                seed,
                plain_values.loss("loss", loss),
                tuple(
                    plain_values.loss("a loss of the curve", value)
                    for value in plain_values.sequence("curve", _parsed("curve", curve))
                ),
                plain_values.finite("seconds", seconds),
                plain_values.mapping("provenance", _parsed("provenance", provenance)),
            )


def search_from_values(values: tuple[Any, ...], path: Path) -> dict[str, Any]:
    """Return a search of a store: its configuration, description, start, and numbers of trials."""
    config, description, started, copies, diverged = values
    with damage_named(path, f"the search {str(config)[:12]}"):
        begun = plain_values.finite("started", started)
        if not 0 <= begun < _LATEST:
            raise ValueError(f"started is {started!r}, not a time")
        return {
            "config": plain_values.text("config", config),
            "description": plain_values.mapping("description", _parsed("description", description)),
            "started": begun,
            "copies": copies,
            "diverged": diverged,
        }


def batching_from_value(config: str, form: Any, path: Path) -> dict[str, Any] | None:
    """Return how a search's trials are batched, None before one was settled."""
    if form is None:
        return None
    with damage_named(path, f"the search {config[:12]}"):
        return dict(plain_values.mapping("form", _parsed("form", form)))


@contextmanager
def damage_named(path: Path, what: str) -> Iterator[None]:
    """Turn any error inside into one that names the row."""
    try:
        yield
    except (LookupError, TypeError, ValueError, ArithmeticError, RecursionError, EvenstepError) as error:
        reason = " ".join(str(error).split())[:200]
        raise StoreError(
            f"{what} in the store '{path}' is damaged ({reason}); restore a copy of the file, or delete that row and "
            "search again"
        ) from None


def _parsed(name: str, text: Any) -> Any:
    try:
        return json.loads(plain_values.text(name, text))
    except json.JSONDecodeError as error:
        raise ValueError(f"{name} is not JSON: {error}") from None
