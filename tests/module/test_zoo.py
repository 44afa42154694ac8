"""Trace and plan every module of the zoo; make the table `docs/traced.md` from it."""

import copy
import importlib.util
import json
import math
import os
import textwrap
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import evenstep as es
from evenstep.graph import path_moments
from tests.zoo import ZOO, ZooEntry

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore::evenstep.PlanWarning")  # test_checked.py says which

DOCUMENT = Path(__file__).parents[2] / "docs" / "traced.md"
ENTRIES = {entry.name: entry for entry in ZOO}
MODES = (True, False)
# In training these drop entries or whole branches at random, and the graph says so; in evaluation they do not. What is
# left is made larger to make up for it: by the most that one of them drops, a tenth or half of all.
DROPS = {
    **dict.fromkeys(("hf_convnext", "transformer_pre_norm", "transformer_post_norm", "hf_gpt2", "hf_bert"), 0.1),
    **dict.fromkeys(("inception", "bidirectional_lstm"), 0.5),
    "hf_mobilenet_v2": 0.8,
}


@dataclass(frozen=True)
class Specimen:
    """A zoo model with its plan in training and in evaluation mode, and what the planning changed on it."""

    model: nn.Module
    args: tuple[Tensor, ...]
    kwargs: Mapping[str, Any]
    plans: Mapping[bool, es.Plan]
    changed: tuple[str, ...]


def missing(entry: ZooEntry) -> list[str]:
    return [name for name in entry.requires if importlib.util.find_spec(name) is None]


def state(model: nn.Module) -> dict[str, Any]:
    """Collect everything about a module that planning might touch; tensors by value."""
    found: dict[str, Any] = {f"state {name}": value.clone() for name, value in model.state_dict().items()}
    for name, buffer in model.named_buffers(remove_duplicate=False):
        found[f"buffer {name}"] = buffer.clone()
        found[f"attributes of buffer {name}"] = sorted(vars(buffer))
    for name, parameter in model.named_parameters(remove_duplicate=False):
        found[f"identity of {name}"] = id(parameter)
        found[f"requires_grad of {name}"] = parameter.requires_grad
        found[f"grad of {name}"] = parameter.grad is None
        found[f"attributes of {name}"] = sorted(vars(parameter))
    for name, module in model.named_modules(remove_duplicate=False):
        found[f"keys of '{name}'"] = sorted(vars(module))
        found[f"training of '{name}'"] = module.training
        found[f"hooks of '{name}'"] = (len(module._forward_hooks), len(module._forward_pre_hooks))
    found["random state"] = torch.random.get_rng_state()
    return found


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    def equal(one: Any, other: Any) -> bool:
        return torch.equal(one, other) if isinstance(one, Tensor) and isinstance(other, Tensor) else one == other

    return [key for key in {**before, **after} if not equal(before.get(key), after.get(key))]


