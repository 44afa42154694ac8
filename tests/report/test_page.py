"""Check the report page without a browser: layout, folding, escaping, and that everything is there once."""

from __future__ import annotations

import base64
import cProfile
import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from html.parser import HTMLParser
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import evenstep
from evenstep.errors import InputError
from evenstep.graph import Edge, Graph, Parameter, Vertex, dag_mlp_graph
from evenstep.graph.operators import Weight
from evenstep.planning import Plan, plan_graph
from evenstep.report.page.colours import ColourScale
from evenstep.report.page.drawing import Drawing, draw
from evenstep.report.page.folding import Fold, fold
from evenstep.report.page.items import Item, Line, Picture, picture
from evenstep.report.page.layout import Layout, lay_out
from evenstep.report.page.parts import PlanPart, SearchPart
from evenstep.report.page.reading import part_of_text, read
from evenstep.report.page.shares import path_weights
from evenstep.report.page.writing import render
from evenstep.search import Check, LRSearch, Store
from evenstep.search.checking import CheckedNetwork, Trend
from evenstep.search.first_step import Changes
from evenstep.search.result import chosen
from evenstep.search.store import StoreRow
from evenstep_research.study.codes import chain_code, dense_code
from tests.strategies import dag_codes

NASTY = "</script><script>alert('x')</script>\"&'<b>"


def chain(names: list[str], *, skip: bool = False) -> Plan:
    """Plan a chain of layers with the given names; with `skip`, a line passes every second layer."""
    vertices = [Vertex("input"), *(Vertex(name) for name in names)]
    edges = [
        Edge(source.name, target.name, (Weight(8, 8, depth=1),), (f"{target.name}.weight", f"{target.name}.bias"))
        for source, target in pairwise(vertices)
    ]
    if skip:
        edges += [Edge(vertices[i].name, vertices[i + 2].name) for i in range(0, len(vertices) - 2, 2)]
    parameters = [
        parameter
        for name in names
        for parameter in (
            Parameter(f"{name}.weight", "weight", (8, 8), 8, 8),
            Parameter(f"{name}.bias", "bias", (8,), 8, 8),
        )
    ]
    graph = Graph.build(vertices, edges, inputs=["input"], outputs=[names[-1]], parameters=parameters)
    return plan_graph(graph, base=0.1, optimizer="sgd")


def deep(blocks: int = 40) -> Plan:
    return chain([f"stage{i // 10}.{i}.{part}" for i in range(blocks) for part in ("first", "second")], skip=True)


def a_search() -> LRSearch:
    grid = (0.1, 0.2, 0.4, 0.8)
    losses = ((1.0, 1.1), (0.5, 0.6), (0.7, 0.8), (math.inf, 0.9))
    return chosen(grid, losses, dag_mlp_graph("2"))


def a_check() -> Check:
    changes = {"layer": Changes(1.0, 0.1, (0.1, 0.2))}
    networks = tuple(CheckedNetwork(width, 0.1, changes) for width in (64, 128))
    trends = (Trend("layer", True, (0.1, 0.11), (0.2, 0.21), 0.1), Trend("out", False, (0.1, 0.3), (0.2, 0.4), 1.6))
    return Check(networks, trends, (), "layers", 0.25, 2, "sgd")


def a_record() -> dict[str, Any]:
    figures = {name: {"value": 0.5, "low": 0.4, "high": 0.6} for name in ("mean_regret", "p90_regret", "kendall")}
    family = {
        "family": "mlp",
        "title": "some MLPs",
        "n": 2,
        "base_lr": 0.5,
        "methods": {
            "constant": {**figures, "diverged": 1},
            "weighted": {**figures, "diverged": 0},
            "searched": figures,
        },
        "rivals": {"range test": {**figures, "diverged": 0}},
        "drift": {},
        "without_truth": {},
    }
    return {"config": {"scale": "cpu", "data": "digits"}, "results": {"families": [family], "left_out": ["gone"]}}


