"""Check who imports whom, with no exception.

`errors <- arguments <- optim <- graph <- signal <- init <- rules <- planning <- module <- search, spaces, data <- study
<- report <- demo <- cli`.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "evenstep"
LEVELS = (
    ("errors",),
    ("arguments",),
    ("optim",),
    ("graph",),
    ("signal",),
    ("init",),
    ("rules",),
    ("planning",),
    ("module",),
    ("search", "spaces", "data"),
    ("study",),
    ("report",),
    ("demo",),
    ("cli",),
)
LEVEL = {name: level for level, names in enumerate(LEVELS) for name in names}
FILES = sorted(SOURCE.rglob("*.py"))


def imports(path: Path) -> Iterator[tuple[str, str]]:
    """Yield (enclosing definition, imported module) of every import in a file, at any depth of nesting."""
    package = ("evenstep", *path.relative_to(SOURCE).parts[:-1])

    def walk(node: ast.AST, inside: tuple[str, ...]) -> Iterator[tuple[str, str]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield ".".join(inside), alias.name
            elif isinstance(child, ast.ImportFrom):
                start = package[: len(package) - child.level + 1] if child.level else ()
                module = ".".join((*start, *([child.module] if child.module else [])))
                for alias in child.names:
                    # `from evenstep import graph` imports a module, `from evenstep.graph import Graph` a name of one.
                    yield ".".join(inside), f"{module}.{alias.name}" if module == "evenstep" else module
            elif isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield from walk(child, (*inside, child.name))
            else:
                yield from walk(child, inside)

    yield from walk(ast.parse(path.read_text(), filename=str(path)), ())


def part_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_import_points_upwards(path: Path) -> None:
    part = part_of(path)
    if part in ("__init__", "__main__"):  # the public names, and the door to the command line: above everything
        return
    assert part in LEVEL, f"{part} has no place in the order of imports"
    name = str(path.relative_to(SOURCE))
    for where, module in imports(path):
        if module.split(".")[0] != "evenstep":
            continue
        if module == "evenstep.__version__":  # a constant of the package, none of its parts
            continue
        parts = module.split(".")
        assert len(parts) > 1, f"{name} imports the package itself, which stands above its parts"
        assert parts[1] in LEVEL, f"{name} imports {module}, which has no place in the order of imports"
        assert LEVEL[parts[1]] <= LEVEL[part], f"{name} ({where or 'top'}) imports {module}, which stands above it"


def test_every_part_was_walked() -> None:
    walked = {part_of(path) for path in FILES}
    assert {name for level in LEVELS for name in level} <= walked


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import evenstep.cli", {("", "evenstep.cli")}),
        ("def f():\n    from evenstep.cli import app", {("f", "evenstep.cli")}),
        ("from evenstep import cli", {("", "evenstep.cli")}),
        ("from . import plan", {("", "evenstep.rules")}),
        ("from ..cli import app", {("", "evenstep.cli")}),
        ("from .. import cli", {("", "evenstep.cli")}),
        ("class A:\n    def f(self):\n        if 1:\n            import torch", {("A.f", "torch")}),
    ],
)
def test_the_walk_finds_imports_in_every_form(
    source: str, expected: set[tuple[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rules").mkdir()
    path = tmp_path / "rules" / "made_up.py"
    path.write_text(source)
    monkeypatch.setattr(sys.modules[__name__], "SOURCE", tmp_path)
    assert set(imports(path)) == expected


FORBIDDEN = {
    "errors": {"torch", "numpy", "scipy"},
    **{part: {"torch", "scipy"} for part in ("graph", "signal", "init", "rules", "planning")},
}


@pytest.mark.parametrize("path", [path for path in FILES if part_of(path) in FORBIDDEN], ids=lambda p: p.name)
def test_all_up_to_the_plan_name_no_torch(path: Path) -> None:
    found = {module.split(".")[0] for _, module in imports(path)}
    assert not found & FORBIDDEN[part_of(path)]


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("evenstep.errors", ("torch", "numpy", "scipy")),
        ("evenstep.graph", ("torch", "scipy")),
        ("evenstep.signal", ("torch", "scipy")),
        ("evenstep.init", ("torch", "scipy")),
        ("evenstep.rules", ("torch", "scipy")),
        ("evenstep.planning", ("torch", "scipy")),
        ("evenstep", ("scipy", "matplotlib", "typer", "rich")),
    ],
)
def test_a_fresh_import_pulls_in_no_more_than_it_says(module: str, absent: tuple[str, ...]) -> None:
    code = f"import {module}, sys; print(*sorted(set(sys.modules) & {set(absent)!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
