"""Plans as tables on a terminal."""

from __future__ import annotations

import shutil
import sys

from evenstep.planning import Plan
from evenstep.planning.text import format_plan


def print_plan(plan: Plan) -> None:
    """Print what all parameters share, then a line for each, in the terminal's width; files and pipes get whole names.

    Warnings are left out because commands print them to standard error.
    """
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    print(format_plan(plan, width=width, warnings=False))
