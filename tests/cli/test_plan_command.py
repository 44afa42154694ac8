"""Run `evenstep plan` as a user does, and check what it prints against formulas of its own."""

import json
import math
import sys
from pathlib import Path

import pytest

from evenstep.graph import dag_mlp_graph
from evenstep.planning import Plan
from tests.cli.command import Done, Run, in_a_process
from tests.reference import (
    cell_depths,
    dag_depths,
    live_in_degrees,
    paper_std,
    weighted_score,
)

# The compact form, word for word from DESIGN.md.
COMPACT = (
    "plan --space mlp --code 2_12_112 --order pre --init degree --width 256 --inputs 3072 --classes 10 "
    "--rule weighted --optimizer sgd --base-code 2 --json"
)


# The compact form


def test_the_compact_form_in_a_process_of_its_own() -> None:
    done = in_a_process(*COMPACT.split())
    assert done.err == ""
    made = done.json()
    assert made["rule"] == "weighted"
    assert {"lr_scale", "path_count", "sum_cubed_depth", "vertices", "parameters"} <= set(made)
    depths = dag_depths("2_12_112")
    assert (made["path_count"], made["sum_cubed_depth"]) == (len(depths), sum(d**3 for d in depths))
    # By hand: z_2 = z_0 + W relu(z_1) with 1/2 of its second moment; z_3 adds the copies z_0 and z_1 to 1/3 of z_2.
    assert [vertex["name"] for vertex in made["vertices"]] == ["0", "1", "2", "3"]
    assert [vertex["in_degree"] for vertex in made["vertices"]] == [1, 1, 2, 3]
    moments = [vertex["second_moment"] for vertex in made["vertices"]]
    assert moments == pytest.approx([1.0, 1.0, 1.5, 1.0 + 1.0 + 1.5 / 3])
    scores = [weighted_score(code, init="degree") for code in ("2", "2_12_112")]
    assert made["lr_scale"] == pytest.approx(math.sqrt(scores[0] / scores[1]))
    std = {p["name"]: p["std"] for p in made["parameters"] if p["name"].endswith("weight")}
    assert std == pytest.approx(paper_std("2_12_112", order="pre", width=256, inputs=3072))
    # fan_in var(W) sqrt(out / in); the readout's fan_in var(W) counts as 1/3, however small it starts.
    ratios = {"stem": math.sqrt(256 / 3072), "edges": 1.0, "readout": math.sqrt(10 / 256)}
    fans = {"stem": 3072, "edges": 256, "readout": 256}
    for p in made["parameters"]:
        assert {"name", "std", "lr_scale", "reason"} <= set(p)
        layer, kind = p["name"].split(".")[0], p["name"].rpartition(".")[2]
        if kind == "weight":
            size = 1 / 3 if layer == "readout" else fans[layer] * p["std"] ** 2
            assert p["lr_scale"] == pytest.approx(made["lr_scale"] * size * ratios[layer]), p["name"]


@pytest.mark.parametrize("code", ["2_12_112", "2_22_222", "1_21_120", "0_22_211", "2_02_002_0002"])
@pytest.mark.parametrize("order", ["pre", "post"])
def test_path_numbers_and_the_papers_rule(run: Run, code: str, order: str) -> None:
    made = run("plan", "--code", code, "--order", order, "--rule", "paths", "--json").json()
    depths = dag_depths(code)
    assert made["path_count"] == len(depths)
    assert made["sum_cubed_depth"] == sum(d**3 for d in depths)
    assert made["lr_scale"] == pytest.approx(math.sqrt(2**3 / sum(d**3 for d in depths)))
    assert {p["lr_scale"] for p in made["parameters"]} == {made["lr_scale"]}
    degrees = live_in_degrees(code)
    assert {v["name"]: v["in_degree"] for v in made["vertices"]} == {str(n): d for n, d in degrees.items()}


@pytest.mark.parametrize("order", ["pre", "post"])
def test_the_papers_initialisation(run: Run, order: str) -> None:
    options = ("--init", "degree", "--width", "64", "--inputs", "100")
    made = run("plan", "--code", "2_22_122", "--order", order, *options, "--json").json()
    std = {p["name"]: p["std"] for p in made["parameters"] if p["name"].endswith("weight")}
    assert std == pytest.approx(paper_std("2_22_122", order=order, width=64, inputs=100))
    assert all(p["std"] == 0 for p in made["parameters"] if p["name"].endswith("bias"))


