"""Every code block of the docs runs, and the site builds.

Blocks of a page run in order, in a folder of their own. Comments in a page, invisible to readers, say what else a block
needs: `<!-- given ... -->` holds Python that runs first; `<!-- file NAME -->` before a block says that it is a file's
content; `<!-- not run: WHY -->` before a block leaves it to be parsed alone.
"""

from __future__ import annotations

import ast
import doctest
import importlib
import importlib.util
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import typer

import evenstep as es
from evenstep.cli import main
from evenstep.cli.app import app

torch.set_num_threads(1)

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
_BLOCK = re.compile(
    r"<!-- given\n(?P<given>.*?)-->"
    r"|(?:<!-- (?P<note>not run: [^\n]+|file \S+) -->\n)?^```(?P<language>\w*)\n(?P<code>.*?)^```",
    flags=re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Block:
    """A piece of a page: its language (`given` for hidden Python), its text, and the note before it."""

    language: str
    code: str
    line: int
    note: str = ""

    @property
    def runs(self) -> bool:
        return not self.note.startswith("not run")


def blocks(text: str) -> Iterator[Block]:
    for found in _BLOCK.finditer(text):
        line = text[: found.start("given" if found["given"] else "code")].count("\n")
        if found["given"] is not None:
            yield Block("given", found["given"], line)
        else:
            yield Block(found["language"], found["code"], line, found["note"] or "")


def commands(code: str) -> Iterator[list[list[str]]]:
    """Yield the pipelines of a block that begin with `evenstep`, each a list of commands split into words."""
    for line in code.replace("\\\n", " ").splitlines():
        reader = shlex.shlex(line, posix=True, punctuation_chars="|<>")
        reader.whitespace_split, reader.commenters = True, "#"
        words = list(reader)
        if words[:1] != ["evenstep"]:
            continue
        pipeline: list[list[str]] = [[]]
        for word in words:
            if word == "|":
                pipeline.append([])
            else:
                pipeline[-1].append(word)
        yield pipeline


def split_redirections(words: list[str]) -> tuple[list[str], str | None, str | None]:
    """Return the arguments of a command, and the files behind `<` and `>`."""
    arguments, files, iterator = [], {"<": None, ">": None}, iter(words[1:])
    for word in iterator:
        if word in files:
            files[word] = next(iterator)  # type: ignore[assignment]
        else:
            arguments.append(word)
    return arguments, files["<"], files[">"]


def parse(arguments: list[str]) -> None:
    """Raise where the command line has no such command or option."""
    command: Any = typer.main.get_command(app)
    rest = list(arguments)
    while hasattr(command, "commands"):
        if rest[0].startswith("-"):
            assert rest[0] in {option for parameter in command.params for option in parameter.opts}, rest
            return
        name = rest.pop(0)
        assert name in command.commands, f"there is no command '{name}' in {arguments}"
        command = command.commands[name]
    command.make_context(command.name, rest)


def call(arguments: list[str], given: str, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> str:
    """Run the command line in this process; return its standard output."""
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", ["evenstep", *arguments])
    monkeypatch.setattr(sys, "stdin", io.StringIO(given))
    monkeypatch.setattr(sys, "path", list(sys.path))
    code = 0
    try:
        main()
    except SystemExit as stop:
        code = int(stop.code or 0)
    written = capsys.readouterr()
    assert code == 0, f"{arguments}: {written.err}"
    return str(written.out)


@pytest.fixture
def _tidy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Run in a folder of its own, and forget what a page registers or imports."""
    from evenstep.module.ops import registry

    handlers, modules = dict(registry._HANDLERS), set(sys.modules)
    monkeypatch.chdir(tmp_path)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield
    registry._HANDLERS.clear()
    registry._HANDLERS.update(handlers)
    for name in set(sys.modules) - modules:
        if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in str(sys.modules[name].__file__):
            del sys.modules[name]


@pytest.mark.usefixtures("_tidy")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_code_of_a_page_runs(
    page: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names: dict[str, Any] = {"__name__": "__page__"}
    for block in blocks(page.read_text()):
        if block.note.startswith("file "):
            Path(block.note.removeprefix("file ")).write_text(block.code)
        elif block.language in ("python", "given") and block.runs:
            code = "\n" * block.line + block.code  # errors then name the page's own line
            exec(compile(code, str(page), "exec"), names)
        elif block.language == "sh" and block.runs:
            for pipeline in commands(block.code):
                passed = ""
                for words in pipeline:
                    arguments, source, target = split_redirections(words)
                    passed = call(arguments, Path(source).read_text() if source else passed, monkeypatch, capsys)
                    if target:
                        Path(target).write_text(passed)


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=lambda page: page.stem)
def test_what_a_page_says_parses(page: Path) -> None:
    for block in blocks(page.read_text()):
        assert block.language in ("python", "sh", "given", "text"), f"{page.name}:{block.line}: {block.language}"
        assert block.runs or len(block.note) > len("not run: ") + 10, f"{page.name}:{block.line} says no reason"
        if block.language in ("python", "given"):
            ast.parse(block.code)
        for pipeline in commands(block.code) if block.language == "sh" else ():
            for words in pipeline:
                assert words[0] == "evenstep"
                parse(split_redirections(words)[0])


def test_the_blocks_are_found() -> None:
    text = (
        "<!-- given\nx = 1\n-->\n```python\ny = x\n```\n\n<!-- not run: takes a year -->\n```sh\nevenstep demo\n```\n"
        "<!-- file a.py -->\n```python\nz = 1\n```\n"
    )
    found = list(blocks(text))
    assert [(b.language, b.code, b.runs) for b in found] == [
        ("given", "x = 1\n", True),
        ("python", "y = x\n", True),
        ("sh", "evenstep demo\n", False),
        ("python", "z = 1\n", True),
    ]
    assert found[3].note == "file a.py"
    assert text.splitlines()[found[1].line] == "y = x"
    assert sum(block.runs for page in PAGES for block in blocks(page.read_text())) > 20


def test_command_lines_are_split_as_a_shell_would() -> None:
    code = "evenstep plan --code '|a~0|' --json \\\n  | evenstep report - -o p.html  # note\nmake run\n"
    code += "evenstep plan < c > d"
    assert list(commands(code)) == [
        [["evenstep", "plan", "--code", "|a~0|", "--json"], ["evenstep", "report", "-", "-o", "p.html"]],
        [["evenstep", "plan", "<", "c", ">", "d"]],
    ]
    assert split_redirections(["evenstep", "plan", "<", "c", ">", "d"]) == (["plan"], "c", "d")


@pytest.mark.parametrize("wrong", [["plam"], ["plan", "--cod", "2"], ["study", "tranfer"], ["--versoin"]])
def test_commands_that_are_not_there_are_found(wrong: list[str]) -> None:
    with pytest.raises(Exception, match=r"(?i)no such|no command|versoin"):
        parse(wrong)


def test_every_public_name_is_in_the_reference() -> None:
    listed = {line.split()[1] for line in (DOCS / "api.md").read_text().splitlines() if line.startswith(":::")}
    for name in es.__all__:
        if name not in ("__version__", "ops"):
            assert f"evenstep.{name}" in listed or f"evenstep.module.{name}.{name}" in listed, name


def test_every_function_that_theory_names_is_linked() -> None:
    spec = importlib.util.spec_from_file_location("links", DOCS / "hooks" / "links.py")
    assert spec is not None
    assert spec.loader is not None
    links = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(links)
    theory = (DOCS / "theory.md").read_text()
    named = set(re.findall(r"`(evenstep\.[\w.]+)`", theory))
    assert len(named) > 5
    for name in named:
        assert f"[`{name}`][{name}]" in links.linked(theory)


DOCTESTED = [
    ".".join(path.relative_to(source).with_suffix("").parts)
    for source in (ROOT / "src", ROOT / "research" / "src")
    for path in sorted(source.rglob("*.py"))
    if ">>>" in path.read_text()
]


@pytest.mark.parametrize("name", DOCTESTED)
def test_the_examples_of_docstrings_run(name: str) -> None:
    module = importlib.import_module(name)
    found = doctest.testmod(module)
    assert found.attempted > 0
    assert found.failed == 0


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site; a page that is not in the navigation, or a link that leads nowhere, fails it."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_site_builds_with_every_page(site: Path) -> None:
    for page in PAGES:
        built = site / ("index.html" if page.stem == "index" else f"{page.stem}/index.html")
        assert built.is_file(), page.stem
    reference = (site / "api" / "index.html").read_text()
    for name in ("Plan.param_groups", "search_lr", "graph.path_moments.path_moments"):
        assert f'id="evenstep.{name}"' in reference
    assert 'href="../api/#evenstep.graph.path_moments.path_moments"' in (site / "theory" / "index.html").read_text()


def test_the_site_asks_no_other_server_for_anything(site: Path) -> None:
    for page in site.rglob("*.html"):
        for address in re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=\"(https?://[^\"]+)", page.read_text()):
            raise AssertionError(f"{page.relative_to(site)} loads {address}")
