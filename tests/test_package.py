"""Wheels and sdist build, hold what they should, and work in an environment of their own, without all extras."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

import evenstep
from evenstep import __version__, errors

ROOT = Path(__file__).parents[1]
# Top-level modules of what only extras bring.
EXTRAS = ("sklearn", "ray", "pyarrow", "prodigyopt", "transformers", "lightning", "accelerate", "optuna", "tensorboard")
BLOCKED = f"""
from importlib.machinery import PathFinder

found = PathFinder.find_spec
PathFinder.find_spec = lambda name, path=None, target=None: (
    None if name.split(".")[0] in {EXTRAS!r} else found(name, path, target)
)
"""
TERMINAL = ("typer", "rich", "jinja2", "markupsafe", "scipy", "matplotlib", "sklearn", "evenstep_research")
NO_TERMINAL = BLOCKED.replace(repr(EXTRAS), repr(TERMINAL))
CORE = """
import evenstep as es

base = es.search_lr(make_small_net, train_data, steps=8, grid=[0.01, 0.1, 1.0, 10.0, 100.0], progress=True)
plan = es.plan(model, example_inputs, base=base)
es.initialize_(model, plan)
opt = plan.optimizer(model)
torch.nn.functional.cross_entropy(model(example_inputs), train_data[1][:2]).backward()
opt.step()
es.refine(model, plan, train_data, steps=8)

def wide(width):
    return nn.Sequential(nn.Flatten(), nn.Linear(192, width), nn.ReLU(), nn.Linear(width, 2))

widths = {n: (lambda n=n: wide(n), es.plan(wide(n), example_inputs, base=base)) for n in (8, 16, 32)}
es.check(widths, train_data, seeds=2)
planned = es.auto_plan(model, train_data, optimizer=torch.optim.AdamW, train_steps=100)
planned.optimizer(model)
str(plan), plan._repr_html_(), base._repr_html_()
print("done")
"""
A_USERS_OWN = """
import torch
from torch import nn

inputs = torch.randn(64, 3, 8, 8, generator=torch.Generator().manual_seed(0))
train_data = inputs, (inputs.mean((1, 2, 3)) > 0).long()
example_inputs = inputs[:2]
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2))

def make_small_net():
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.ReLU(), nn.Linear(16, 2))
"""


def run(*command: object, folder: Path) -> str:
    done = subprocess.run([str(word) for word in command], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the wheel, built from the sdist as an index's users would, and the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT, folder=folder)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


@pytest.fixture(scope="module")
def python(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of a new environment with the wheel in it; dependencies are this environment's own."""
    folder = tmp_path_factory.mktemp("clean")
    # All that is installed here but us: what stays would be found by its metadata, research's entry points too.
    dependencies = folder / "dependencies"
    dependencies.mkdir()
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if "evenstep" not in path.name:
            (dependencies / path.name).symlink_to(path)
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", built[0], folder=folder)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(f"{dependencies}\n")  # it comes after the new environment's own
    return python


def test_the_wheel_holds_the_package_and_nothing_else(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[0]) as wheel:
        names = set(wheel.namelist())
        metadata = Parser().parsestr(wheel.read(f"evenstep-{__version__}.dist-info/METADATA").decode())
    source = {
        str(path.relative_to(ROOT / "src"))
        for path in (ROOT / "src").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name for name in names if not name.startswith(f"evenstep-{__version__}.dist-info/")} == source
    assert "evenstep/py.typed" in names
    assert not any("research" in name for name in names)
    assert f"evenstep-{__version__}.dist-info/licenses/LICENSE" in names
    assert metadata["Version"] == __version__
    assert metadata["License-Expression"] == "Apache-2.0"
    required = [text for text in metadata.get_all("Requires-Dist", []) if "extra ==" not in text]
    assert {re.match(r"[\w-]+", text)[0] for text in required} == {  # type: ignore[index]
        "jinja2",
        "numpy",
        "rich",
        "torch",
        "typer",
    }