@pytest.mark.filterwarnings("ignore:.*tiny standard deviation:evenstep.PlanWarning")
@pytest.mark.filterwarnings(r"ignore:the rule 'paths' counts about 10\^119\.8 paths:evenstep.PlanWarning")
def test_counts_of_hundreds_of_digits_stay_exact(run: Run) -> None:
    vertices = 400
    code = "_".join("1" * row for row in range(1, vertices))
    text = run("plan", "--code", code, "--rule", "paths", "--json").out
    assert f'"path_count": {2 ** (vertices - 2)},' in text
    assert f'"sum_cubed_depth": {2 ** (vertices - 2)},' in text  # every path has depth 1


def test_width_kernel_and_optimizer_factors(run: Run) -> None:
    layers = ("stem.weight", "edges.0_1.weight", "readout.weight")
    for optimizer, powers in (("sgd", (1, 0, -1)), ("adam", (0, -1, -1))):  # twice as wide: muP's factors
        wide, base = (
            run(
                "plan", "--code", "2", "--width", width, "--base-width", "64", "--optimizer", optimizer, "--json"
            ).json()
            for width in ("128", "64")
        )
        rates = [{p["name"]: p["lr_scale"] for p in made["parameters"]} for made in (wide, base)]
        ratios = [rates[0][name] / rates[1][name] for name in layers]
        assert ratios == pytest.approx([2.0**power for power in powers])
    wide = ("--space", "cnn", "--kernel-size", "5", "--base-kernel-size", "3", "--rule", "paths", "--json")
    kernel = run("plan", "--code", "2", *wide).json()
    assert kernel["lr_scale"] == pytest.approx(3 / 5)
    sgd, adam = (
        run("plan", "--code", "2_02_002", "--optimizer", name, "--json").json()["lr_scale"] for name in ("sgd", "adam")
    )
    assert adam == pytest.approx(sgd**0.8)  # a chain: depth alone, to the 2/5 in place of 1/2
    based = run("plan", "--code", "2_02", "--base", "0.3", "--optimizer", "sgd", "--json").json()
    assert based["base"] == 0.3


def test_adamw_is_adam(run: Run) -> None:
    named = {name: run("plan", "--code", "2_12", "--optimizer", name, "--json").json() for name in ("adam", "adamw")}
    assert named["adamw"] == named["adam"]
    assert named["adam"]["optimizer"] == "adam"
    done = run("plan", "--code", "2_12", "--optimizer", "lamb")
    assert (done.code, "choose one of sgd, momentum, adam, adamw" in done.err) == (2, True)


def test_nasbench201_cells(run: Run) -> None:
    string = "|nor_conv_3x3~0|+|nor_conv_3x3~0|avg_pool_3x3~1|+|skip_connect~0|nor_conv_1x1~1|skip_connect~2|"
    for code in (string, "3_34_121"):
        made = run("plan", "--space", "nasbench201", "--code", code, "--json").json()
        depths = cell_depths(code)
        assert (made["path_count"], made["sum_cubed_depth"]) == (len(depths), sum(d**3 for d in depths))
        assert [v["name"] for v in made["vertices"]] == ["0", "1", "2", "3"]


# Many codes


def test_many_codes_good_and_bad(run: Run) -> None:
    lines = ["2", "", "2_12_112", "3", "   ", "2_1", "0", "  2_22  ", "2_02_002"]
    done = run("plan", "--code", "-", "--rule", "paths", given="\n".join(lines))
    assert done.code == 0
    assert done.err == ""
    made = [json.loads(line) for line in done.out.splitlines()]
    assert [m["code"] for m in made] == ["2", "2_12_112", "3", "2_1", "0", "2_22", "2_02_002"]
    errors = {m["code"]: m for m in made if "error" in m}
    assert set(errors) == {"3", "2_1", "0"}
    assert [errors[code]["line"] for code in ("3", "2_1", "0")] == [4, 6, 7]
    assert "digits are 0-2" in errors["3"]["error"]
    assert "it needs 2" in errors["2_1"]["error"]
    assert "no live path" in errors["0"]["error"]
    for m in made:
        if m["code"] not in errors:
            depths = dag_depths(m["code"])
            assert m["sum_cubed_depth"] == sum(d**3 for d in depths)
            assert m == {**run("plan", "--code", m["code"], "--rule", "paths", "--json").json()}


