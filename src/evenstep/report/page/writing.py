"""Write the page: one file with everything in it, written completely or not at all."""

from __future__ import annotations

import os
import platform
import secrets
import time
from base64 import b64encode
from collections.abc import Iterable, Sequence
from hashlib import sha256
from importlib import metadata, resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from evenstep import __version__
from evenstep.arguments import shown
from evenstep.errors import InputError
from evenstep.report.page.drawing import spacing
from evenstep.report.page.parts import Part
from evenstep.report.page.sections import PlanSection, Section, section
from evenstep.report.page.subjects import Subject, parts_of
from evenstep.report.page.summary import summaries

_SCRIPTS = ("tips.js", "keys.js", "graph.js", "zoom.js", "table.js", "copy.js")
_ORDER = ("plan", "search", "check", "study")


def write_report(subjects: Subject | Iterable[Subject], path: str | os.PathLike[str], *, title: str = "") -> Path:
    """Write one self-contained HTML page about plans, searches, checks and studies, and return its path.

    `subjects` is a `Plan`, an `LRSearch`, a `Check`, a study's record, or the path of a file that holds one of these.
    It may also be a list of them, or a mapping from names, which become headings.
    """
    if not isinstance(path, str | os.PathLike) or "\0" in os.fsdecode(path):
        raise InputError(f"path is {shown(path)}; give the file to write the page to, such as 'report.html'")
    target = Path(path)
    write_page(render(parts_of(subjects), title=title), target)
    return target


def render(parts: Sequence[Part], *, title: str = "") -> str:
    """Return a page of parts as HTML text."""
    if not isinstance(title, str):
        raise InputError(f"title is {shown(title)}; give a text")
    pairs = [(section(part, place), part) for place, part in enumerate(parts)]
    pairs.sort(key=lambda pair: _ORDER.index(pair[0].kind))
    sections = [shown for shown, _ in pairs]
    style, script = _data("page.css"), Markup("\n").join(map(_data, _SCRIPTS))
    return (
        _environment()
        .get_template("page.html")
        .render(
            title=title or _title(parts),
            summaries=summaries([(s.anchor, s.title, s.heading, part) for s, part in pairs]),
            sections=sections,
            versions=_versions(),
            written=time.strftime("%Y-%m-%d"),
            geometry=_geometry(sections),
            policy=_policy(style, script),
            style=style,
            script=script,
        )
    )


def _policy(style: str, script: str) -> str:
    """Return the page's Content-Security-Policy: this style sheet, this script, and nothing else."""
    return (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"


def write_page(page: str, path: Path) -> None:
    """Write a page next to its place and move it there, so that no reader sees half a page."""
    target = Path(os.path.realpath(path))
    unfinished = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        with unfinished.open("x", encoding="utf-8", errors="replace", newline="\n") as file:
            file.write(page)
        unfinished.replace(target)
    except OSError as error:
        _remove(unfinished)
        raise InputError(
            f"the report cannot be written to '{path}': {error.strerror}; give a file in a folder that you can write to"
        ) from None
    except BaseException:
        _remove(unfinished)
        raise


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return  # its folder does not exist or is not a folder, so neither does the file


def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("evenstep.report.page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _data(name: str) -> Markup:
    """Return a file of the package unchanged: its text needs no escaping."""
    return Markup(resources.files("evenstep.report.page").joinpath("templates", name).read_text(encoding="utf-8"))


def _geometry(sections: Sequence[Section]) -> dict[str, Any]:
    """Return what the page's script needs to know about the graphs."""
    drawings = [s.drawing for s in sections if isinstance(s, PlanSection) and s.drawing]
    found: dict[str, Any] = {}
    for drawing in drawings:
        found |= drawing.geometry()
    return {"drawings": found, **spacing()}


def _title(parts: Sequence[Part]) -> str:
    return parts[0].name if len(parts) == 1 and parts[0].name else "Learning rates, layer by layer"


def _versions() -> tuple[tuple[str, str], ...]:
    found = [("evenstep", __version__)]
    for name in ("torch", "numpy"):
        try:
            found.append((name, metadata.version(name)))
        except metadata.PackageNotFoundError:
            continue
    return (*found, ("Python", platform.python_version()))
