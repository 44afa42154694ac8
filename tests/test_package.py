"""Wheel and sdist build, hold what they should, and work in an environment of their own without extras."""

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
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", built[0], folder=folder)
    (site,) = folder.glob("lib/python*/site-packages")
    # A path in a .pth file comes after the new environment's own, and .pth files there (ours, editable) are not read.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
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
    assert f"evenstep-{__version__}.dist-info/licenses/LICENSE" in names
    assert metadata["Version"] == __version__
    assert metadata["License-Expression"] == "Apache-2.0"
    required = [text for text in metadata.get_all("Requires-Dist", []) if "extra ==" not in text]
    assert {re.match(r"[\w-]+", text)[0] for text in required} == {  # type: ignore[index]
        "jinja2",
        "matplotlib",
        "numpy",
        "rich",
        "scipy",
        "torch",
        "typer",
    }


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
