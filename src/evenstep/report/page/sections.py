"""The page's sections: every part with the values that its template shows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evenstep.graph.fields import name_of
from evenstep.planning import ParameterPlan, Plan
from evenstep.planning.table import PlanTable, Reason, TableRow, plan_table, std_words
from evenstep.planning.words import format_factors, training_words
from evenstep.report.page.charts import SHAPES, Chart
from evenstep.report.page.colours import ColourScale
from evenstep.report.page.drawing import Drawing, draw
from evenstep.report.page.parts import CheckPart, Part, PlanPart, SearchPart, StudyPart
from evenstep.report.page.pictures import SEARCHED, check_charts, method_styles, search_chart, transfer_chart
from evenstep.report.page.words import counted, number, size, whole
from evenstep.search.checking import Trend

Fact = tuple[str, str, str]  # what, its value, and a remark
_RULES = {
    "weighted": "each path counts by the second moment it carries",
    "paths": "the paper's: all paths count alike, by cubed depth",
    "constant": "the base's rate for all",
    "mup": "compares layers with those of a narrower base",
    "spectral": "factors of width alone",
    "completep": "muP, and residual branches over the number of blocks",
    "depth-mup": "muP, and residual branches over the root of the number of blocks",
    "u-mup": "muP with unit weights, and depth as in depth-muP",
    "am-mup": "the shortest path's length to the power -3/2",
}
_INITS = {
    "conserve": "keeps the signal's second moment",
    "degree": "the paper's, by in-degree",
    "he": "2 / fan_in",
    "keep": "weights stay as they are",
}
_STATUS = {
    "best_at_edge": "The smallest loss is at the edge of the rates that were tried: the best one may lie beyond.",
    "learnt_nothing": "The smallest loss is within noise of the untrained network's: no rate learnt anything.",
    "all_diverged": "Every trial diverged at all rates that were tried: search lower ones.",
}


@dataclass(frozen=True)
class ParameterRow:
    """One row of the parameter table; `whys` and `note_words` hold what the lists above the table do not say."""

    name: str
    role: str
    shape: str
    count: int
    std: str
    std_value: float
    factor: str
    factor_value: float
    lr: str
    cells: TableRow
    whys: tuple[str, ...]
    note_words: str
    colour: str


@dataclass(frozen=True)
class PlanSection:
    """A plan: facts, graph and table."""

    anchor: str
    heading: str
    facts: tuple[Fact, ...]
    factors: tuple[tuple[str, str, str], ...]
    warnings: tuple[str, ...]
    columns: tuple[Reason, ...]
    notes: tuple[Reason, ...]
    rows: tuple[ParameterRow, ...]
    has_rates: bool
    scale: ColourScale
    drawing: Drawing | None
    thickness: str
    kind: str = "plan"
    title: str = "Plan"


@dataclass(frozen=True)
class SearchSection:
    """A search: facts, curve and numbers."""

    anchor: str
    heading: str
    facts: tuple[Fact, ...]
    notice: str
    note: str
    chart: Chart
    rows: tuple[tuple[str, str, str, bool], ...]
    kind: str = "search"
    title: str = "Search"


@dataclass(frozen=True)
class TrendRow:
    """One signal of a check."""

    signal: str
    values: tuple[str, ...]
    slope: str
    verdict: str


@dataclass(frozen=True)
class CheckSection:
    """A coordinate check: verdict, charts and numbers."""

    anchor: str
    heading: str
    verdict: str
    reason: str
    note: str
    over: str
    labels: tuple[str, ...]
    slope: str
    steps: int
    charts: tuple[Chart, ...]
    rows: tuple[TrendRow, ...]
    kind: str = "check"
    title: str = "Coordinate check"


@dataclass(frozen=True)
class FamilyView:
    """One family of a study: its figures, and its chart if every network's rates are known."""

    title: str
    chart: Chart | None
    legend: tuple[tuple[str, str, str], ...]
    rows: tuple[tuple[str, ...], ...]
    note: str


@dataclass(frozen=True)
class StudySection:
    """A study of transferred rates."""

    anchor: str
    heading: str
    note: str
    families: tuple[FamilyView, ...]
    kind: str = "study"
    title: str = "Transfer study"


