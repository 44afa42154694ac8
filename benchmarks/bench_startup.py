"""How long the command line and the import take to start, as ratios within one run.

    python benchmarks/bench_startup.py [--record results/bench_startup/record.json]

Every command runs in a process of its own, in turns with the others, so that what else the machine does falls on all
alike; medians of the wall-clock times. `import evenstep` loads torch on first use only: `whole` touches every public
name. The commands' help is to take well below a second, and to load no torch.
"""

from __future__ import annotations

import argparse
import json
import os
import random
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
    **{
        f"evenstep {name} --help": ("-m", "evenstep", name, "--help")
        for name in ("auto", "plan", "search", "refine", "check", "report", "doctor", "runs")
    },
}


def measured(repeats: int) -> dict[str, list[float]]:
    """Return the seconds that every command took, all in a new order each time round."""
    seconds: dict[str, list[float]] = {name: [] for name in COMMANDS}
    order = random.Random(0)
    for round_ in range(repeats + 1):
        for name in order.sample(list(COMMANDS), len(COMMANDS)):
            begun = time.perf_counter()
            subprocess.run([sys.executable, *COMMANDS[name]], check=True, stdout=subprocess.DEVNULL)
            if round_:  # the first one fills the disk's cache
                seconds[name].append(time.perf_counter() - begun)
    return seconds


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
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    torch = medians["import torch"]
    results = {
        name: {
            "seconds": medians[name],
            "lowest": min(seconds[name]),
            "highest": max(seconds[name]),
            "over_import_torch": medians[name] / torch,
            "loads_torch": loads_torch(name),
        }
        for name in COMMANDS
    }
    for name, row in results.items():
        print(f"{name:24}  {row['seconds']:6.3f} s  {row['over_import_torch']:5.2f} of import torch")
    if arguments.record:
        config = {"repeats": arguments.repeats, "cores": len(os.sched_getaffinity(0))}
        record = {"config": config, "results": results, "provenance": provenance()}
        arguments.record.parent.mkdir(parents=True, exist_ok=True)
        arguments.record.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