def test_many_codes_in_a_process_of_its_own() -> None:
    done = in_a_process("plan", "--code", "-", "--json", given="2_12\nnonsense\n2_22\n")
    assert (done.code, done.err) == (0, "")
    made = [json.loads(line) for line in done.out.splitlines()]
    assert [("error" in m) for m in made] == [False, True, False]


def test_options_wrong_for_all_lines_fail_once(run: Run) -> None:
    done = run("plan", "--code", "-", "--rule", "best", given="2\n2_12\n")
    assert done.code == 2
    assert done.out == ""
    assert done.err.startswith("error: rule is 'best'")


def test_no_codes_at_all_print_nothing(run: Run) -> None:
    assert run("plan", "--code", "-", given="\n \n") == Done(0, "", "")


# Modules of one's own

SCRIPT = """
import torch
from torch import nn
from neighbour import WIDTH

def make():
    return nn.Sequential(nn.Linear(4, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 2)), torch.zeros(2, 4)

def keywords():
    return nn.Linear(4, 2), {"input": torch.zeros(2, 4)}

def leaving_torch():
    class LeavingTorch(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)
        def forward(self, x):
            return self.layer(torch.tensor(x.detach().numpy()))
    return LeavingTorch(), torch.zeros(2, 4)

def raising():
    raise ValueError("no model\\ntoday")

def leaving():
    raise SystemExit(0)

def single():
    return nn.Linear(2, 2)

def number():
    return 3, torch.zeros(2)

constant = 5
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine.py").write_text(SCRIPT)
    (tmp_path / "neighbour.py").write_text("WIDTH = 16\n")
    (tmp_path / "broken.py").write_text("def make(:\n")
    (tmp_path / "leaves.py").write_text("import sys\nsys.exit('not today')\n")
    (tmp_path / "needs.py").write_text("import a_module_that_is_not_there\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "neighbour", raising=False)
    return tmp_path


def test_a_target_in_a_file(run: Run, folder: Path) -> None:
    made = run("plan", "mine.py:make", "--base", "0.1", "--optimizer", "sgd", "--json").json()
    assert [p["name"] for p in made["parameters"]] == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert made["parameters"][0]["std"] == pytest.approx(math.sqrt(1 / 4))
    assert made["parameters"][2]["std"] == pytest.approx(math.sqrt(1 / 3 / 16))
    assert (
        run("plan", str(folder / "mine.py") + ":make", "--base", "0.1", "--optimizer", "sgd", "--json").json() == made
    )
    assert run("plan", "mine.py:keywords", "--json").json()["path_count"] == 1


def test_the_table_mentions_every_parameter_and_factor(run: Run, folder: Path) -> None:
    done = run("plan", "mine.py:make", "--base", "0.1", "--optimizer", "sgd")
    assert done.code == 0
    for part in ("0.weight", "0.bias", "2.weight", "2.bias", "topology", "rule 'weighted'", "init 'conserve'", "lr"):
        assert part in done.out
    made = run("plan", "mine.py:make", "--base", "0.1", "--optimizer", "sgd", "--json").json()
    row = next(line for line in done.out.splitlines() if line.startswith("2.weight"))
    std, rate = map(float, row.split()[2:4])
    assert std == pytest.approx(made["parameters"][2]["std"], rel=1e-3)
    assert rate == pytest.approx(0.1 * made["parameters"][2]["lr_scale"], rel=1e-3)
    code = run("plan", "--code", "2_12")
    for part in ("stem.weight", "edges.0_1.weight", "edges.1_2.bias", "readout.weight", "2 paths"):
        assert part in code.out


def test_help(run: Run) -> None:
    done = run("plan", "--help")
    assert done.code == 0
    for option in ("--code", "--space", "--order", "--init", "--rule", "--optimizer", "--base-code", "--json"):
        assert option in done.out
    top = run("--help")
    assert top.code == 0
    assert "plan" in top.out
    assert "demo" in top.out


# Bad input


def line_of(text: str) -> int:
    """Return the number of the script's line that holds a text."""
    return next(number for number, line in enumerate(SCRIPT.splitlines(), start=1) if text in line)