Section = PlanSection | SearchSection | CheckSection | StudySection


def section(part: Part, place: int) -> Section:
    """Return the section of a part; `place` keeps its element names apart from other sections'."""
    if isinstance(part, PlanPart):
        return _plan(part, f"plan-{place}")
    if isinstance(part, SearchPart):
        return _search(part, f"search-{place}")
    if isinstance(part, CheckPart):
        return _check(part, f"check-{place}")
    return _study(part, f"study-{place}")


def _plan(part: PlanPart, anchor: str) -> PlanSection:
    plan = part.plan
    scale = ColourScale.over((p.lr_scale for p in plan.parameters), middle=plan.lr_scale)
    drawing = draw(plan, scale, name=f"{anchor}-graph") if part.has_graph else None
    thickness = "share of all paths" if name_of(plan.rule) == "paths" else "share of the second moment"
    table = plan_table(plan)
    return PlanSection(
        anchor,
        part.name or "Plan",
        _plan_facts(plan, has_graph=part.has_graph),
        tuple((factor.name, number(factor.value), factor.why) for factor in plan.factors),
        plan.warnings if part.has_graph else plan.remarks,
        table.factors,
        table.notes,
        tuple(_row(plan, p, table, cells, scale) for p, cells in zip(plan.parameters, table.rows, strict=True)),
        plan.base is not None,
        scale,
        drawing,
        thickness,
    )


def _plan_facts(plan: Plan, *, has_graph: bool) -> tuple[Fact, ...]:
    values = sum(math.prod(p.shape) for p in plan.parameters)
    facts = [
        ("Rule", plan.rule, _RULES.get(name_of(plan.rule), "")),
        ("Base learning rate", "none" if plan.base is None else number(plan.base), _base_said(plan)),
        ("Network's factor", f"× {number(plan.lr_scale)}", "relative to its base, width aside"),
        ("Initialisation", plan.init, _INITS.get(name_of(plan.init), "")),
        ("Optimiser", plan.optimizer_name, _settings_said(plan)),
        *([("Training", str(plan.training) or "not known", training_words(plan))] if training_words(plan) else []),
        ("Parameters", whole(len(plan.parameters)), counted(values, "number")),
    ]
    if has_graph:
        graph = plan.graph
        edges = f"{counted(len(graph.edges), 'edge')}, {counted(plan.path_count, 'path')}"
        facts.append(("Graph", counted(len(graph.vertices), "vertex", "vertices"), edges))
    else:
        facts.append(("Paths", whole(plan.path_count), "from input to output"))
    return tuple(facts)


def _settings_said(plan: Plan) -> str:
    """Say which settings of the optimiser, besides rates, a batch rule has moved."""
    moved = {"1 - beta": plan.beta_factors, "epsilon": plan.eps_factors}
    return "; ".join(f"{name}: {format_factors(factors)}" for name, factors in moved.items() if factors)


def _base_said(plan: Plan) -> str:
    return "the plan holds factors only" if plan.base is None else "every factor multiplies it"


def _row(plan: Plan, p: ParameterPlan, table: PlanTable, cells: TableRow, scale: ColourScale) -> ParameterRow:
    above = table.note_words
    is_exact = all(words in {above[mark] for mark in cells.notes} for words in cells.note_words)
    return ParameterRow(
        p.name,
        p.role,
        size(p.shape),
        math.prod(p.shape),
        std_words(p),
        p.std,
        "frozen" if p.frozen else number(p.lr_scale),
        p.lr_scale,
        "" if plan.base is None or p.frozen else number(plan.base * p.lr_scale),
        cells,
        tuple("" if why == column.words else why for why, column in zip(cells.whys, table.factors, strict=True)),
        "" if is_exact else "\n".join(cells.note_words),
        scale.colour(p.lr_scale),
    )