@cache
def specimen(name: str) -> Specimen:
    entry = ENTRIES[name]
    if absent := missing(entry):
        pytest.skip(f"needs {', '.join(absent)}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model, args = entry.make()
    plans, changed = {}, []
    for training in MODES:
        model.train(training)
        before = state(model)
        with warnings.catch_warnings():  # of parameters that nothing uses, in eval mode
            warnings.filterwarnings("ignore", message=".* was read in eval mode")
            plans[training] = es.plan(model, args, example_kwargs=entry.kwargs)
        changed += differences(before, state(model))
    return Specimen(model, args, entry.kwargs, plans, tuple(changed))


def tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors(item)


each = pytest.mark.parametrize("name", ENTRIES)


def test_the_zoo_holds_what_the_issue_names() -> None:
    wanted = "nasbench201 unet densenet inception squeeze_excite transformer_pre_norm lstm tied_language_model"
    transformers = "hf_resnet hf_convnext hf_mobilenet_v2 hf_vit hf_gpt2 hf_bert"
    assert set(f"{wanted} {transformers}".split()) <= set(ENTRIES)
    assert len(ENTRIES) == len(ZOO)


@each
def test_planning_touches_nothing(name: str) -> None:
    assert specimen(name).changed == ()


@each
def test_training_and_evaluation_mode_give_the_same_plan(name: str) -> None:
    train, evaluate = (specimen(name).plans[mode] for mode in MODES)
    if name not in DROPS:
        assert train.graph.edges == evaluate.graph.edges
        alike = [[replace(p, notes=()) for p in plan.parameters] for plan in (train, evaluate)]
        assert alike[0] == alike[1]  # but for what is not used, of which evaluation says more
        return
    assert path_moments(train.graph) == path_moments(evaluate.graph)
    for one, other in zip(train.parameters, evaluate.parameters, strict=True):
        assert (one.name, one.role, one.shape) == (other.name, other.role, other.shape)
        most = 1.01 / (1 - DROPS[name]) ** 2  # once for the size of what is read, once for the output
        assert 1 / most < (one.std / other.std if other.std else 1.0) < most
        assert 1 / most < one.lr_scale / other.lr_scale < most


@each
def test_every_trainable_parameter_is_planned_exactly_once(name: str) -> None:
    found = specimen(name)
    # named_parameters lists a tied parameter once, under its first name.
    wanted = {n: tuple(p.shape) for n, p in found.model.named_parameters() if p.requires_grad}
    for planned in found.plans.values():
        counts = Counter(parameter.name for parameter in planned.parameters)
        assert counts == Counter(dict.fromkeys(wanted, 1))
        assert {p.name: p.shape for p in planned.parameters} == wanted


@each
def test_numbers_are_finite_and_positive_where_they_should_be(name: str) -> None:
    for planned in specimen(name).plans.values():
        for p in planned.parameters:
            assert math.isfinite(p.lr_scale), p
            assert p.lr_scale > 0, p
            assert math.isfinite(p.std), p
            assert p.reason.count("\n") == 0, p
            assert "lr: " in p.reason, p
            assert "init: " in p.reason, p
            if p.kept:
                assert p.std >= 0, p
            elif p.role == "weight":
                assert p.std > 0, p
                assert p.mean == 0, p
            elif p.role == "gain":  # one, or less where a norm ends one of many branches of a stream
                assert 0 < p.mean <= 1, p
                assert p.std == 0, p
            else:
                assert (p.mean, p.std) == (0.0, 0.0), p
        assert all(math.isfinite(v.second_moment) and v.second_moment >= 0 for v in planned.vertices)
        assert planned.path_count >= 1


@each
def test_roles_agree_with_the_layers(name: str) -> None:
    """What torch's own layer classes say about a parameter is what the trace says."""
    found = specimen(name)
    roles = {p.name: p.role for p in found.plans[True].parameters}
    live = {n for e in found.plans[True].graph.live().edges for n in e.parameters}
    norms = (
        nn.BatchNorm1d,
        nn.BatchNorm2d,
        nn.BatchNorm3d,
        nn.InstanceNorm2d,
        nn.GroupNorm,
        nn.LayerNorm,
        nn.RMSNorm,
    )
    weighted = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d, nn.Bilinear)
    checked = 0
    for path, module in found.model.named_modules():
        for own, parameter in module.named_parameters(prefix=path, recurse=False):
            if own not in live or not parameter.requires_grad:
                continue
            kind = own.rpartition(".")[2]
            if isinstance(module, norms):
                assert roles[own] == {"weight": "gain", "bias": "bias"}[kind], own
                checked += 1
            elif isinstance(module, weighted):
                assert roles[own] == {"weight": "weight", "bias": "bias"}[kind], own
                checked += 1
    assert checked > 0


@each
def test_an_initialised_model_runs_and_stays_finite(name: str) -> None:
    found = specimen(name)
    for training in MODES:
        model = copy.deepcopy(found.model).train(training)
        es.initialize_(model, found.plans[training], generator=torch.Generator().manual_seed(1))
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            outputs = [t for t in tensors(model(*found.args, **found.kwargs)) if t.is_floating_point()]
        assert outputs
        for output in outputs:
            assert bool(output.isfinite().all())
            assert float(output.abs().max()) < 1e3


@each
def test_groups_cover_every_trainable_parameter_once(name: str) -> None:
    found = specimen(name)
    groups = found.plans[True].param_groups(found.model, lr=0.5)
    counts = Counter(id(parameter) for group in groups for parameter in group["params"])
    assert counts == Counter({id(p): 1 for p in found.model.parameters() if p.requires_grad})
    rates = {id(parameter): group["lr"] for group in groups for parameter in group["params"]}
    for own, parameter in found.model.named_parameters():
        if parameter.requires_grad:
            assert rates[id(parameter)] == pytest.approx(0.5 * found.plans[True][own].lr_scale)
    torch.optim.SGD(groups, momentum=0.9)  # accepts them: no parameter in two groups


@each
def test_a_plan_survives_json(name: str) -> None:
    for planned in specimen(name).plans.values():
        assert es.Plan.from_json(planned.to_json()) == planned


# Counted by hand: a residual branch doubles the paths, attention adds queries, keys, values, a gate one more.
PATH_COUNTS = {
    "plain_mlp": 1,
    "basic_resnet": 2**3,
    "unet": 3,  # each of two copies into the decoder adds one
    "densenet": 2**3 * 2**2,
    "inception": 4 * 4,
    "squeeze_excite": 3 * 3,  # skip, value and gate
    "mobilenet": 2,  # one of its two blocks is residual
    "transformer_pre_norm": ((1 + 3) * (1 + 1)) ** 2,
    "attention": (1 + 3) ** 2,
    "lstm": 1,
    "tied_language_model": 1,
    "gated_mlp": (1 + 2) * (1 + 1),  # torch's glu is one operator
    "mixer": (2 * 2) ** 2,
    "recurrent_depth": 2**3,
    "bilinear": 2,  # two inputs
    "dict_output": 2,  # two outputs
    "dag_mlp": 4,
    "dag_cnn": 3,
    "nasbench201": 4**3 * 2**2,  # three cells of four paths, two reductions with a shortcut
    "hf_resnet": 2**3,
    "hf_mobilenet_v2": 2**10,
    "hf_vit": ((1 + 3) * (1 + 1)) ** 2,
    "hf_gpt2": ((1 + 3) * (1 + 1)) ** 2,  # its GELU is spelt out, and one activation all the same
    "hf_bert": ((1 + 3) * (1 + 1)) ** 2,
}


