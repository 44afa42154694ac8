"""Check how the command line behaves on a terminal: completion, colours, quiet."""

import os
import pty
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from evenstep.cli.app import app
from evenstep.demo import DemoProgress
from evenstep.errors import InputError
from evenstep_research.cli.measuring import bar
from evenstep_research.study.progress import StudyProgress
from tests.cli.command import Run

COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-7]|38;[\d;]+|9[0-7])m")
MODEL = """
from torch import nn


def make():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
"""


def on_a_terminal(*arguments: str, environment: Mapping[str, str]) -> str:
    """Run the command line with a terminal as its output, and return what it wrote."""
    ours, theirs = pty.openpty()
    plain = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "FORCE_COLOR", "CI")}
    process = subprocess.Popen(
        [sys.executable, "-m", "evenstep", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        env={**plain, "TERM": "xterm-256color", **environment},
    )
    os.close(theirs)
    written = b""
    try:
        while part := os.read(ours, 65536):
            written += part
    except OSError:  # Linux's way to say that the other end is closed
        pass
    finally:
        os.close(ours)
    assert process.wait(timeout=60) == 0
    return written.decode()


PLAN = ("plan", "--code", "2_12", "--width", "16", "--inputs", "8", "--classes", "2")


@pytest.mark.parametrize("arguments", [("--help",), PLAN], ids=["help", "plan"])
def test_no_color_is_respected(arguments: tuple[str, ...]) -> None:
    assert not COLOUR.search(on_a_terminal(*arguments, environment={"NO_COLOR": "1"}))


def test_there_are_colours_to_leave_out() -> None:
    assert COLOUR.search(on_a_terminal("--help", environment={}))


SCRIPT = Path(sys.executable).with_name("evenstep")
installed = pytest.mark.skipif(not SCRIPT.is_file(), reason="the command evenstep is not beside this Python")


@installed
def test_completion_offers_commands() -> None:
    done = subprocess.run(
        [SCRIPT],
        env={**os.environ, "_EVENSTEP_COMPLETE": "complete_bash", "COMP_WORDS": "evenstep do", "COMP_CWORD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["doctor"], done.stderr


@installed
@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash to complete in")
def test_the_completion_script_is_shown() -> None:
    # A second command keeps bash from handing its place over: the shell is found by looking at the parent process.
    command = f"{SCRIPT} --show-completion; exit $?"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "complete -o default -F _evenstep_completion evenstep" in done.stdout


@pytest.mark.parametrize("quiet", [False, True])
def test_quiet_leaves_out_the_steps_of_the_demo(run: Run, monkeypatch: pytest.MonkeyPatch, quiet: bool) -> None:
    def stopped(*, seeds: int, steps: int, notify: Callable[[DemoProgress], None]) -> None:
        notify(DemoProgress(1, 2, "a chain"))
        raise InputError("enough")

    monkeypatch.setattr("evenstep.demo.measure", stopped)
    done = run("demo", *(["--quiet"] if quiet else []))
    assert done.err.endswith("error: enough\n")
    assert ("a chain" in done.err) is not quiet


@pytest.mark.parametrize("quiet", [False, True])
def test_quiet_leaves_out_the_networks_of_a_study(capsys: pytest.CaptureFixture[str], quiet: bool) -> None:
    with bar(quiet=quiet) as show:
        show(StudyProgress(1, 2, "chain"))
    assert ("chain" in capsys.readouterr().err) is not quiet


def test_quiet_leaves_out_the_bar_of_a_search(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(MODEL)
    written = on_a_terminal(
        "search", f"{tmp_path}/net.py:make", "--steps", "4", "--seeds", "1", "--quiet", environment={}
    )
    assert written.startswith("learning rate")  # a bar would come first
    assert "\x1b" not in written


def test_every_long_command_can_be_quiet() -> None:
    import typer

    group = typer.main.get_command(app)
    long = ["search", "check", "demo", "study transfer", "data fetch"]
    for name in long:
        command = group
        for part in name.split():
            command = command.commands[part]  # type: ignore[attr-defined]
        assert "--quiet" in {option for parameter in command.params for option in parameter.opts}, name


def test_help_shows_all_that_is_written(run: Run) -> None:
    """Square brackets before a small letter are rich's markup, which it takes out."""
    import typer
    from rich.markup import render

    def texts(command: Any) -> Iterator[str]:
        yield from (text for text in (command.help, *(getattr(p, "help", None) for p in command.params)) if text)
        for other in getattr(command, "commands", {}).values():
            yield from texts(other)

    written = list(texts(typer.main.get_command(app)))
    assert len(written) > 100
    assert [text for text in written if render(text).plain != text] == []
    assert "0.25 for layers" in run("check", "--help").out


def test_help_and_completion_wait_for_nothing_heavy() -> None:
    code = "import evenstep.cli.app, sys; print(*sorted({'torch', 'scipy', 'matplotlib', 'ray'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
