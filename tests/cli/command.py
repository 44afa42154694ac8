"""Run the command line and keep what came out."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    def json(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)


Run = Callable[..., Done]


def in_a_process(*arguments: str, given: str = "", folder: Path | None = None, timeout: float = 120) -> Done:
    """Run the command line in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "evenstep", *arguments],
        input=given,
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=timeout,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr)