class Page(HTMLParser):
    """Read a page as a browser does, as far as the tests ask: elements, texts of table rows, scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.heads: list[str] = []
        self.scripts: list[str] = []
        self.codes: list[str] = []
        self.text = ""
        self._in: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._in.append(tag)
        if tag == "th":
            self.heads.append("")
        if tag == "script":
            self.scripts.append("")
        if tag == "code":
            self.codes.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in self._in:
            del self._in[len(self._in) - 1 - self._in[::-1].index(tag) :]

    def handle_data(self, data: str) -> None:
        if self._in and self._in[-1] == "th":
            self.heads[-1] += data
        if self._in and self._in[-1] == "script":
            self.scripts[-1] += data
        else:
            self.text += data
        if self._in and self._in[-1] == "code":
            self.codes[-1] += data

    def tips(self) -> list[str]:
        return [attributes["data-tip"] or "" for _, attributes in self.elements if "data-tip" in attributes]


def check_layout(layout: Layout, links: list[tuple[int, int]], count: int) -> None:
    """See that links point down and that no two nodes or bends lie on one another."""
    for (source, target), bends in zip(links, layout.routes, strict=True):
        rows = [layout.spots[place].row for place in (source, *bends, target)]
        assert rows == list(range(rows[0], rows[-1] + 1))
    for row in layout.rows:
        for one, other in pairwise(row):
            left, right = layout.spots[one], layout.spots[other]
            assert left.x + left.width / 2 <= right.x - right.width / 2 + 1e-6
    for a, b in combinations(layout.spots[:count], 2):
        apart = abs(a.x - b.x) >= (a.width + b.width) / 2 - 1e-6
        assert apart or a.y + a.height <= b.y or b.y + b.height <= a.y
    for spot in layout.spots:
        assert spot.x - spot.width / 2 >= 0
        assert spot.x + spot.width / 2 <= layout.width
        assert spot.y + spot.height <= layout.height


@st.composite
def drawings(draw: st.DrawFn) -> tuple[list[tuple[float, float]], list[tuple[int, int]]]:
    count = draw(st.integers(1, 14))
    sizes = [(draw(st.floats(5, 150)), draw(st.floats(5, 60))) for _ in range(count)]
    pairs = [(i, j) for i in range(count) for j in range(i + 1, count)]
    links = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=30)) if pairs else []
    return sizes, links


@given(drawings())
@settings(max_examples=60)
def test_links_point_down_and_nothing_overlaps(given_: tuple[list[tuple[float, float]], list[tuple[int, int]]]) -> None:
    sizes, links = given_
    check_layout(lay_out(sizes, links), links, len(sizes))


def test_layers_are_longest_paths() -> None:
    links = [(0, 1), (1, 2), (2, 3), (0, 3), (4, 3)]
    layout = lay_out([(20.0, 20.0)] * 5, links)
    assert [layout.spots[i].row for i in range(4)] == [0, 1, 2, 3]
    assert layout.spots[4].row == 2  # a source stands just above what it feeds
    assert [len(route) for route in layout.routes] == [0, 0, 0, 2, 0]


def test_chains_are_drawn_upright() -> None:
    links = [(0, 1), (1, 2), (2, 3), (3, 4), (0, 4)]
    layout = lay_out([(60.0, 20.0)] * 5, links)
    assert len({round(layout.spots[i].x, 3) for i in (1, 2, 3)}) == 1


def test_a_cycle_has_no_layers() -> None:
    with pytest.raises(ValueError, match="cycle"):
        lay_out([(1.0, 1.0)] * 2, [(0, 1), (1, 0)])


@given(dag_codes())
@settings(max_examples=25)
def test_path_weights_flow_from_the_output_to_the_inputs(code: str) -> None:
    graph = dag_mlp_graph(code, width=8, inputs=4)
    for rule in ("weighted", "paths"):
        plan = plan_graph(graph, rule=rule)
        weights = dict(zip(map(id, graph.edges), path_weights(plan), strict=True))
        assert all(0 <= weight <= 1 + 1e-9 for weight in weights.values())
        into = {v.name: sum(weights[id(e)] for e in graph.incoming[v.name]) for v in graph.vertices}
        out = {v.name: sum(weights[id(e)] for e in graph.outgoing[v.name]) for v in graph.vertices}
        assert sum(into[name] for name in graph.outputs) == pytest.approx(1)
        assert sum(out[name] for name in graph.inputs) == pytest.approx(1)
        for vertex in graph.live().vertices:
            if vertex.name not in (*graph.inputs, *graph.outputs):
                assert into[vertex.name] == pytest.approx(out[vertex.name])


def test_by_paths_every_path_counts_alike() -> None:
    plan = plan_graph(dag_mlp_graph("2_12"), rule="paths")  # 0 -> 1 -> 2 and the skip 0 -> 2: two paths
    assert plan.path_count == 2
    inner = [w for e, w in zip(plan.graph.edges, path_weights(plan), strict=True) if e.target == "2"]
    assert inner == [0.5, 0.5]


def test_every_edge_of_the_graph_is_drawn_once() -> None:
    plan = plan_graph(dag_mlp_graph(dense_code(6)))
    shown = picture(plan)
    layers = [item for item in shown.items if item.kind == "layer"]
    assert sorted(row for item in layers for row in item.parameters) == list(range(len(plan.parameters)))
    assert sum(item.kind == "junction" for item in shown.items) == sum(
        len(plan.graph.incoming[v.name]) > 1 for v in plan.graph.vertices
    )
    assert all(line.source < line.target for line in shown.lines)


def boxes(drawing: Drawing) -> list[Drawing]:
    return [drawing, *(inner for node in drawing.nodes if node.inside for inner in boxes(node.inside))]


@pytest.mark.parametrize(
    "plan",
    [
        deep(),
        chain([f"{kind}.{i}" for i in range(50) for kind in ("convs", "norms")]),  # modules that take turns
        chain([f"layers.{i}" for i in range(300)]),
        plan_graph(dag_mlp_graph(dense_code(14)), base=0.1, optimizer="sgd"),
        plan_graph(dag_mlp_graph(chain_code(100)), base=0.1, optimizer="sgd"),
    ],
    ids=["blocks", "turns", "flat", "dense", "chain"],
)
def test_a_large_graph_is_folded_into_boxes_that_hold_everything(plan: Plan) -> None:
    shown = picture(plan)
    box = fold(shown)
    assert sorted(box.places) == list(range(len(shown.items)))
    drawing = draw(plan, ColourScale.over((p.lr_scale for p in plan.parameters), middle=plan.lr_scale), name="g")
    assert drawing.folds
    assert len(drawing.nodes) <= 40
    rows = []
    for one in boxes(drawing):
        assert len(one.nodes) <= 60
        count = len(one.layout.spots) - sum(map(len, one.layout.routes))
        check_layout(one.layout, list(one.links), count)
        rows += [row for node in one.nodes for row in node.rows]
    assert sorted(set(rows)) == list(range(len(plan.parameters)))
    names = [node.name for one in boxes(drawing) for node in one.nodes]
    assert len(set(names)) == len(names)


def test_modules_give_boxes_their_names() -> None:
    labels = [member.label for member in fold(picture(deep())).members if isinstance(member, Fold)]
    assert labels == ["stage0", "stage1", "stage2", "stage3"]


def test_the_only_box_is_open() -> None:
    plan = chain([f"{'' if i == 0 else 'wrapped.'}stage{i // 30}.{i}" for i in range(90)])
    labels = [member.label for member in fold(picture(plan)).members if isinstance(member, Fold)]
    assert labels == ["wrapped.stage0", "wrapped.stage1", "wrapped.stage2"]


def test_a_small_graph_is_not_folded() -> None:
    assert all(isinstance(member, int) for member in fold(picture(chain(["a.b", "a.c"]))).members)


@given(
    st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map(tuple), min_size=4, max_size=40), st.data()
)
@settings(max_examples=40)
def test_folding_never_makes_a_cycle(modules: list[tuple[str, ...]], data: st.DataObject) -> None:
    items = tuple(Item("layer", ".".join(module), module, "") for module in modules)
    pairs = [(i, j) for i in range(len(items)) for j in range(i + 1, len(items))]
    links = data.draw(st.lists(st.sampled_from(pairs), unique=True, max_size=60))
    shown = Picture(items, tuple(Line(source, target, 1.0) for source, target in links))
    box = fold(shown, readable=3)
    assert sorted(box.places) == list(range(len(items)))
    waiting = [box]
    while waiting:
        one = waiting.pop()
        home = {
            place: number
            for number, member in enumerate(one.members)
            for place in (member.places if isinstance(member, Fold) else (member,))
        }
        inner = {(home[s], home[t]) for s, t in links if s in home and t in home} - {(n, n) for n in home.values()}
        lay_out([(1.0, 1.0)] * len(one.members), sorted(inner))  # raises on a cycle
        waiting += [member for member in one.members if isinstance(member, Fold)]


def test_all_parameters_are_in_the_table_exactly_once() -> None:
    plan = deep()
    heads = Page(render([PlanPart("", plan)])).heads
    named = [head for head in heads if head in {p.name for p in plan.parameters}]
    assert named == [p.name for p in plan.parameters]


def test_a_plan_that_was_changed_by_hand_says_so(tmp_path: Path) -> None:
    plan = plan_graph(dag_mlp_graph("2_12_112"), base=0.1, optimizer="sgd").freeze("stem.*").scale("readout.*", 3.0)
    evenstep.write_report(plan, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "frozen by hand: &#39;stem.*&#39;" in page
    assert "<dt>scaled</dt>" in page
    assert "by hand: &#39;readout.*&#39;" in page


def test_names_and_reasons_are_text_and_nothing_else() -> None:
    plan = chain([f"{NASTY} {i}".replace(".", "") for i in range(70)])  # folded: names are in boxes too
    plan = replace(plan, parameters=tuple(replace(p, init_reason=NASTY) for p in plan.parameters))
    text = render([PlanPart(NASTY, plan)], title=NASTY)
    page = Page(text)
    assert "<script>alert" not in text
    assert text.count("<script") == 3
    kept, geometry, _ = page.scripts
    assert json.loads(kept) == json.loads(plan.to_json())  # what the page saves is the plan
    assert not set("<>&") & set(kept)
    assert json.loads(geometry)["drawings"]
    assert "alert" not in geometry  # the script gets numbers and no names
    assert not [tag for tag, _ in page.elements if tag == "b" and NASTY in str(_)]
    assert [p.name for p in plan.parameters] == [head for head in page.heads if "alert" in head]
    assert any(NASTY in tip for tip in page.tips())


def test_the_page_runs_its_own_script_and_no_other() -> None:
    text = render([PlanPart("", deep())])
    page = Page(text)
    (policy,) = [str(a["content"]) for tag, a in page.elements if a.get("http-equiv") == "Content-Security-Policy"]
    assert "unsafe" not in policy
    for kind, tag in (("style-src", "style"), ("script-src", "script")):
        (inside,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{kind} 'sha256-{digest}';" in policy
    attributes = {name for _, values in page.elements for name in values}
    assert "style" not in attributes
    assert not [name for name in attributes if name.startswith("on")]
    assert 'setAttribute("style' not in text


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(torch.relu(self.stem(x)))
        return out


def pasted(page: Page, folder: Path, monkeypatch: pytest.MonkeyPatch, **names: Any) -> dict[str, Any]:
    """Run the lines that a page offers beside the file that it saves."""
    (code,) = [text for text in page.codes if "import evenstep" in text]
    (file,) = [str(a["data-file"]) for _, a in page.elements if "data-file" in a]
    (folder / file).write_text(page.scripts[0])
    monkeypatch.chdir(folder)
    exec(code, names)
    return names


@pytest.mark.parametrize("base", [0.1, None])
def test_the_lines_of_a_plan_run_as_they_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, base: float | None
) -> None:
    model = Net()
    plan = evenstep.plan(model, torch.zeros(2, 4), base=base, optimizer="sgd")
    names = pasted(Page(render([PlanPart("my net: v2", plan)])), tmp_path, monkeypatch, model=model)
    assert names["plan"] == plan
    expected = {group["name"]: group["lr"] for group in plan.param_groups(model, lr=base or 0.1)}
    assert {group["name"]: group["lr"] for group in names["optimizer"].param_groups} == expected


def test_the_lines_of_a_search_run_as_they_stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    search = replace(a_search(), optimizer="sgd")
    page = Page(render([SearchPart("base", search)]))
    names = pasted(page, tmp_path, monkeypatch, model=Net(), example_inputs=torch.zeros(2, 4))
    assert names["plan"].base == search.rate
    assert names["plan"].parameters == evenstep.plan(Net(), torch.zeros(2, 4), base=search).parameters


def test_a_summary_says_what_was_searched() -> None:
    text = Page(render([SearchPart("base", a_search())])).text
    assert "Searched: 4 rates from 0.1 to 0.8, 2 seeds each, 1 of 8 trials diverged." in text
    plan = replace(chain(["a", "b"]), history=("base: a small one; rate 0.3 by 9 runs",))
    text = Page(render([PlanPart("", plan)])).text
    assert "Base: a small one; rate 0.3 by 9 runs." in text
    rates = sorted(0.1 * p.lr_scale for p in plan.parameters)
    assert f"4 parameters with learning rates of {rates[0]:.4g} to {rates[-1]:.4g}" in text


def test_pages_of_several_plans_save_each_as_a_file_of_its_own() -> None:
    page = Page(render([PlanPart("net", chain(["a"])), PlanPart("net", chain(["b"])), SearchPart("net", a_search())]))
    assert [a["data-file"] for _, a in page.elements if "data-file" in a] == ["net.json", "net-2.json"]


def test_a_plan_without_its_graph_offers_no_lines() -> None:
    plan = chain(["a", "b"])
    part = part_of_text(json.dumps(plan.to_dict(graph=False)), name="plan", where="'plan.json'")
    page = Page(render([part]))
    assert not [text for text in page.codes if "import evenstep" in text]
    assert "write it with plan.to_json()" in page.text


def test_a_plan_that_json_cannot_hold_is_shown_without_lines() -> None:
    plan = chain(["a", "b"])
    first, *others = plan.vertices
    made = replace(plan, vertices=(replace(first, second_moment=math.inf), *others))
    page = Page(render([PlanPart("", made)]))
    assert "No script can load it: the plan holds a number that is not finite" in page.text
    assert "a.weight" in page.heads


def test_reasons_that_rows_share_are_said_once() -> None:
    plan = deep()
    text = Page(render([PlanPart("", plan)])).text
    for reason in {p.init_reason for p in plan.parameters if p.std}:
        assert text.count(reason) == 1


def calls(plan: Plan) -> int:
    """Return how many functions are called to write a page: the same on every machine."""
    profile = cProfile.Profile()
    profile.runcall(render, [PlanPart("", plan)])
    return sum(entry.callcount for entry in profile.getstats())


def fan(layers: int) -> Plan:
    names = [f"expert.{place}" for place in range(layers)]
    graph = Graph.build(
        [Vertex("input"), *map(Vertex, names), Vertex("output")],
        [
            edge
            for name in names
            for edge in (Edge("input", name, (Weight(8, 8, depth=1),), (f"{name}.weight",)), Edge(name, "output"))
        ],
        inputs=["input"],
        outputs=["output"],
        parameters=[Parameter(f"{name}.weight", "weight", (8, 8), 8, 8) for name in names],
    )
    return plan_graph(graph, base=0.1, optimizer="sgd")


@pytest.mark.parametrize(
    "made",
    [
        lambda n: chain([f"stage{i // 50}.{i}" for i in range(n)], skip=True),
        lambda n: chain([f"layer{i}" for i in range(n)], skip=True),
        fan,
    ],
    ids=["stages", "flat", "fan"],
)
def test_the_work_grows_as_the_network_does(made: Callable[[int], Plan]) -> None:
    assert calls(made(1000)) < 6 * calls(made(250))  # four times as many layers; by squares it would be 16


def test_nothing_points_out_of_the_page() -> None:
    text = render([PlanPart("", deep())])
    page = Page(text)
    links = [value for _, a in page.elements for key, value in a.items() if key in ("src", "href")]
    assert all(str(link).startswith(("#", "data:")) for link in links)
    assert not re.findall(r"https?://|url\(|@import", text)
    (policy,) = [a["content"] for tag, a in page.elements if a.get("http-equiv") == "Content-Security-Policy"]
    assert str(policy).startswith("default-src 'none'")


def test_ids_are_unique_and_labels_point_at_them(tmp_path: Path) -> None:
    path = evenstep.write_report([deep(), chain(["a", "b"]), a_search(), a_search()], tmp_path / "r.html")
    page = Page(path.read_text())
    ids = [str(a["id"]) for _, a in page.elements if "id" in a]
    assert len(set(ids)) == len(ids)
    pointers = [str(a[key]) for _, a in page.elements for key in ("for", "aria-labelledby", "data-filters") if key in a]
    assert set(pointers) <= set(ids)


def test_all_kinds_on_one_page(tmp_path: Path) -> None:
    subjects = {"net": chain(["a", "b"]), "base": a_search(), "widths": a_check(), "study": a_record()}
    path = evenstep.write_report(subjects, tmp_path / "report.html", title="All of it")
    page = Page(path.read_text())
    kinds = [str(a["class"]) for tag, a in page.elements if tag == "section" and "part" in str(a.get("class"))]
    assert kinds == ["part plan", "part search", "part check", "part study"]
    text = path.read_text()
    for said in (
        "All of it",
        "net",
        "base",
        "widths",
        "weighted",
        "diverged: 1 of 2 seeds",
        "uneven",
        "some MLPs",
        "gone",
    ):
        assert said in text


def test_a_search_without_an_answer_is_shown_as_such(tmp_path: Path) -> None:
    lost = chosen((0.1, 0.2), ((math.inf,), (math.inf,)), dag_mlp_graph("2"))
    edge = chosen((0.1, 0.2), ((1.0,), (0.5,)), dag_mlp_graph("2"))
    text = evenstep.write_report([lost, edge], tmp_path / "r.html").read_text()
    assert "Every trial diverged" in text
    assert "at the edge" in text
    assert not re.findall(r'="[^"]*\bnan\b', text)


def test_numbers_of_paths_of_any_length(tmp_path: Path) -> None:
    plan = replace(chain(["a", "b"]), path_count=10**6000)
    assert "≈ 10⁶⁰⁰⁰ paths" in evenstep.write_report(plan, tmp_path / "r.html").read_text()


def test_plans_are_read_with_and_without_their_graph(tmp_path: Path) -> None:
    plan = chain(["a", "b"])
    (tmp_path / "whole.json").write_text(plan.to_json())
    (tmp_path / "bare.json").write_text(json.dumps(plan.to_dict(graph=False)))
    (whole,), (bare,) = read(tmp_path / "whole.json"), read(tmp_path / "bare.json")
    assert isinstance(whole, PlanPart)
    assert isinstance(bare, PlanPart)
    assert (whole.name, whole.plan, whole.has_graph) == ("whole", plan, True)
    assert (bare.plan.parameters, bare.has_graph) == (plan.parameters, False)
    assert "without its graph" in render([bare])


def test_searches_and_checks_survive_their_json() -> None:
    search = a_search()
    values = {
        "best": search.best,
        "bracket": search.bracket,
        "estimate": search.estimate,
        "interval": search.interval,
        "status": search.status,
        "grid": search.grid,
        "losses": [[loss if math.isfinite(loss) else None for loss in seeds] for seeds in search.losses],
    }
    read_search: Any = part_of_text(json.dumps(values), name="s", where="it")
    assert replace(read_search.search, graph=search.graph) == search
    read_check: Any = part_of_text(json.dumps({"over": "width", **a_check().to_dict()}), name="c", where="it")
    assert (read_check.check, read_check.over) == (a_check(), "width")


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the way to every value inside plain values."""
    keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield (*at, key)
        yield from places(value[key], (*at, key))


