"""Run the command line and keep what came out; the fixture is for all tests, see conftest.py."""

import io
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from evenstep.cli import main


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    def json(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)


Run = Callable[..., Done]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command line's entry point in this process."""

    def call(*arguments: str, given: str = "") -> Done:
        monkeypatch.setattr(sys, "argv", ["evenstep", *arguments])
        monkeypatch.setattr(sys, "stdin", io.StringIO(given))
        # How long a command takes here says nothing of it: lines that come with time are tests of their own.
        monkeypatch.setattr("evenstep.cli.working.AFTER", 3600.0)
        monkeypatch.setattr("evenstep.search.showing.EVERY", 3600.0)
        monkeypatch.setattr(sys, "path", list(sys.path))  # targets put their folder in front
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        out, err = capsys.readouterr()
        return Done(code, out, err)

    return call


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
