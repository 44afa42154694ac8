"""How long the command line and the import take to start, as ratios within one run.

    python benchmarks/bench_startup.py [--record results/bench_startup/record.json]

Every command runs in a process of its own, in turns with the others, so that what else the machine does falls on all
alike; medians of processor time, for which other processes do not count, and of wall-clock time. `import evenstep`
loads torch on first use only: 'whole' touches every public name. The commands' help is to take well below a second, and
to load no torch.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

from evenstep.search.provenance import provenance

NAMES = "[getattr(evenstep, name) for name in evenstep.__all__]"
COMMANDS = {
    "python": ("-c", "pass"),
    "import torch": ("-c", "import torch"),
    "import evenstep": ("-c", "import evenstep"),
    "import evenstep, whole": ("-c", f"import evenstep; {NAMES}"),
    "evenstep --help": ("-m", "evenstep", "--help"),
    **{f"evenstep {name} --help": ("-m", "evenstep", name, "--help") for name in ("plan", "search", "report", "runs")},
}


def measured(repeats: int) -> dict[str, list[tuple[float, float]]]:
    """Return the processor and wall-clock seconds that every command took, all in a new order each time round."""
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in COMMANDS}
    order = random.Random(0)
    for round_ in range(repeats + 1):
        for name in order.sample(list(COMMANDS), len(COMMANDS)):
            begun, before = time.perf_counter(), processor_seconds()
            subprocess.run([sys.executable, *COMMANDS[name]], check=True, stdout=subprocess.DEVNULL)
            if round_:  # the first one fills the disk's cache
                seconds[name].append((processor_seconds() - before, time.perf_counter() - begun))
    return seconds


def processor_seconds() -> float:
    """Return the processor time of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def loads_torch(name: str) -> bool:
    """Return whether a command loads torch."""
    arguments = ["-X", "importtime", *COMMANDS[name]]
    done = subprocess.run([sys.executable, *arguments], check=True, capture_output=True, text=True)
    return any(line.split("|")[-1].strip() == "torch" for line in done.stderr.splitlines())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--record", type=Path)
    arguments = parser.parse_args()
    seconds = measured(arguments.repeats)
    processor = {name: [used for used, _ in pairs] for name, pairs in seconds.items()}
    torch = statistics.median(processor["import torch"])
    results = {
        name: {
            "processor_seconds": statistics.median(used),
            "lowest": min(used),
            "highest": max(used),
            "over_import_torch": statistics.median(used) / torch,
            "wall_clock_seconds": statistics.median(waited for _, waited in seconds[name]),
            "loads_torch": loads_torch(name),
        }
        for name, used in processor.items()
    }
    for name, row in results.items():
        print(f"{name:24}  {row['processor_seconds']:6.3f} s  {row['over_import_torch']:5.2f} of import torch")
    if arguments.record:
        config = {"repeats": arguments.repeats, "cores": len(os.sched_getaffinity(0))}
        record = {"config": config, "results": results, "provenance": provenance()}
        arguments.record.parent.mkdir(parents=True, exist_ok=True)
        arguments.record.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