def test_researchs_wheel_holds_research_alone_and_asks_for_this_version(tmp_path: Path) -> None:
    project = ROOT / "research"
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, project, folder=tmp_path)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
        metadata = Parser().parsestr(wheel.read(f"evenstep_research-{__version__}.dist-info/METADATA").decode())
    source = project / "src"
    assert names == {
        path.relative_to(source).as_posix()
        for path in source.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert f"evenstep=={__version__}" in metadata.get_all("Requires-Dist", [])


def test_the_sdist_holds_tests_docs_and_examples(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[1]) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    for name in ("src/evenstep/py.typed", "tests/test_package.py", "docs/index.md", "examples/networks.py", "LICENSE"):
        assert name in names
    assert not any(name.startswith(("results/", ".venv/", "build/")) for name in names)


def test_the_installed_package_is_the_wheels(python: Path, tmp_path: Path) -> None:
    where = run(python, "-c", "import evenstep; print(evenstep.__file__)", folder=tmp_path).strip()
    assert Path(where).is_relative_to(python.parents[1])
    assert run(python.with_name("evenstep"), "--version", folder=tmp_path).strip() == __version__


def test_the_readmes_example_runs_without_extras(python: Path, tmp_path: Path) -> None:
    example = next(
        code
        for code in re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
        if "search_lr" in code
    )
    report = "es.write_report(plan, 'report.html')\n"
    (tmp_path / "example.py").write_text(BLOCKED + A_USERS_OWN + example + report)
    assert "4.weight" in run(python, "example.py", folder=tmp_path)
    assert "<html" in (tmp_path / "report.html").read_text()  # its templates came with the wheel


def test_the_core_runs_where_only_torch_and_numpy_are(python: Path, tmp_path: Path) -> None:
    (tmp_path / "core.py").write_text(NO_TERMINAL + A_USERS_OWN + CORE)
    assert run(python, "core.py", folder=tmp_path).split() == ["done"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("study",),
        ("study", "list"),
        ("study", "transfer", "--scale", "smoke"),
        ("nas", "--help"),
        ("data", "fetch", "cifar10"),
        ("plan", "--code", "2_12"),
        ("plan", "--space", "cnn", "--code", "-"),
        ("search", "net.py:make", "--data", "."),
    ],
    ids=" ".join,
)
def test_what_research_adds_says_how_to_get_it(python: Path, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    (tmp_path / "net.py").write_text("from torch import nn\n\n\ndef make():\n    return nn.Linear(2, 2)\n")
    done = subprocess.run(
        [python.with_name("evenstep"), *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert "pip install evenstep-research" in done.stderr
    assert done.stderr.count("\n") == 1


def test_without_research_help_lists_its_commands_and_doctor_says_that_it_is_not_there(
    python: Path, tmp_path: Path
) -> None:
    listed = run(python.with_name("evenstep"), "--help", folder=tmp_path)
    assert listed.count("Needs evenstep-research.") == 3
    assert "research: not installed" in run(python.with_name("evenstep"), "doctor", folder=tmp_path)


def test_a_picture_without_matplotlib_says_which_extra_draws(python: Path, tmp_path: Path) -> None:
    (tmp_path / "search.py").write_text(
        f"{NO_TERMINAL.replace(repr(TERMINAL), repr(('matplotlib',)))}\nfrom evenstep.cli import main\nmain()\n"
    )
    command = [str(python), "search.py", "search", "net.py:make", "--picture", "a.png"]
    (tmp_path / "net.py").write_text("from torch import nn\n\n\ndef make():\n    return nn.Linear(64, 10)\n")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "pip install 'evenstep[pictures]'" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import evenstep", {"torch", "numpy", "scipy", "matplotlib", "typer", "rich", "jinja2"}),
        (
            "from evenstep import plan, initialize_, search_lr",
            {"scipy", "matplotlib", "typer", "rich", "jinja2", *EXTRAS},
        ),
    ],
)
def test_imports_load_no_more_than_they_need(statement: str, absent: set[str], tmp_path: Path) -> None:
    code = f"{statement}\nimport sys\nprint(*sorted({absent!r} & set(sys.modules)))"
    assert run(sys.executable, "-c", code, folder=tmp_path).split() == []


def test_the_door_is_small_and_every_error_stands_in_it() -> None:
    own = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    names = set(evenstep.__all__) - {"__version__"}
    assert own <= names
    assert names - own == set(
        "auto_plan base_of Base refine Refinement plan Plan ParameterPlan Factor initialize_ check_groups search_lr "
        "LRSearch check Check trace Graph register_op ops write_report".split()
    )
    for name in names:
        assert getattr(evenstep, name) is not None
