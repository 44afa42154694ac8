"""Check what a package of someone else's adds to the command line by entry points, sound or broken."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SOUND = """
import typer

greet = typer.Typer(name="other", help="Greet people.")


@greet.command()
def hello(name: str) -> None:
    print(f"hello {name}")


@greet.command()
def bye() -> None:
    print("bye")


def line(options):
    from evenstep.cli.added import Space
    from evenstep.graph import dag_mlp_graph

    def chain(length):
        return dag_mlp_graph("_".join("0" * place + "2" for place in range(int(length))))

    return Space(chain, lambda: chain(1))
"""
POINTS = """
[evenstep.commands]
greet = greeting:greet
broken = greeting:nothing
gone = a_module_that_is_gone:app

[evenstep.spaces]
chain = greeting:line
lost = a_module_that_is_gone:space
"""


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """Return a folder with a package in it, as an installer would have put it there."""
    (tmp_path / "greeting.py").write_text(SOUND)
    about = tmp_path / "greeting-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(POINTS)
    return tmp_path


def evenstep(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    return subprocess.run(
        [sys.executable, "-m", "evenstep", *arguments],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_command_of_another_package_runs_and_is_listed(installed: Path) -> None:
    assert evenstep(installed, "greet", "hello", "you").stdout == "hello you\n"
    listed = evenstep(installed, "--help")
    assert listed.returncode == 0
    names = [line.split()[1] for line in listed.stdout.splitlines() if line.startswith("│ ") and line[2] != " "]
    assert {"study", "nas", "data", "broken", "gone", "greet"} <= set(names)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("broken",), "'broken' of greeting cannot be loaded (AttributeError: "),
        (("gone", "list", "--all", "--help"), "'gone' of greeting cannot be loaded (ModuleNotFoundError: "),
        (("plan", "--space", "lost", "--code", "2"), "'lost' of greeting cannot be loaded (ModuleNotFoundError: "),
        (("plan", "--space", "vit", "--code", "2"), "choose mlp, cnn, nasbench201, chain or lost"),
    ],
)
def test_what_cannot_be_loaded_is_one_line(installed: Path, arguments: tuple[str, ...], why: str) -> None:
    done = evenstep(installed, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert why in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_space_of_another_package_is_planned(installed: Path) -> None:
    chain = evenstep(installed, "plan", "--space", "chain", "--code", "3", "--rule", "paths", "--json")
    assert '"path_count": 1,' in chain.stdout
    assert '"sum_cubed_depth": 64,' in chain.stdout
