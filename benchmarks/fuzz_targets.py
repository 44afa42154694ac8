"""What the fuzz run calls: every public function, readers of damaged files, and the commands."""

from __future__ import annotations

import contextlib
import io
import json
import random
import sqlite3
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import fuzz_values as fv
import torch
from torch import nn

import evenstep as es
from evenstep import graph as graphs
from evenstep.planning import plan_graph
from evenstep.rules import OPTIMIZERS, RULES
from evenstep.search import LocalEngine, Store
from evenstep.search.store import StoreRow
from evenstep_research.spaces import DagCNN, DagMLP, NasBench201

Target = Callable[[random.Random, Path], Any]
INPUTS = torch.randn(2, 8, generator=torch.Generator().manual_seed(0))


def _planning(draw: random.Random) -> dict[str, Any]:
    return fv.arguments(
        draw,
        {
            "base": (0.1, None, fv.found(draw)),
            "base_graph": (None, fv.graph(draw)),
            "rule": tuple(RULES),
            "init": ("conserve", "degree", "he", "keep"),
            "optimizer": OPTIMIZERS,
        },
    )


def plan(draw: random.Random, folder: Path) -> Any:
    """Plan a module, print the plan and make groups."""
    model = fv.network(draw)
    inputs = INPUTS if draw.random() < 0.8 else fv.junk(draw)
    made = es.plan(model, inputs, **_planning(draw), **fv.arguments(draw, {"on_unknown": ("raise", "identity")}))
    return str(made), made.to_json()


def plan_of_a_graph(draw: random.Random, folder: Path) -> Any:
    """Plan a graph."""
    return str(plan_graph(fv.graph(draw) if draw.random() < 0.9 else fv.junk(draw), **_planning(draw)))


def trace(draw: random.Random, folder: Path) -> Any:
    """Read a module as a graph."""
    options = fv.arguments(draw, {"example_kwargs": (None, {}), "on_unknown": ("raise", "identity")})
    return es.trace(fv.network(draw), INPUTS if draw.random() < 0.7 else fv.junk(draw), **options)


def initialize(draw: random.Random, folder: Path) -> Any:
    """Draw weights."""
    planned = es.plan(fv.small(), INPUTS) if draw.random() < 0.8 else fv.junk(draw)
    return es.initialize_(fv.network(draw), planned, **fv.arguments(draw, {"generator": (None, torch.Generator())}))


def groups(draw: random.Random, folder: Path) -> Any:
    """Make groups and check an optimiser."""
    model: Any = fv.small()
    planned = es.plan(model, INPUTS, base=0.1, optimizer=draw.choice(("sgd", "momentum", "adam")))
    ways = {"decay": (None, "even", "independent"), "even_decay": (True, False), "no_decay": (None, True, False)}
    options = fv.arguments(draw, {"lr": (0.1, None), "weight_decay": (0.1, 0.0), **ways})
    made = planned.param_groups(model, **options)
    kinds: list[Any] = [torch.optim.SGD, torch.optim.AdamW, lambda groups: torch.optim.SGD(groups, momentum=0.9)]
    optimizer = draw.choice(kinds)(made) if draw.random() < 0.7 else fv.junk(draw)
    return es.check_groups(model if draw.random() < 0.9 else fv.junk(draw), planned, optimizer)


def name_of_a_parameter(draw: random.Random, folder: Path) -> Any:
    """Ask a plan for a parameter."""
    planned = es.plan(fv.small(), INPUTS)
    return planned[fv.junk(draw)]


def plan_from_json(draw: random.Random, folder: Path) -> Any:
    """Read a damaged plan, and use what is taken for one."""
    planned = es.plan(fv.small(), INPUTS, base=0.1, optimizer="sgd")
    if draw.random() < 0.4:
        made = es.Plan.from_json(fv.damaged_text(draw, planned.to_json()))
    else:
        made = es.Plan.from_dict(fv.damaged(draw, fv.plain(planned.to_dict())))
    _ = made.param_groups(fv.small())
    return str(made), made.to_json(), es.write_report(made, folder / "page.html")


def graph_from_dict(draw: random.Random, folder: Path) -> Any:
    """Read a damaged graph and plan it."""
    return plan_graph(es.Graph.from_dict(fv.damaged(draw, fv.plain(fv.graph(draw).to_dict()))))