BAD: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "digit": (("--code", "2_13"), ("2_13", "digit 3", "0-2")),
    "letter": (("--code", "2_1x"), ("2_1x", "1x")),
    "row length": (("--code", "2_1"), ("row 2", "needs 2")),
    "no live path": (("--code", "2_00"), ("no live path", "vertex 0")),
    "one vertex": (("--code", ""), ("one vertex", "'2'")),
    "cell digit": (("--space", "nasbench201", "--code", "5_00_000"), ("digit 5", "0-4")),
    "cell operator": (
        ("--space", "nasbench201", "--code", "|conv~0|+|none~0|none~1|+|none~0|none~1|none~2|"),
        ("'conv~0'", "nor_conv_3x3"),
    ),
    "dead cell": (("--space", "nasbench201", "--code", "000000"), ("no live path",)),
    "base code": (("--code", "2", "--base-code", "9"), ("digit 9",)),
    "space": (("--code", "2", "--space", "vit"), ("'vit'", "mlp")),
    "order": (("--code", "2", "--order", "mid"), ("'mid'", "pre")),
    "norm": (("--code", "2", "--norm", "group"), ("'group'", "batch")),
    "norm with post": (("--code", "2", "--norm", "batch", "--order", "post"), ("batch", "post")),
    "rule": (("--code", "2", "--rule", "best"), ("'best'", "weighted")),
    "init": (("--code", "2", "--init", "xavier"), ("'xavier'", "conserve")),
    "keep": (("--code", "2", "--init", "keep"), ("keep", "module")),
    "optimizer": (("--code", "2", "--optimizer", "lamb"), ("'lamb'", "adam")),
    "activation": (("--code", "2", "--activation", "cube"), ("'cube'", "relu")),
    "width": (("--code", "2", "--width", "0"), ("width is 0", "1 up")),
    "classes": (("--code", "2", "--classes", "-3"), ("classes is -3",)),
    "kernel": (("--code", "2", "--space", "cnn", "--kernel-size", "4"), ("kernel_size is 4", "odd")),
    "base": (("--code", "2", "--base", "-1"), ("-1", "above 0")),
    "nan": (("--code", "2", "--base", "nan"), ("nan", "above 0")),
    "optimizer of a bare rate": (
        ("--code", "2", "--base", "0.1"),
        ("0.1", "'sgd', 'momentum', 'adam', 'muon' or 'lion'"),
    ),
    "base file": (("--code", "2", "--base", "none.json"), ("'none.json'", "learning rate", "evenstep search")),
    "width of a target": (
        ("mine.py:make", "--width", "7"),
        ("--width is for networks given by --code", "mine.py:make"),
    ),
    "default of a code": (("mine.py:make", "--space", "mlp"), ("--space is for networks given by --code",)),
    "base of a code": (("mine.py:make", "--base-code", "2"), ("--base-code is for networks given by --code",)),
    "nothing": ((), ("target", "--code")),
    "both": (("mine.py:make", "--code", "2"), ("target", "--code")),
    "no colon": (("mine.py",), ("'mine.py'", "file.py:function")),
    "no file": (("missing.py:make",), ("missing.py",)),
    "no module": (("no_such_package.x:make",), ("no_such_package",)),
    "no function": (("mine.py:nothing",), ("'nothing'", "(model, example_inputs)")),
    "no callable": (("mine.py:constant",), ("'constant'",)),
    "no pair": (("mine.py:single",), ("Linear", "(model, example_inputs)")),
    "no model": (("mine.py:number",), ("int", "torch.nn.Module")),
    "leaving_torch": (
        ("mine.py:leaving_torch",),
        ("LeavingTorch", f"mine.py:{line_of('.numpy()')}", "passes a tensor to numpy"),
    ),
    "raising": (("mine.py:raising",), ("ValueError", f"mine.py:{line_of('raise ')}", "no model today")),
    "leaving": (("mine.py:leaving",), ("raised SystemExit", f"mine.py:{line_of('raise SystemExit')}")),
    "leaving at once": (("leaves.py:make",), ("raised SystemExit", "leaves.py:2", "not today")),
    "syntax": (("broken.py:make",), ("SyntaxError", "broken.py:1")),
    "import": (("needs.py:make",), ("a_module_that_is_not_there", "needs.py:1")),
}


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_exit_code_2(run: Run, name: str) -> None:
    arguments, parts = BAD[name]
    done = run("plan", *arguments)
    assert done.code == 2
    assert done.out == ""
    assert done.err.startswith("error: ")
    assert done.err.count("\n") == 1
    assert done.err.endswith("\n")
    for part in parts:
        assert part in done.err


