"""List every record in results/: where and when it was measured, its command, and whether its code has changed since.

    python benchmarks/records.py [--json]        # or: make records

Commits and devices are those that a record and its ledger name; the date is that of the commit that last wrote the
record. A record counts as changed if a file that it depends on (`RECORDS`) differs between the oldest commit that it
was measured at and the checkout; a file that was only moved does not differ.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
_RESEARCH = "research/src/evenstep_research"

# What a rate, a start and a graph follow from; what reads modules; what trains.
PLAN = tuple(f"src/evenstep/{part}/" for part in ("graph", "signal", "init", "rules", "planning"))
READ = (*PLAN, "src/evenstep/module/")
TRAIN = (*READ, "src/evenstep/search/")
TRANSFER = (*TRAIN, f"{_RESEARCH}/study/transfer/", f"{_RESEARCH}/spaces/", f"{_RESEARCH}/study/codes.py")
FIGURE = (*TRANSFER, f"{_RESEARCH}/study/figures/networks.py")
NAS = (*READ, f"{_RESEARCH}/study/nas/", f"{_RESEARCH}/spaces/nasbench201.py")
REAL = (*TRAIN, f"{_RESEARCH}/study/real/")
THREE_LINES = (*TRAIN, "benchmarks/three_lines.py")


@dataclass(frozen=True)
class Source:
    """How a record is made, and the files and folders that its numbers follow from."""

    command: str
    depends: tuple[str, ...]


def _figure(name: str, rates: str = "") -> Source:
    folder = name + ("-one-rate" if rates else "")
    return Source(f"evenstep study {name} --scale paper --data DIR{rates} --seeds 3 --out results/{folder}", FIGURE)


def _benchmark(name: str, record: str, *depends: str, options: str = "") -> Source:
    script = f"benchmarks/{name}.py"
    return Source(f"python {script}{options} --record results/{record}", (*depends, script))


_TRANSFER = "evenstep study transfer --scale {} --out results/{}"
_THREE = "python benchmarks/three_lines.py --data DIR --scale {} --out results/{}"
_TEN = " --epochs 10 --families mlp-momentum-conserve --networks 'chain ?,residual ?,dense [23]'"
RECORDS: dict[str, Source] = {
    "averages/record.json": _benchmark("average_variance", "averages/record.json", *TRAIN, options=" --data DIR"),
    "averages/digits.json": _benchmark("average_variance", "averages/digits.json", *TRAIN),
    "bench_check/record.json": _benchmark("bench_check", "bench_check/record.json", *READ),
    "bench_nas/h200.json": _benchmark("bench_nas", "bench_nas/h200.json", *NAS),
    "bench_plan/record.json": _benchmark("bench_plan", "bench_plan/record.json", *READ),
    "bench_plan/against.json": _benchmark("bench_plan", "bench_plan/against.json", *READ, options=" --against SRC"),
    "bench_search/cpu.json": _benchmark("bench_search", "bench_search/cpu.json", *TRAIN),
    "bench_search/h200.json": _benchmark("bench_search", "bench_search/h200.json", *TRAIN),
    "bench_startup/record.json": _benchmark("bench_startup", "bench_startup/record.json", "src/evenstep/"),
    "cnn/record.json": _figure("cnn"),
    "demo/record.json": Source("python benchmarks/record_demo.py", (*TRAIN, "src/evenstep/demo/")),
    "even-explored/record.json": Source("by hand, before the rule took its form; not to be repeated", TRAIN),
    "external/record.json": Source(
        "evenstep study external --data DIR --out results/external", (*READ, f"{_RESEARCH}/study/external/")
    ),
    "full/record.json": Source(_THREE.format("full", "full") + " --device cuda --ways tuned,evenstep", THREE_LINES),
    "fuzz/record.json": _benchmark("fuzz", "fuzz/record.json", "src/evenstep/"),
    "gelu-cnn/record.json": _figure("gelu-cnn"),
    "gelu-depth/record.json": _figure("gelu-depth"),
    "gelu-depth-one-rate/record.json": _figure("gelu-depth", " --rates one"),
    "gelu-topology/record.json": _figure("gelu-topology"),
    "gelu-topology-one-rate/record.json": _figure("gelu-topology", " --rates one"),
    "million/record.json": Source(
        _THREE.format("million", "million") + " --ways tuned,evenstep --optimizers adam", THREE_LINES
    ),
    "mlp-depth/record.json": _figure("mlp-depth"),
    "mlp-depth-one-rate/record.json": _figure("mlp-depth", " --rates one"),
    "mlp-topology/record.json": _figure("mlp-topology"),
    "mlp-topology-one-rate/record.json": _figure("mlp-topology", " --rates one"),
    "nas/record.json": Source(
        "evenstep nas train --data DIR --codes codes.txt --out results/nas; evenstep nas compare results/nas", NAS
    ),
    "nas-table/record.json": Source(
        "evenstep nas table TABLE --out results/nas-table",
        tuple(f"{_RESEARCH}/study/nas/{name}.py" for name in ("whole", "table", "analysis", "algorithms")),
    ),
    "real-cpu/record.json": Source("evenstep study real --scale cpu --data DIR --out results/real-cpu", REAL),
    "real-explored/record.json": Source("by hand, before the rule took its form; not to be repeated", REAL),
    "short-runs/record.json": Source("python benchmarks/short_runs.py --data DIR --out results/short-runs", TRAIN),
    "axes/record.json": Source(
        "evenstep study axes --scale cpu --data DIR --out results/axes", (*REAL, f"{_RESEARCH}/study/axes/")
    ),
    "spoilt-plans/record.json": Source(
        "python benchmarks/spoilt_plans.py --data DIR --out results/spoilt-plans",
        (*TRAIN, "benchmarks/spoilt_plans.py"),
    ),
    "starts/record.json": Source("python benchmarks/starts.py --out results/starts", (*REAL, "benchmarks/starts.py")),
    "sweep/record.json": Source(
        "python benchmarks/sweep_transformers.py --out results/sweep", (*READ, "benchmarks/sweep_transformers.py")
    ),
    "three-lines/record.json": Source(_THREE.format("cpu", "three-lines"), THREE_LINES),
    "three-lines/transformers.json": Source("python benchmarks/record_plans.py", (*READ, "benchmarks/record_plans.py")),
    "transfer/record.json": Source(_TRANSFER.format("full --data DIR", "transfer"), TRANSFER),
    "transfer-10-epochs/record.json": Source(
        _TRANSFER.format("full --data DIR", "transfer-10-epochs") + _TEN, TRANSFER
    ),
    "transfer-digits/record.json": Source(_TRANSFER.format("cpu", "transfer-digits"), TRANSFER),
}


@dataclass(frozen=True)
class Listed:
    """A record as it is listed; `changed` is the number of its files that differ, None where no commit is known."""

    record: str
    commits: tuple[str, ...]
    devices: tuple[str, ...]
    date: str
    command: str
    changed: int | None

    @property
    def mark(self) -> str:
        """Say in a word or two whether the code has changed."""
        if self.changed is None:
            return "commit not known"
        files = "1 file" if self.changed == 1 else f"{self.changed} files"
        return f"{files} changed since" if self.changed else "up to date"


def records_in(results: Path) -> list[Path]:
    """Return all files that are records: JSON in a folder of results, or lines of JSON where there is none."""
    found = set(results.glob("*/*.json"))
    alone = [folder for folder in results.iterdir() if folder.is_dir() and not any(folder.glob("*.json"))]
    return sorted(found | {path for folder in alone for path in folder.glob("*.jsonl")})


def listed(path: Path, results: Path) -> Listed:
    """Return what is known of one record."""
    name = str(path.relative_to(results))
    source = RECORDS.get(name) or Source("not known: name it in benchmarks/records.py", ("src/", "research/src/"))
    ledger = path.with_name("ledger.jsonl")
    texts = [path.read_text(), *([ledger.read_text()] if path.name == "record.json" and ledger.exists() else [])]
    commits = dict.fromkeys(commit for text in texts for commit in _commits(text))
    known = [commit for commit in commits if _differing(commit) is not None]
    counts = [_count(commit, source.depends) for commit in known]
    devices = dict.fromkeys(device for text in texts for device in re.findall(r'"device": "([^"]+)"', text))
    date = _git("log", "-1", "--format=%as", "--", str(path)) or "not committed"
    return Listed(name, tuple(commits), tuple(devices), date, source.command, max(counts) if counts else None)


def _commits(text: str) -> Iterator[str]:
    """Yield the commits that a record names, without the sign of a checkout that was edited."""
    for words in re.findall(r'"commit": "([^"]+)"', text):
        yield from re.findall(r"\b[0-9a-f]{7,40}\b", words)
    if counted := re.search(r'"commits": \{([^}]*)\}', text):
        yield from re.findall(r'"([0-9a-f]{7,40})"', counted[1])


def _count(commit: str, depends: tuple[str, ...]) -> int:
    return sum(path.startswith(depends) for path in _differing(commit) or ())


@cache
def _differing(commit: str) -> tuple[str, ...] | None:
    """Return the files that differ from a commit, under their present names; None for a commit that is not here."""
    if _git("cat-file", "-t", commit) != "commit":
        return None
    lines = _git("diff", "--name-status", "--find-renames", commit, "--", "*.py").splitlines()
    return tuple(line.split("\t")[-1] for line in lines if not line.startswith("R100"))


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def main() -> None:
    """List the records."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()
    results = ROOT / "results"
    rows = [listed(path, results) for path in records_in(results)]
    if given.json:
        print(json.dumps([{**asdict(row), "mark": row.mark} for row in rows], indent=1))
        return
    for row in rows:
        print(f"{row.record}: {row.mark}")
        print(f"  recorded {row.date}; commit {', '.join(row.commits) or 'not known'}")
        print(f"  {', '.join(row.devices) or 'device not known'}")
        print(f"  {row.command}")
    old = sum(row.changed != 0 for row in rows)
    print(f"{len(rows)} records, {old} of code that has changed since or is not known", file=sys.stderr)


if __name__ == "__main__":
    main()