@pytest.mark.parametrize("kind", ["plan", "bare", "search", "check", "record"])
def test_a_damaged_file_is_shown_or_refused_and_never_a_surprise(kind: str) -> None:
    whole = {
        "plan": lambda: chain(["a", "b"]).to_dict(),
        "bare": lambda: chain(["a", "b"]).to_dict(graph=False),
        "search": lambda: {"best": 0.2, "status": "ok", "grid": [0.1, 0.2, 0.4], "losses": [[1.0], [0.5], [None]]},
        "check": a_check().to_dict,
        "record": a_record,
    }[kind]()
    text = json.dumps(whole)
    junks: tuple[Any, ...] = ("x", None, 0, -1, [])
    refused = []
    for way in places(json.loads(text)):
        for junk in junks:
            values = at = json.loads(text)
            for key in way[:-1]:
                at = at[key]
            at[way[-1]] = junk
            try:
                part_of_text(json.dumps(values), name="it", where="it")
            except InputError as error:
                refused.append(str(error))
    assert len(refused) > 10
    assert all(said.startswith("it") for said in refused)


def test_a_store_shows_every_search(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.sqlite")
    for config in ("aaaa", "bbbb", "cccc"):
        store.begin(config, {"recipe": {"optimizer": "adam", "batch_size": 32}})
    losses = {0.1: (1.0, 1.1), 0.2: (0.5, 0.6), 0.4: (0.7, math.inf)}
    for config in ("aaaa", "bbbb"):
        store.add(
            [StoreRow(config, lr, seed, loss, (), 0.1, {}) for lr in losses for seed, loss in enumerate(losses[lr])]
        )
    store.add([StoreRow("bbbb", 0.8, 0, 0.5, (), 0.1, {})])  # its second seed is not there yet
    store.close()
    first, second = read(tmp_path / "runs.sqlite")
    found: Any = first
    assert found.search.grid == (0.1, 0.2, 0.4)
    assert found.search.best == 0.2
    assert "adam, batch 32" in found.note
    assert "not finished" in getattr(second, "note", "")
    assert len(read(tmp_path / "runs.sqlite", run="bb")) == 1
    with pytest.raises(InputError, match="begins with 'cc'"):
        read(tmp_path / "runs.sqlite", run="cc")


def test_a_record_finds_the_table_beside_it(tmp_path: Path) -> None:
    (tmp_path / "record.json").write_text(json.dumps(a_record()))
    assert "was not next to the record" in render(read(tmp_path / "record.json"))
    rows = "family,name,true_lr,constant lr,weighted lr\nmlp,one,0.5,1.0,0.25\nmlp,two,,,\n"
    (tmp_path / "table.csv").write_text(rows)
    tips = Page(render(read(tmp_path / "record.json"))).tips()
    assert [tip.splitlines() for tip in tips] == [
        ["one", "constant: 1", "searched: 0.5", "off by +1.00 octaves"],
        ["one", "weighted: 0.25", "searched: 0.5", "off by -1.00 octaves"],
    ]


def test_the_page_is_there_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "r.html"
    evenstep.write_report(chain(["a", "b"]), path)
    before = path.read_text()

    def fail(self: Path, target: Path) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(InputError, match="No space left"):
        evenstep.write_report(chain(["a", "c"]), path)
    assert path.read_text() == before
    assert os.listdir(tmp_path) == ["r.html"]


@pytest.mark.parametrize("where", ["nowhere/r.html", "folder", "file/r.html"])
def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, where: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=re.escape(str(tmp_path / where))):
        evenstep.write_report(chain(["a", "b"]), tmp_path / where)
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]


def test_the_documentation_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "report.md").read_text()
    names: dict[str, Any] = {}  # later blocks go on from earlier ones
    for code in re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL):
        exec(code, names)
    assert "Two networks" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize("subject", [None, 3, [], {}, [None], {"a": 3}, [[]]])
def test_what_cannot_be_reported_on_is_said(subject: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="give a plan"):
        evenstep.write_report(subject, tmp_path / "r.html")


@pytest.mark.parametrize(
    ("factor", "expected"), [(1.0, "f0"), (8.0, "f4"), (1 / 8, "f-4"), (1e9, "f4"), (0.0, "f-4"), (None, "none")]
)
def test_colours_of_factors(factor: float | None, expected: str) -> None:
    assert ColourScale.over([0.5, 8.0], middle=1.0).colour(factor) == expected


@pytest.mark.parametrize(
    ("path", "words"), [(5, "path is 5"), (None, "path is None"), ("a\0b", "path is .*; give the file to write")]
)
def test_a_place_that_is_none_is_refused(path: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        evenstep.write_report(chain(["a", "b"]), path)
