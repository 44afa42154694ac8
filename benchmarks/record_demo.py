"""Write the demo's record, and from it the README's picture and table.

    python benchmarks/record_demo.py [--seeds 3] [--workers 2] [--page README.md]
    python benchmarks/record_demo.py --drawn [--page README.md]     # from the record as it is, without training

A page gets the table where it has the lines `<!-- demo table -->` and `<!-- end -->`, and the sentences at
`<!-- demo summary -->`.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from pathlib import Path

from evenstep.demo import MARKS, Demo, DemoProgress, draw, measure
from evenstep.demo.measuring import STEPS
from evenstep.report.marks import update_page
from evenstep.search.provenance import provenance

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "results" / "demo" / "record.json"
PICTURE = ROOT / "docs" / "images" / "evenstep-demo.png"


def record(*, seeds: int, steps: int, workers: int) -> dict[str, object]:
    """Measure the demo and return its record."""

    def notify(made: DemoProgress) -> None:
        print(f"[{made.done}/{made.total}] {made.network}", file=sys.stderr)

    # On one thread of a CPU for each process, whatever else there is.
    origin = provenance() | {
        "device": f"CPU, {platform.machine()}",
        "threads": 1,
    }  # before anything that takes time: what runs is what the checkout is now
    demo = measure(seeds=seeds, steps=steps, workers=workers, notify=notify)
    return {"config": demo.config(), "results": demo.results(), "provenance": origin}


def main() -> None:
    """Measure, write, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--record", type=Path, default=RECORD)
    parser.add_argument("--picture", type=Path, default=PICTURE)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--drawn", action="store_true", help="train nothing, read the record")
    asked = parser.parse_args()
    if asked.page:
        update_page(asked.page, MARKS, None)
    if not asked.drawn:
        made = record(seeds=asked.seeds, steps=asked.steps, workers=asked.workers)
        asked.record.parent.mkdir(parents=True, exist_ok=True)
        asked.record.write_text(json.dumps(made, indent=1) + "\n")
    known = json.loads(asked.record.read_text())
    draw(Demo.from_record(known), asked.picture)
    if asked.page:
        update_page(asked.page, MARKS, known)


if __name__ == "__main__":
    main()
