"""The page's summary: the result of each part, and the lines that a script needs to use it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from evenstep.errors import PlanError
from evenstep.planning import Plan, any_digits
from evenstep.planning.words import head_words
from evenstep.report.page.parts import CheckPart, Part, PlanPart, SearchPart, StudyPart
from evenstep.report.page.words import counted, number
from evenstep.search import LRSearch

_BEGINNING = "from pathlib import Path\n\nimport evenstep as es\n\n"
_SEARCH_BEGINNING = "import json\nfrom pathlib import Path\n\nimport evenstep as es\n\n"


@dataclass(frozen=True)
class Script:
    """Lines to paste into a script, and the file that they read, with its name and JSON content."""

    code: str
    file: str
    data: Markup


@dataclass(frozen=True)
class Summary:
    """The result of one part in short lines; `script` uses it."""

    anchor: str
    title: str
    heading: str
    lines: tuple[str, ...]
    script: Script | None = None


def summaries(parts: Sequence[tuple[str, str, str, Part]]) -> tuple[Summary, ...]:
    """Return the summary of every part, given with the anchor, title and heading of its section.

    A search has lines to paste only if no plan on the page uses its rate.
    """
    planned = any(isinstance(part, PlanPart) for *_, part in parts)
    made: list[Summary] = []
    for anchor, title, heading, part in parts:
        script, lines = None, _lines(part)
        if isinstance(part, PlanPart) and part.has_graph:
            try:
                script = _plan_script(part.plan, _file(part.name or "plan", made))
            except PlanError as error:  # a plan that JSON cannot hold is still shown
                lines = (*lines, f"No script can load it: {error}.")
        elif isinstance(part, SearchPart) and part.has_graph and not planned and part.search.status != "all_diverged":
            script = _search_script(part.search, _file(part.name or "search", made))
        made.append(Summary(anchor, title, heading, lines, script))
    return tuple(made)


def _lines(part: Part) -> tuple[str, ...]:
    if isinstance(part, PlanPart):
        return _plan_lines(part)
    if isinstance(part, SearchPart):
        return _search_lines(part)
    if isinstance(part, CheckPart):
        verdict, _, reason = str(part.check).partition(": ")
        return (f"{'Passed' if part.check.ok else 'Failed'}: {reason or verdict}",)
    return _study_lines(part)


def _plan_lines(part: PlanPart) -> tuple[str, ...]:
    plan = part.plan
    lines = [f"{line[:1].upper()}{line[1:]}." for line in plan.history] or [_base_line(plan)]
    scales = [p.lr_scale for p in plan.parameters if not p.frozen]
    frozen = len(plan.parameters) - len(scales)
    if scales:
        what, unit = ("LR factors", 1.0) if plan.base is None else ("learning rates", plan.base)
        low, high = (number(unit * end) for end in (min(scales), max(scales)))
        span = low if low == high else f"{low} to {high}"
        lines.append(f"{counted(len(scales), 'parameter')} with {what} of {span}, by {_by(plan)}.")
    if frozen:
        lines.append(f"{counted(frozen, 'parameter')} frozen: {'it is' if frozen == 1 else 'they are'} not trained.")
    if not part.has_graph:
        lines.append("The file has no graph, so no script can load the plan; write it with plan.to_json().")
    return tuple(lines)


def _by(plan: Plan) -> str:
    head = head_words(plan).removeprefix("Plan by ")
    return head.rpartition(", ")[0]  # the base has its own line


def _base_line(plan: Plan) -> str:
    if plan.base is None:
        return "No base was searched: the plan holds factors only, and needs the base's learning rate as lr."
    return f"The base's learning rate is {number(plan.base)}; the network's factor is {number(plan.lr_scale)}."


def _search_lines(part: SearchPart) -> tuple[str, ...]:
    search = part.search
    tried = f"{counted(len(search.grid), 'rate')} from {number(search.grid[0])} to {number(search.grid[-1])}"
    seeds = counted(len(search.losses[0]), "seed")
    lost = (
        f", {search.diverged} of {counted(sum(map(len, search.losses)), 'trial')} diverged" if search.diverged else ""
    )
    where = f" on the base {search.network}" if search.network else ""
    optimizer = f" with {search.optimizer}" if search.optimizer else ""
    lines = [f"Searched{where}{optimizer}: {tried}, {seeds} each{lost}."]
    if not math.isfinite(search.best):
        return (*lines, "No rate was found: every trial diverged.")
    within = ""
    if search.interval:
        within = f" (95 % interval {number(search.interval[0])} to {number(search.interval[1])})"
    lines.append(f"Learning rate {number(search.rate)}{within}.")
    if not part.has_graph:
        lines.append("The file has no graph of the base; search with --json to plan from it.")
    return tuple(lines)


def _study_lines(part: StudyPart) -> tuple[str, ...]:
    networks = sum(int(family["n"]) for family in part.families)
    return (f"{counted(len(part.families), 'family', 'families')} with {counted(networks, 'network')}.",)


def _plan_script(plan: Plan, file: str) -> Script:
    """Return the lines that load a plan, draw the weights and build the optimiser."""
    rate = ", lr=0.1)  # lr: the base's learning rate" if plan.base is None else ")"
    code = (
        f"{_BEGINNING}plan = es.Plan.from_json(Path({_quoted(file)}).read_text())\n"
        f"es.initialize_(model, plan)\noptimizer = plan.optimizer(model{rate}"
    )
    with any_digits():
        return Script(code, file, _harmless(plan.to_json()))


def _search_script(search: LRSearch, file: str) -> Script:
    """Return the lines that load a search and plan from it."""
    code = (
        f"{_SEARCH_BEGINNING}search = es.LRSearch.from_dict(json.loads(Path({_quoted(file)}).read_text()))\n"
        "plan = es.plan(model, example_inputs, base=search)\n"
        "es.initialize_(model, plan)\noptimizer = plan.optimizer(model)"
    )
    with any_digits():
        return Script(code, file, _harmless(json.dumps(search.to_dict())))


def _file(name: str, before: Sequence[Summary]) -> str:
    """Return a file name that no earlier summary has, from the letters, digits and dashes of a part's name."""
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-")[:60] or "plan"
    taken = {summary.script.file for summary in before if summary.script}
    names = (f"{plain}{end}.json" for end in ("", *(f"-{place}" for place in range(2, len(before) + 3))))
    return next(name for name in names if name not in taken)


def _quoted(text: str) -> str:
    return f'"{text}"'


def _harmless(text: str) -> Markup:
    """Return equal JSON without characters that have a meaning in HTML."""
    for letter in "<>&":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return Markup(text)