def search_from_dict(draw: random.Random, folder: Path) -> Any:
    """Read a damaged search, and plan from it."""
    found = es.LRSearch.from_dict(fv.damaged(draw, fv.plain(fv.found(draw).to_dict())))
    _ = found.to_dict(), found.mean_losses
    return plan_graph(fv.graph(draw), base=found)


_CHECK: dict[str, Any] = {}


def check_from_dict(draw: random.Random, folder: Path) -> Any:
    """Read a damaged check."""
    if not _CHECK:
        _CHECK.update(fv.plain(_checked({"steps": 1, "seeds": 1}).to_dict()))
    read = es.Check.from_dict(fv.damaged(draw, _CHECK))
    return str(read), read.to_dict(), es.write_report(read, folder / "page.html")


def _of_width(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 2))


def _checked(options: dict[str, Any]) -> es.Check:
    base = es.trace(_of_width(4), INPUTS)
    plans = {
        width: (
            partial(_of_width, width),
            es.plan(_of_width(width), INPUTS, base=0.1, optimizer="sgd", base_graph=base),
        )
        for width in (4, 8)
    }
    return es.check(options.pop("networks", plans), options.pop("data", fv.data(random.Random(1))), **options)


def check(draw: random.Random, folder: Path) -> Any:
    """Check networks."""
    usual = {
        "networks": (),
        "data": (),
        "lr": (0.1, None),
        "steps": (1, 2),
        "batch_size": (4, 64),
        "seeds": (1, 2),
        "loss": (nn.functional.cross_entropy,),
        "compare": ("auto", "layers", "last"),
        "tolerance": (0.1, None),
        "notify": (print,),
    }
    options = fv.arguments(draw, {name: values for name, values in usual.items() if values})
    options = {"steps": 1, "seeds": 1, **options}
    if isinstance(options.get("notify"), nn.Module):  # can be called, and what it raises is its caller's own
        del options["notify"]
    if draw.random() < 0.2:
        options[draw.choice(("networks", "data"))] = fv.junk(draw)
    return str(_checked(options))


def search(draw: random.Random, folder: Path) -> Any:
    """Search a rate."""
    usual: dict[str, tuple[Any, ...]] = {
        "plan": (None, es.plan(fv.small(), INPUTS, optimizer="adam")),
        "optimizer": OPTIMIZERS,
        "init": ("conserve", "degree", "he", "keep"),
        "epochs": (1, 2),
        "steps": (None, 1, 2),
        "batch_size": (4, 64),
        "momentum": (None, 0.9),
        "nesterov": (None, True, False),
        "weight_decay": (0.0, 0.1),
        "schedule": (lambda step: 1.0, lambda step: "x", lambda step: 1 / step, "cosine"),
        "loss": (nn.functional.cross_entropy, nn.functional.mse_loss, nn.CrossEntropyLoss(), lambda x, y: x.mean()),
        "seeds": (1, 2),
        "start": (0.1, 1e-3, 1e300, 1e-300),
        "grid": (None, [0.1, 1.0], [0.1], (r for r in (0.1, 1.0))),
        "store": (None, folder / "s.db"),
        "resume": (False, True),
        "progress": (None, False, lambda progress: None),
        "shrink": (None, {"width": 4}),
        "on_failure": ("raise", "return"),
    }
    options = {"seeds": 1, "steps": 2, **fv.arguments(draw, usual)}
    if draw.random() < 0.9:
        options["engine"] = LocalEngine(workers=1)
    elif draw.random() < 0.5:
        options["engine"] = fv.junk(draw)
    if options.get("steps") is None:
        options["steps"] = 2
    model = fv.network(draw)
    make = (
        (lambda: fv.network(draw)) if draw.random() < 0.1 else (lambda: model) if draw.random() < 0.9 else fv.junk(draw)
    )
    return es.search_lr(make, fv.data(draw), **options).to_dict()


def write_report(draw: random.Random, folder: Path) -> Any:
    """Write a page about anything."""
    subjects: list[Any] = [
        fv.junk(draw),
        es.plan(fv.small(), INPUTS),
        fv.found(draw),
        [fv.junk(draw)],
        {"a": fv.junk(draw)},
    ]
    path = folder / "page.html" if draw.random() < 0.7 else fv.junk(draw)
    with contextlib.chdir(folder):
        return es.write_report(draw.choice(subjects), path, **fv.arguments(draw, {"title": ("", "x")}))


