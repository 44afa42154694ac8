"""The README's example runs as it stands, and the commands it names exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_the_example_runs_on_a_users_own_cnn(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(96, 3, 8, 8, generator=generator)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 4),
    )

    def make_small_net() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.ReLU(), nn.Linear(16, 4))

    names = {
        "make_small_net": make_small_net,
        "train_data": (inputs, torch.randint(4, (96,), generator=generator)),
        "model": model,
        "example_inputs": inputs[:2],
    }
    exec(code, names)
    optimizer = names["opt"]
    assert isinstance(optimizer, torch.optim.SGD)
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert held == {id(p) for p in model.parameters()}
    printed = capsys.readouterr().out
    assert all(name in printed for name, _ in model.named_parameters())


def test_the_first_commands_are_the_makefiles() -> None:
    makefile = (ROOT / "Makefile").read_text()
    commands = re.findall(r"^make (\w+)", README, flags=re.MULTILINE)
    assert commands[:2] == ["run", "test"]
    assert all(re.search(rf"^{command}:", makefile, flags=re.MULTILINE) for command in commands)


def test_files_the_docs_link_to_exist() -> None:
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for link in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name} links to {link}"


def test_theory_names_functions_that_exist() -> None:
    import importlib

    named = re.findall(r"`(evenstep(?:\.\w+)+)`", (ROOT / "docs" / "theory.md").read_text())
    assert named
    for dotted in named:
        module, _, name = dotted.rpartition(".")
        assert hasattr(importlib.import_module(module), name), dotted
