"""Train cells without the command line: `python -m evenstep_research.study.nas --data DIR --codes FILE ...`.

The options are those of `evenstep nas train`, which see; progress goes to standard error, one JSON object to standard
output.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from evenstep.errors import EvenstepError
from evenstep_research.study.nas.options import PROTOCOLS, run, sweep_options, text_of


def main(arguments: list[str] | None = None) -> int:
    """Train what the options ask for; return 0, or 2 for bad input."""
    parser = argparse.ArgumentParser(prog="python -m evenstep_research.study.nas", description=__doc__)
    parser.add_argument("--scale", default="full", help="full, or smoke: digits and tiny networks")
    parser.add_argument("--data", help="folder of CIFAR-10, CIFAR-100 or ImageNet16")
    parser.add_argument("--codes", help="file with one cell a line; - reads standard input")
    parser.add_argument("--protocols", default=",".join(PROTOCOLS), help="names, joined by commas")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--base-lr", help="a number, or pairs such as weighted=0.5,paper=0.46; else searched")
    parser.add_argument("--tune-epochs", type=int)
    parser.add_argument("--tune-seeds", type=int, default=1)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--device")
    parser.add_argument("--precision")
    parser.add_argument("--together", type=int, help="runs side by side")
    parser.add_argument("--engine", default="local")
    options = vars(parser.parse_args(arguments))
    try:
        options["codes"] = text_of(options["codes"])
        if options["out"] is not None:
            options["out"].mkdir(parents=True, exist_ok=True)
        trained = run(sweep_options(**options), lambda p: print(f"[{p.done}/{p.total}] {p.message}", file=sys.stderr))
    except EvenstepError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps(trained.to_dict()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