def register_op(draw: random.Random, folder: Path) -> Any:
    """Teach an operator that is none."""
    return es.register_op(fv.junk(draw), fv.junk(draw))


def codes(draw: random.Random, folder: Path) -> Any:
    """Build graphs and networks of codes."""
    code = (
        draw.choice(("2", "2_12", "2_1", "0_00_300", "9", "", "2__2", "|x~0|"))
        if draw.random() < 0.7
        else fv.junk(draw)
    )
    options = fv.arguments(
        draw, {"width": (4, 8), "classes": (2, 10), "activation": ("relu", "gelu"), "norm": ("none", "batch")}
    )
    options.pop("norm", None) if draw.random() < 0.5 else None
    if draw.random() < 0.3:
        alone: list[Callable[..., Any]] = [graphs.parse_dag_code, graphs.parse_nasbench201_code]
        alone += [graphs.nasbench201_graph, NasBench201, graphs.nasbench201_digits, graphs.dag_code]
        return draw.choice(alone)(code)
    make: list[Callable[..., Any]] = [graphs.dag_mlp_graph, graphs.dag_cnn_graph, DagMLP, DagCNN]
    return draw.choice(make)(code, **options)


def graph_from_edges(draw: random.Random, folder: Path) -> Any:
    """Build a graph from edges of any kind."""
    edges: Any = [
        ("x", "y", draw.choice(("weight", "skip", "odd", None, 5))),
        ("y", draw.choice(("z", "x", None)), "weight"),
    ]
    return es.Graph.from_edges(edges if draw.random() < 0.7 else fv.junk(draw))


# Files


def store(draw: random.Random, folder: Path) -> Any:
    """Read a store with damaged values or bytes, and search with it."""
    path = folder / "s.db"
    config = "c" * 32
    made = Store(path)
    made.begin(config, {"recipe": {"optimizer": "sgd", "batch_size": 8}})
    made.settle_batching(config, {"kind": "single", "chunk": 1, "seconds": 0.1})
    made.add([StoreRow(config, 0.1 * (1 + seed), seed, 1.5, (3.0, 1.5), 0.25, {"a": 1}) for seed in range(4)])
    made.close()
    if draw.random() < 0.6:
        table, column = draw.choice(
            [("copies", name) for name in ("config", "lr", "seed", "loss", "curve", "status", "seconds", "provenance")]
            + [("searches", name) for name in ("config", "description", "started", "form")]
        )
        value = draw.choice(
            (None, -1, 0.5, 9e999, "", "word", b"\xff\x00", "[1,", "{}", "[]", "null", "[" * 9999, 2**62)
        )
        base = sqlite3.connect(path)
        with contextlib.suppress(sqlite3.IntegrityError):
            base.execute(f"UPDATE {table} SET {column} = ?", (value,))
        base.commit()
        base.close()
    else:
        path.write_bytes(fv.damaged_bytes(draw, path.read_bytes()))
    opened = Store(path, read_only=draw.random() < 0.5)
    try:
        return [(s, opened.rows(s["config"]), opened.batching(s["config"])) for s in opened.searches()]
    finally:
        opened.close()


def ledger(draw: random.Random, folder: Path) -> Any:
    """Read ledgers with damaged lines, and add to them."""
    from evenstep_research.study.nas.ledger import RunLedger
    from evenstep_research.study.real.runs import RealLedger, Run
    from evenstep_research.study.transfer.ledger import MeasurementLedger

    path = folder / "l.jsonl"
    real = RealLedger(path)
    for seed in range(3):
        real.note(Run("net", "sgd", 10, seed, "own", 0.1, "s"), 1.0, 0.5)
    kind = draw.random()
    if kind < 0.4:
        path.write_text(fv.damaged_text(draw, path.read_text()))
    else:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        if kind < 0.7:
            outcome = {"accuracy": 1.0, "test_loss": 1.0, "train_losses": [1.0], "seconds": 1.0}
            row = {"key": "k", "code": "c", "seed": 0, "protocol": {"name": "p"}, "tuning": False, "setting": {}}
            lines = [{**row, "outcome": outcome, "parameters": 5, "note": "", "provenance": {}}] * 3
        elif kind < 0.85:
            lines = [{"key": "k", "curve": [[0.1, [1.0, None]]], "rivals": {}, "provenance": {}}] * 3
        path.write_text("".join(json.dumps(line) + "\n" for line in fv.damaged(draw, lines)))
    opened: Any = draw.choice((RealLedger, RunLedger, lambda path: MeasurementLedger(path, "digits")))(path)
    RealLedger(path).note(Run("net", "sgd", 10, 9, "own", 0.1, "s"), 1.0, 0.5)
    return opened


