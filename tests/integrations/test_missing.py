"""Libraries are loaded where their integration is, and a missing one says how to install it."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Pretends that a package is not installed, in a process of its own.
_HIDE = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {hidden!r}:
            raise ModuleNotFoundError(f"No module named '{{name}}'", name=name)
sys.meta_path.insert(0, Hidden())
"""


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("module", "hidden", "package"),
    [
        ("lightning", ("lightning", "pytorch_lightning"), "lightning"),
        ("huggingface", ("transformers",), "transformers"),
        ("accelerate", ("accelerate",), "accelerate"),
    ],
)
def test_a_missing_library_is_named_with_its_install(module: str, hidden: tuple[str, ...], package: str) -> None:
    code = _HIDE.format(hidden=hidden) + (
        "from evenstep.errors import EvenstepError\n"
        "try:\n"
        f"    import evenstep.integrations.{module}\n"
        "except ImportError as error:\n"
        "    assert isinstance(error, EvenstepError)\n"
        "    print(error)\n"
    )
    assert run(code) == (
        f"evenstep.integrations.{module} needs the package {package}, which is not installed; "
        f"install it with pip install {package}\n"
    )


def test_the_older_lightning_stands_in_for_the_newer() -> None:
    pytest.importorskip("pytorch_lightning")
    code = _HIDE.format(hidden=("lightning",)) + (
        "from evenstep.integrations.lightning import EvenSteps\n"
        "import pytorch_lightning\n"
        "print(issubclass(EvenSteps, pytorch_lightning.Callback))\n"
    )
    assert run(code) == "True\n"


def test_importing_evenstep_loads_none_of_them() -> None:
    names = "{'lightning', 'pytorch_lightning', 'transformers', 'accelerate', 'timm'}"
    code = "import sys, evenstep as es, evenstep.integrations.timm; es.plan, es.check_groups\n"
    code += f"print(sorted({names} & set(sys.modules)))"
    assert run(code) == "[]\n"
