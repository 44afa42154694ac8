"""Fixtures of the command line's tests."""

import io
import sys

import pytest

from evenstep.cli import main
from tests.cli.command import Done, Run


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
