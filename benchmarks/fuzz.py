"""Call everything public with random arguments, and read randomly damaged files: nothing but our own errors may come.

    python benchmarks/fuzz.py [--minutes 5] [--seed 0] [--only NAME] [--replay SEED] [--record results/fuzz/record.json]

Prints a table: how often each target was tried, refused (an `EvenstepError` of one line, or exit code 2), accepted, or
ended in anything else; the last with the seed that repeats it. Exit code 1 if there is one of those.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import random
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import torch
from fuzz_targets import TARGETS, Target

from evenstep.errors import EvenstepError
from evenstep_research.study.record import write_record

LIMIT = 60  # seconds after which a call counts as one that hangs


@dataclass
class Tally:
    """Count what became of the calls of one target; `internal` are the seeds and traces of what must not be."""

    counts: Counter[str] = field(default_factory=Counter)
    internal: list[tuple[int, str]] = field(default_factory=list)


def attempt(target: Target, seed: int) -> tuple[str, str]:
    """Call a target with the arguments that a seed gives; return 'accepted', 'refused' or 'internal', and the trace."""
    torch.manual_seed(seed)
    draw = random.Random(seed)
    signal.signal(signal.SIGALRM, _hangs)
    signal.alarm(LIMIT)
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            target(draw, Path(folder))
        return "accepted", ""
    except EvenstepError as error:
        if "\n" in str(error) or not str(error):
            return "internal", f"{type(error).__name__} of several lines, or none: {error!r}"
        return "refused", ""
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return "internal", traceback.format_exc()
    finally:
        signal.alarm(0)


def _hangs(number: int, frame: FrameType | None) -> None:
    raise TimeoutError(f"no answer after {LIMIT} seconds")


def main() -> int:
    """Run until the time is over; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=0, help="what all arguments follow from")
    parser.add_argument("--only", choices=TARGETS, help="one target alone")
    parser.add_argument("--replay", type=int, help="the seed of one call, to repeat it alone (with --only)")
    parser.add_argument("--record", type=Path, help="where to write the counts")
    options = parser.parse_args()
    torch.set_num_threads(1)
    names = [options.only] if options.only else list(TARGETS)
    if options.replay is not None:
        outcome, trace = attempt(TARGETS[names[0]], options.replay)
        print(outcome, trace, sep="\n")
        return int(outcome == "internal")
    tallies = {name: Tally() for name in names}
    order, end = random.Random(options.seed), time.monotonic() + 60 * options.minutes
    while time.monotonic() < end:
        name, seed = order.choice(names), order.randrange(2**31)
        outcome, trace = attempt(TARGETS[name], seed)
        tallies[name].counts[outcome] += 1
        if outcome == "internal":
            tallies[name].internal.append((seed, trace))
            print(f"--only {name} --replay {seed}\n{trace}", file=sys.stderr, flush=True)
    _print(tallies)
    if options.record:
        write_record(
            options.record,
            config={"seed": options.seed, "minutes": options.minutes, "targets": names},
            results={name: {"tried": sum(tally.counts.values()), **_counts(tally)} for name, tally in tallies.items()}
            | {"all": {"tried": sum(_total(tallies).values()), **dict(_total(tallies))}},
        )
    return int(any(tally.internal for tally in tallies.values()))


def _counts(tally: Tally) -> dict[str, int]:
    return {outcome: tally.counts[outcome] for outcome in ("refused", "accepted", "internal")}


def _total(tallies: dict[str, Tally]) -> Counter[str]:
    total: Counter[str] = Counter({"refused": 0, "accepted": 0, "internal": 0})
    for tally in tallies.values():
        total.update(tally.counts)
    return total


def _print(tallies: dict[str, Tally]) -> None:
    wide = max(map(len, tallies))
    print(f"{'target':<{wide}}  {'tried':>7}  {'refused':>8}  {'accepted':>8}  {'internal':>8}")
    rows = {name: tally.counts for name, tally in tallies.items()} | {"all": _total(tallies)}
    for name, counts in rows.items():
        numbers = (sum(counts.values()), counts["refused"], counts["accepted"], counts["internal"])
        print(f"{name:<{wide}}  {numbers[0]:>7}  {numbers[1]:>8}  {numbers[2]:>8}  {numbers[3]:>8}")


if __name__ == "__main__":
    sys.exit(main())