@pytest.mark.parametrize("name", PATH_COUNTS)
def test_paths_are_as_many_as_counted_by_hand(name: str) -> None:
    assert specimen(name).plans[True].path_count == PATH_COUNTS[name]


# The table in the docs

HEAD = (
    "# What has been traced",
    "",
    "Every row is a module of `tests/zoo.py`. `tests/module/test_zoo.py` traces and plans it, writes",
    "this table (`EVENSTEP_WRITE_DOCS=1 pytest tests/module/test_zoo.py`) and fails if the table is out",
    "of date. `parameters` counts trainable parameters, tied ones once; all of them are planned.",
    "`vertices` and `paths` are those of the live graph. The last two columns are the factor of the whole",
    "network relative to the one-hidden-layer chain of the same kind, by our rule and by the paper's,",
    "under SGD and init `conserve`. Names that begin with `hf_` are models of `transformers` with random",
    "weights.",
    "",
    "| model | parameters | vertices | paths | lr_scale, `weighted` | lr_scale, `paths` |",
    "|---|--:|--:|--:|--:|--:|",
)


THREE_LINES = "\n## Kinds that train by the three lines"  # from there on the page is test_transformers_kinds.py's
SWEEP = Path(__file__).parents[2] / "results" / "sweep" / "record.json"


def sweep_lines() -> list[str]:
    """Return what the sweep of transformers found, in words."""
    found = json.loads(SWEEP.read_text(encoding="utf-8"))
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items() if name != "evenstep")
    silent = ", ".join(found["absurd_without_a_warning"]) or "none"
    left_out = sum(found["not_counted"].values())
    planned, healthy, strictly = found["planned"], found["healthy"], found["healthy_unscaled"]
    words = (
        "`benchmarks/sweep_transformers.py` builds every kind of `transformers` that has a head with a loss, at a tiny "
        f"size ({versions}; record in `results/sweep`). Of {found['n']} kinds that it can build and run, {planned} are "
        f"planned in train mode ({100 * planned / found['n']:.1f} %). Of these {healthy} "
        f"({100 * healthy / planned:.1f} %) start healthy: all outputs are finite, 95 % of layers have root mean "
        "squares of 0.1 to 10, and the cross-entropy is within a nat of guessing. If the table of tokens is tied to "
        f"the readout, 0.1 is relative to the stream that starts there; without that allowance, {strictly} "
        f"({100 * strictly / planned:.1f} %) start healthy. Absurd without a warning: {silent}. Another {left_out} "
        "kinds were tried and are not counted, because the sweep's configurations or inputs do not fit them."
    )
    return ["", "## Kinds of transformers", "", *textwrap.wrap(words, 100)]


def row(name: str) -> str:
    weighted = specimen(name).plans[True]
    paths = es.plan(weighted.graph, rule="paths")
    sizes = (len(weighted.parameters), len(weighted.vertices), weighted.path_count)
    shown = " | ".join(str(size) for size in sizes)
    return f"| {name} | {shown} | {weighted.lr_scale:.3g} | {paths.lr_scale:.3g} |"


def test_the_table_in_the_docs_is_up_to_date() -> None:
    absent = [name for name, entry in ENTRIES.items() if missing(entry)]
    lines = [*HEAD, *(row(name) for name in ENTRIES if name not in absent), *sweep_lines()]
    page = DOCUMENT.read_text(encoding="utf-8") if DOCUMENT.is_file() else ""
    ours, heading, rest = page.partition(THREE_LINES)
    if os.environ.get("EVENSTEP_WRITE_DOCS") == "1":
        assert not absent, f"cannot write the table without the packages of {absent}"
        DOCUMENT.parent.mkdir(exist_ok=True)
        ours = "\n".join(lines) + "\n"
        DOCUMENT.write_text(ours + heading + rest, encoding="utf-8")
    assert DOCUMENT.is_file(), f"{DOCUMENT} is missing: write it with EVENSTEP_WRITE_DOCS=1"
    written = ours.splitlines()
    kept = [line for line in written if not any(line.startswith(f"| {name} |") for name in absent)]
    assert kept == lines, "docs/traced.md is out of date: run this test with EVENSTEP_WRITE_DOCS=1"