def test_bad_input_in_a_process_of_its_own(folder: Path) -> None:
    done = in_a_process("plan", "mine.py:leaving_torch", "--json", "--quiet", folder=folder)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: LeavingTorch")
    assert done.err.count("\n") == 1


@pytest.mark.parametrize("arguments", [("--code", "2", "--width", "many"), ("--code", "2", "--colour", "red")])
def test_unknown_and_unreadable_options_exit_with_2(run: Run, arguments: tuple[str, ...]) -> None:
    done = run("plan", *arguments)
    assert (done.code, done.out) == (2, "")
    assert "Traceback" not in done.err
    assert arguments[-2] in done.err


def test_a_plan_is_written_whole_and_the_report_shows_it(run: Run, tmp_path: Path) -> None:
    target = tmp_path / "plan.json"
    done = run("plan", "--code", "2_12_112", "--base", "0.5", "--optimizer", "sgd", "--json", "-o", str(target))
    assert done.code == 0
    made = Plan.from_json(target.read_text())
    assert made.graph == dag_mlp_graph("2_12_112")
    assert made.lr_scale == done.json()["lr_scale"]
    assert run("report", str(target), "-o", str(tmp_path / "report.html")).code == 0
    assert "<svg" in (tmp_path / "report.html").read_text()
    refused = run("plan", "--code", "2", "-o", str(tmp_path / "no" / "plan.json"))
    assert refused.code == 2
    assert "the plan cannot be written to" in refused.err
    assert run("plan", "--code", "-", "-o", str(target)).code == 2


# Another batch, another length


def test_a_plan_is_moved_to_the_training_that_is_named(run: Run) -> None:
    base = ("plan", "--code", "2_12", "--base", "0.1", "--optimizer", "adam", "--base-batch-size", "64")
    known = (*base, "--base-steps", "2000")
    here = run(*known, "--json").json()
    assert (here["batch_size"], here["steps"]) == (64, 2000)
    there = run(*known, "--batch-size", "256", "--steps", "32000", "--json").json()
    assert (there["batch_size"], there["steps"]) == (256, 32000)
    assert there["searched"] == {"batch_size": 64, "steps": 2000}
    assert there["lr_scale"] / here["lr_scale"] == pytest.approx(
        4**0.25 * 16**-0.32 * (1 + 80 / 32000) / (1 + 80 / 2000)
    )
    rules = ("--batch-rule", "linear", "--length-rule", "none")
    linear = run(*known, "--batch-size", "256", "--steps", "32000", *rules, "--json").json()
    assert linear["lr_scale"] / here["lr_scale"] == pytest.approx(4)
    shown = run(*known, "--batch-size", "256")
    assert "For 2000 steps on batches of 256, base searched with 2000 steps on batches of 64" in " ".join(
        shown.out.split()
    )
    assert "batch 1.414 (from batches of 64 to 256)" in shown.out
    streamed = run("plan", "--code", "-", *known[3:], "--batch-size", "256", given="2_12\n")
    assert json.loads(streamed.out)["batch_size"] == 256
    for arguments, words in {
        (*base, "--steps", "300"): ("the number of steps", "evenstep.plan(..., base=..., steps=...)", "--base-steps"),
        (*known, "--batch-size", "0"): ("batch_size is 0",),
        (*known, "--batch-size", "1280", "--batch-rule", "sde"): ("not below 1", "below 640"),
        (*known, "--batch-rule", "cubic"): ("batch rule is 'cubic'; choose one of fourth-root",),
        (*known, "--length-rule", "cubic"): ("length rule is 'cubic'; choose one of travel",),
        (*known, "--batch-rule", "linear"): ("--batch-rule is 'linear'", "--batch-size"),
    }.items():
        done = run(*arguments)
        assert done.code == 2, arguments
        assert [word for word in words if word not in done.err] == [], done.err
        assert len(done.err.splitlines()) == 1