# Commands

SCRIPT = """
import torch
from torch import nn
def make(): return nn.Sequential(nn.Linear(64, 4), nn.ReLU(), nn.Linear(4, 10)), torch.zeros(2, 64)
def small(width=4): return nn.Sequential(nn.Flatten(), nn.Linear(64, int(width)), nn.ReLU(), nn.Linear(int(width), 10))
def leaves(): raise SystemExit(3)
def raises(*_): raise KeyError("x\\ny")
def data(): return torch.randn(64, 64), torch.arange(64) % 10
def none(): return None
constant = 5
"""
WORDS = (
    "",
    "x",
    "-1",
    "0",
    "nan",
    "inf",
    "1e999",
    "9" * 400,
    "2",
    "0.1",
    "a\0b",
    "é",
    "{}",
    ".",
    "/",
    "mine.py:none",
    "\ud800",
)
FILES = (
    "mine.py:make",
    "mine.py:small",
    "mine.py:leaves",
    "mine.py:raises",
    "mine.py:none",
    "mine.py:constant",
    "mine.py",
)
COMMANDS: dict[str, tuple[tuple[str, ...], dict[str, tuple[str, ...]]]] = {
    "plan": (
        FILES,
        {
            "--code": ("2", "2_12", "9"),
            "--space": ("mlp", "cnn", "nasbench201"),
            "--rule": tuple(RULES),
            "--init": ("he", "keep"),
            "--optimizer": OPTIMIZERS,
            "--base": ("0.1", "base.json", "plan.json", "s.db"),
            "--width": ("4",),
            "--norm": ("batch",),
            "--activation": ("gelu",),
            "--out": ("out.json", "nowhere/out.json"),
            "--json": (),
        },
    ),
    "search": (
        FILES,
        {
            "--data": ("mine.py:data", "mine.py:none", "d.npz", "x.pt", "digits"),
            "--optimizer": OPTIMIZERS,
            "--steps": ("1", "2"),
            "--seeds": ("1",),
            "--batch-size": ("8",),
            "--start": ("0.1", "1e300"),
            "--store": ("s.db", "base.json", "nowhere/s.db"),
            "--resume": (),
            "--json": (),
            "--quiet": (),
            "--weight-decay": ("0.1",),
        },
    ),
    "check": (
        FILES,
        {
            "--over": ("width=4,8", "width=4", "depth=1,2", "width=a,b"),
            "--data": ("mine.py:data",),
            "--steps": ("1",),
            "--seeds": ("1",),
            "--lr": ("0.1",),
            "--json": (),
            "--quiet": (),
        },
    ),
    "report": (
        ("plan.json", "base.json", "s.db", "l.jsonl", "mine.py", "nothing"),
        {"--output": ("page.html", "no/page.html"), "--title": ("x",), "--run": ("c", "z"), "--json": ()},
    ),
    "runs list": (("s.db", "base.json", "nothing"), {"--json": ()}),
    "runs show": (("s.db", "base.json"), {"--json": ()}),
    "runs export": (("s.db", "plan.json"), {"--config": ("c", "z")}),
    "study list": ((), {"--results": (".", "nothing"), "--page": ("mine.py", "nothing"), "--json": ()}),
    "study transfer": ((), {"--scale": ("odd",), "--data": ("nothing",), "--seeds": ("0",)}),
    "study real": (
        (),
        {"--scale": ("smoke", "odd"), "--list": (), "--networks": ("x",), "--steps": ("x", "0"), "--json": ()},
    ),
    "study mlp-depth": ((), {"--scale": ("odd",), "--rates": ("x",), "--seeds": ("0",), "--device": ("x", "cuda")}),
    "nas sample": (
        ("nothing", "plan.json", "t.parquet"),
        {"--count": ("0", "2"), "--data-set": ("x",), "--of": ("mine.py",)},
    ),
    "nas compare": (("nothing", "."), {"--table": ("nothing", "plan.json"), "--json": ()}),
    "nas train": (
        (),
        {"--scale": ("odd",), "--base-lr": ("x", "weighted="), "--epochs": ("0",), "--protocols": ("x",)},
    ),
    "data list": ((), {"--json": ()}),
    "data check": (("nothing", ".", "mine.py"), {"--json": ()}),
    "data fetch": (("x", "mnist"), {"--version": ("x",), "--attempts": ("0",), "--out": ("nowhere",)}),
    "demo": ((), {"--seeds": ("0",), "--steps": ("0",), "--picture": ("no/x.png",), "--page": ("no/x.html",)}),
}
_NEEDS_WRONG = (
    "study transfer",
    "study mlp-depth",
    "nas train",
    "demo",
    "data fetch",
)  # right ones take long, or a network


