"""Check how the command line behaves on a terminal: completion, colours, quiet."""

import io
import os
import pty
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from evenstep.cli.app import app
from evenstep.cli.working import working
from evenstep.demo import DemoProgress
from evenstep.errors import InputError
from evenstep.init import INITS
from evenstep.planning.optimizers import OPTIMIZER_NAMES
from evenstep.rules import RULES
from evenstep.search.showing import SearchProgress, _stages
from evenstep_research.cli.measuring import bar
from evenstep_research.study.progress import StudyProgress
from tests.cli.command import Run

COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-7]|38;[\d;]+|9[0-7])m")
MODEL = """
from torch import nn


def make():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
"""


EVENSTEP = (sys.executable, "-m", "evenstep")


def on_a_terminal(*arguments: str, environment: Mapping[str, str], program: Sequence[str] = EVENSTEP) -> str:
    """Run the command line with a terminal as its output, and return what it wrote."""
    ours, theirs = pty.openpty()
    plain = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "FORCE_COLOR", "CI")}
    process = subprocess.Popen(
        [*program, *arguments],
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


def completed(*words: str) -> list[str]:
    """Return what bash is offered after these words."""
    done = subprocess.run(
        [str(SCRIPT)],
        env={
            **os.environ,
            "_EVENSTEP_COMPLETE": "complete_bash",
            "COMP_WORDS": " ".join(["evenstep", *words]),
            "COMP_CWORD": str(len(words)),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.split()


NAMED = {"--rule": RULES, "--init": INITS, "--optimizer": OPTIMIZER_NAMES}
TAKE = {
    "plan": ("--rule", "--init", "--optimizer"),
    "check": ("--rule", "--init", "--optimizer"),
    "search": ("--init", "--optimizer"),
    "auto": ("--init", "--optimizer"),
}
CHOICES = [(command, option) for command, options in TAKE.items() for option in options]


@pytest.mark.parametrize(("command", "option"), CHOICES)
def test_names_are_completed(command: str, option: str) -> None:
    last = list(NAMED[option])[-1]
    assert completed(command, option, last[:2]) == [name for name in NAMED[option] if name.startswith(last[:2])]
    assert completed(command, option, "") == list(NAMED[option])
    assert completed(command, option, "zz") == []


@pytest.mark.parametrize(("command", "option"), CHOICES)
def test_help_names_all_choices(command: str, option: str) -> None:
    import typer

    parameters = typer.main.get_command(app).commands[command].params  # type: ignore[attr-defined]
    (text,) = [parameter.help for parameter in parameters if option in parameter.opts]
    assert set(re.findall(r"[\w-]+", text)) >= set(NAMED[option])


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (("plan", "--code", "2", "--rule", "x"), RULES),
        (("plan", "--code", "2", "--init", "x"), INITS),
        (("plan", "--code", "2", "--optimizer", "x"), OPTIMIZER_NAMES),
        (("check", "nowhere.py:f", "--over", "n=1,2", "--rule", "x"), RULES),
        (("check", "nowhere.py:f", "--over", "n=1,2", "--init", "x"), INITS),
    ],
)
def test_errors_name_all_choices(run: Run, arguments: tuple[str, ...], remedy: Collection[str]) -> None:
    done = run(*arguments)
    assert done.code == 2
    assert done.err == f"error: {arguments[-2].strip('-')} is 'x'; choose one of {', '.join(remedy)}\n"


PLAIN = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


@pytest.mark.parametrize("columns", [80, 120])
def test_a_plan_fits_the_terminal(tmp_path: Path, columns: int) -> None:
    name = "a_module_with_quite_a_long_name"
    (tmp_path / "net.py").write_text(
        MODEL.replace("nn.Flatten(), ", "").replace("    return", "    import torch\n    net =")
        + f"    net = nn.ModuleDict({{'{name}': nn.ModuleDict({{'{name}': net}})}})\n"
        f"    net.forward = lambda x: net['{name}']['{name}'](x)\n"
        "    return net, torch.zeros(2, 64)\n"
    )
    environment = {"COLUMNS": str(columns), "LINES": "40"}
    arguments = ("plan", f"{tmp_path}/net.py:make", "--base", "0.1", "--optimizer", "sgd", "--quiet")
    lines = PLAIN.sub("", on_a_terminal(*arguments, environment=environment)).replace("\r", "").splitlines()
    assert max(map(len, lines)) <= columns
    assert len([line for line in lines if line.startswith("a_")]) == 4
    assert any("…" in line.split()[0] for line in lines if line.startswith("a_")) == (columns == 80)


def test_files_get_names_whole(run: Run, tmp_path: Path) -> None:
    done = run("plan", "--code", "2_12_112_1112", "--base", "0.1", "--optimizer", "sgd")
    plan = run("plan", "--code", "2_12_112_1112", "--base", "0.1", "--optimizer", "sgd", "--json").json()
    assert {p["name"] for p in plan["parameters"]} <= {line.split()[0] for line in done.out.splitlines() if line}


class Watched(io.StringIO):
    """Tell when enough lines are written."""

    def __init__(self, lines: int) -> None:
        super().__init__()
        self.lines, self.enough = lines, Event()

    def write(self, text: str) -> int:
        length = super().write(text)
        if self.getvalue().count("\n") >= self.lines:
            self.enough.set()
        return length


def test_work_that_takes_long_says_so_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    written = Watched(lines=2)
    monkeypatch.setattr(sys, "stderr", written)
    before = threading.active_count()
    with working("planning a net", after=0.0, every=0.001) as show:
        assert written.enough.wait(60)
        show("writing it")
        seen = written.getvalue().count("\n")
        written.lines = seen + 2
        written.enough.clear()
        assert written.enough.wait(60)
    first, *_, last = written.getvalue().splitlines()
    assert re.fullmatch(r"planning a net \(\d+ s\)", first)
    assert last.startswith("writing it (")
    assert threading.active_count() == before


def test_work_that_is_quick_or_quiet_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with working("planning a net"):
        pass
    with working("planning a net", quiet=True, after=0.0, every=0.0) as show:
        show("more")
    assert capsys.readouterr().err == ""


def test_a_turning_sign_shows_work_on_a_terminal(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from evenstep.cli.working import working\n"
        "import rich.status, threading\n"
        "seen = threading.Event()\n"
        "began = rich.status.Status.__enter__\n"
        "rich.status.Status.__enter__ = lambda self: (began(self), seen.set())[0]\n"
        "with working('planning a net', after=0.0):\n"
        "    assert seen.wait(60)\n"
    )
    (tmp_path / "work.py").write_text(code)
    assert "planning a net" in on_a_terminal(program=[sys.executable, str(tmp_path / "work.py")], environment={})


def test_a_search_in_a_file_says_now_and_then_how_it_stands() -> None:
    now, written = [0.0], io.StringIO()
    show = _stages(written, lambda: now[0])
    for done, seconds in ((0, 0.0), (1, 4.0), (2, 9.0), (3, 11.0), (4, 12.0), (5, 22.0)):
        now[0] = seconds
        show(SearchProgress(done, 9, 0.1, 0.5, 0, done / 9, "searching", 30))
    first, *others = written.getvalue().splitlines()
    assert first == "searching: up to 9 trials of 30 steps"
    assert [line.split(": ")[1].split()[0] for line in others] == ["3", "5"]
    assert others[0] == "searching 33%: 3 of at most 9 trials, best so far 0.1 (loss 0.5)"


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
    long = ["plan", "search", "auto", "refine", "check", "report", "doctor", "demo", "study transfer", "data fetch"]
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
