"""Check who imports whom: within the product, within research, and never research from the product.

Product: `errors <- arguments <- optim <- graph <- signal <- init <- rules <- planning <- module <- search, data, lint,
integrations <- report <- demo <- cli`. Research: `spaces, data <- study <- report <- cli`, all of which may import the
product.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PRODUCT, RESEARCH = "evenstep", "evenstep_research"
SOURCES = {PRODUCT: ROOT / "src" / PRODUCT, RESEARCH: ROOT / "research" / "src" / RESEARCH}
ORDER: dict[str, tuple[tuple[str, ...], ...]] = {
    PRODUCT: (
        ("errors",),
        ("arguments",),
        ("optim",),
        ("graph",),
        ("signal",),
        ("init",),
        ("rules",),
        ("planning",),
        ("module",),
        ("search", "data", "lint", "integrations"),
        ("report",),
        ("demo",),
        ("cli",),
    ),
    RESEARCH: (("spaces", "data"), ("study",), ("report",), ("cli",)),
}
LEVEL = {
    package: {name: level for level, names in enumerate(order) for name in names} for package, order in ORDER.items()
}
FILES = [(package, path) for package, source in SOURCES.items() for path in sorted(source.rglob("*.py"))]


def imports(path: Path, source: Path) -> Iterator[tuple[str, str]]:
    """Yield (enclosing definition, imported module) of every import in a file, at any depth of nesting."""
    package = (source.name, *path.relative_to(source).parts[:-1])

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
                    yield ".".join(inside), f"{module}.{alias.name}" if module in SOURCES else module
            elif isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield from walk(child, (*inside, child.name))
            else:
                yield from walk(child, inside)

    yield from walk(ast.parse(path.read_text(), filename=str(path)), ())


def part_of(path: Path, source: Path) -> str:
    return path.relative_to(source).parts[0].removesuffix(".py")


@pytest.mark.parametrize(
    ("package", "path"), FILES, ids=[f"{package}/{path.relative_to(SOURCES[package])}" for package, path in FILES]
)
def test_no_import_points_upwards(package: str, path: Path) -> None:
    source = SOURCES[package]
    part = part_of(path, source)
    if part in ("__init__", "__main__"):  # the public names, and the door to the command line: above everything
        return
    level = LEVEL[package]
    assert part in level, f"{part} has no place in the order of imports"
    name = path.relative_to(source).as_posix()
    for where, module in imports(path, source):
        imported, *parts = module.split(".")
        if imported == RESEARCH and package == PRODUCT:
            raise AssertionError(f"{name} imports {module}, and the product does without research")
        if imported != package or module == "evenstep.__version__":  # a constant of the package, none of its parts
            continue
        assert parts, f"{name} imports the package itself, which stands above its parts"
        assert parts[0] in level, f"{name} imports {module}, which has no place in the order of imports"
        assert level[parts[0]] <= level[part], f"{name} ({where or 'top'}) imports {module}, which stands above it"


def test_every_part_was_walked() -> None:
    for package, source in SOURCES.items():
        assert LEVEL[package].keys() <= {part_of(path, source) for walked, path in FILES if walked == package}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import evenstep.cli", {("", "evenstep.cli")}),
        ("def f():\n    from evenstep.cli import app", {("f", "evenstep.cli")}),
        ("from evenstep import cli", {("", "evenstep.cli")}),
        ("from evenstep_research import data", {("", "evenstep_research.data")}),
        ("from . import plan", {("", "evenstep.rules")}),
        ("from ..cli import app", {("", "evenstep.cli")}),
        ("from .. import cli", {("", "evenstep.cli")}),
        ("class A:\n    def f(self):\n        if 1:\n            import torch", {("A.f", "torch")}),
    ],
)
def test_the_walk_finds_imports_in_every_form(source: str, expected: set[tuple[str, str]], tmp_path: Path) -> None:
    package = tmp_path / PRODUCT
    (package / "rules").mkdir(parents=True)
    path = package / "rules" / "made_up.py"
    path.write_text(source)
    assert set(imports(path, package)) == expected


FORBIDDEN = {
    "errors": {"torch", "numpy", "scipy"},
    **{part: {"torch", "scipy"} for part in ("graph", "signal", "init", "rules", "planning")},
}


LIGHT = [path for package, path in FILES if package == PRODUCT and part_of(path, SOURCES[PRODUCT]) in FORBIDDEN]


@pytest.mark.parametrize("path", LIGHT, ids=lambda path: path.name)
def test_all_up_to_the_plan_name_no_torch(path: Path) -> None:
    source = SOURCES[PRODUCT]
    assert not {module.split(".")[0] for _, module in imports(path, source)} & FORBIDDEN[part_of(path, source)]


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("evenstep.errors", ("torch", "numpy", "scipy")),
        ("evenstep.graph", ("torch", "scipy")),
        ("evenstep.signal", ("torch", "scipy")),
        ("evenstep.init", ("torch", "scipy")),
        ("evenstep.rules", ("torch", "scipy")),
        ("evenstep.planning", ("torch", "scipy")),
        ("evenstep", ("scipy", "matplotlib", "typer", "rich", "evenstep_research")),
    ],
)
def test_a_fresh_import_pulls_in_no_more_than_it_says(module: str, absent: tuple[str, ...]) -> None:
    code = f"import {module}, sys; print(*sorted(set(sys.modules) & {set(absent)!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