def command(draw: random.Random, folder: Path) -> Any:
    """Run a command, in process."""
    _files(draw, folder)
    name = draw.choice(list(COMMANDS))
    places, options = COMMANDS[name]
    arguments = [draw.choice(places) if draw.random() < 0.85 else draw.choice(WORDS)] if places else []
    if name == "runs show":
        arguments.append(draw.choice(("c", "z", "")))
    if name == "runs export":
        arguments.append(draw.choice(("-", "o.csv", "o.txt", "no/o.csv")))
    wanted = {"search": ["--steps", "--seeds", "--data"], "check": ["--over", "--steps", "--seeds", "--data"]}.get(
        name, []
    )
    chosen = [option for option in options if option in wanted or draw.random() < 0.3]
    if name in _NEEDS_WRONG:
        chosen = list(options)
    for option in chosen:
        arguments.append(option)
        if options[option]:
            sure = option in ("--steps", "--seeds") or name in _NEEDS_WRONG
            arguments.append(draw.choice(options[option]) if sure or draw.random() < 0.8 else draw.choice(WORDS))
    return run_command([*name.split(), *arguments], folder)


def run_command(arguments: list[str], folder: Path) -> str:
    """Run the command line in this process; exit codes 0 and 1 are fine, 2 is a refusal, anything else is raised."""
    from typer.testing import CliRunner

    from evenstep.cli.app import app

    path, modules = list(sys.path), set(sys.modules)
    try:
        with contextlib.chdir(folder), contextlib.redirect_stderr(io.StringIO()):
            done = CliRunner().invoke(app, arguments, input="2\n2_12\n", catch_exceptions=True)
    finally:
        sys.path[:] = path
        for name in ("mine",):
            if name not in modules:
                sys.modules.pop(name, None)
    error = done.exception
    if isinstance(error, SystemExit):
        if done.exit_code == 2:
            raise es.InputError("refused by the command line")
        if done.exit_code in (0, 1):
            return done.output
    if error is not None:
        raise error
    return done.output


def _files(draw: random.Random, folder: Path) -> None:
    """Write a script and files to read, some of them damaged."""
    (folder / "mine.py").write_text(SCRIPT)
    plan_text, search_text = es.plan(fv.small(), INPUTS).to_json(), json.dumps(fv.found(draw).to_dict())
    hurt = draw.random() < 0.5
    (folder / "plan.json").write_text(fv.damaged_text(draw, plan_text) if hurt else plan_text)
    (folder / "base.json").write_text(fv.damaged_text(draw, search_text) if hurt else search_text)
    (folder / "d.npz").write_bytes(b"PK" + bytes(draw.randrange(256) for _ in range(50)))
    (folder / "t.parquet").write_bytes(b"PAR1" + bytes(50))
    (folder / "l.jsonl").write_text('{"a": 1}\n')
    with contextlib.suppress(es.EvenstepError):
        store(draw, folder)


TARGETS: dict[str, Target] = {
    target.__name__: target
    for target in (
        *(plan, plan_of_a_graph, trace, initialize, groups, name_of_a_parameter, plan_from_json, graph_from_dict),
        *(search_from_dict, check_from_dict, check, search, write_report, register_op, codes, graph_from_edges),
        *(store, ledger, command),
    )
}