def _search(part: SearchPart, anchor: str) -> SearchSection:
    search = part.search
    seeds = len(search.losses[0])
    low, high = search.bracket
    known = math.isfinite(search.best)
    facts: list[Fact] = [
        ("Rate", number(search.rate), "what plans start from"),
    ]
    if search.interval:
        facts.append(
            ("95 % interval", f"{number(search.interval[0])} – {number(search.interval[1])}", "of the smallest loss")
        )
    facts += [
        ("Estimate", number(search.estimate), "the minimum of a parabola, if there is one"),
        ("Best", number(search.best), "the largest whose loss is within noise of the smallest"),
        ("Bracket", f"{number(low)} – {number(high)}" if known else "–", "the neighbours of the best"),
    ]
    facts.append(
        ("Tried", counted(len(search.grid), "rate"), f"{counted(seeds, 'seed')} each, {search.diverged} diverged")
    )
    rows = tuple(
        (number(rate), _loss(mean), ", ".join(map(_loss, losses)), rate == search.best)
        for rate, mean, losses in zip(search.grid, search.mean_losses, search.losses, strict=True)
    )
    notice = _STATUS.get(search.status, "") or search.remark
    return SearchSection(anchor, part.name or "Search", tuple(facts), notice, part.note, search_chart(search), rows)


def _loss(loss: float) -> str:
    return number(loss) if math.isfinite(loss) else "diverged"


def _check(part: CheckPart, anchor: str) -> CheckSection:
    check = part.check
    rows = [*(_trend(t, check.tolerance) for t in check.trends), *(_trend(t, None) for t in check.shown)]
    note = ", ".join(filter(None, (part.note, f"optimiser {check.optimizer}")))
    return CheckSection(
        anchor,
        part.name or "Coordinate check",
        check.verdict,
        str(check),
        note,
        part.over,
        tuple(str(network.label) for network in check.networks),
        "octaves" if check.named else "slope",
        check.steps,
        check_charts(check, part.over),
        tuple(rows),
    )


def _trend(trend: Trend, tolerance: float | None) -> TrendRow:
    verdict = "not judged" if tolerance is None else "even" if abs(trend.slope) <= tolerance else "uneven"
    pairs = zip(trend.values, trend.later, strict=True)
    return TrendRow(
        trend.signal, tuple(f"{number(a, 3)} ({number(b, 3)})" for a, b in pairs), f"{trend.slope:+.2f}", verdict
    )


def _study(part: StudyPart, anchor: str) -> StudySection:
    families = tuple(_family(family, part.rows) for family in part.families)
    parts = []
    if part.config:
        training = part.config.get("training", {})
        parts.append(f"Scale {part.config.get('scale', 'unknown')} on {part.config.get('data', 'unknown data')}")
        parts += [f"{counted(int(training[key]), key[:-1])}" for key in ("epochs", "seeds") if key in training]
    if part.provenance:
        parts.append(str(part.provenance.get("device", "")))
    note = ", ".join(filter(None, parts)) + ("." if parts else "")
    if part.left_out:
        note += f" Left out because the search of their base has no answer: {', '.join(map(str, part.left_out))}."
    if families and not part.rows:
        note += " Single networks are in a file table.csv, which was not next to the record."
    return StudySection(anchor, part.name or "Transfer study", note.strip(), families)


def _family(family: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> FamilyView:
    styles = method_styles([name for name in family["methods"] if name != SEARCHED])
    figures = tuple(
        (
            name,
            _figure(one, "mean_regret", 3, interval=True),
            _figure(one, "p90_regret", 3),
            _figure(one, "pearson_log", 2),
            _figure(one, "kendall", 2),
            _figure(one, "median_error", 2),
            str(one.get("diverged", "–")),
        )
        for name, one in {**family["methods"], **family.get("rivals", {})}.items()
    )
    note = counted(int(family["n"]), "network")
    if family.get("base_lr"):
        note += f", the base's learning rate {number(family['base_lr'])}"
    return FamilyView(
        f"{family['title']}",
        transfer_chart(family, rows),
        tuple((name, SHAPES[shape], style) for name, (shape, style) in styles.items()),
        figures,
        note,
    )


def _figure(figures: Mapping[str, Any], name: str, digits: int, *, interval: bool = False) -> str:
    found = figures.get(name) or {}
    value, low, high = (found.get(key) for key in ("value", "low", "high"))
    if value is None:
        return "–"
    text = f"{value:.{digits}f}"
    return (
        f"{text} ({low:.{digits}f} to {high:.{digits}f})" if interval and low is not None and high is not None else text
    )
