"""The README's example runs as it stands, and the commands it names exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def examples() -> list[str]:
    return re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_the_first_example_is_the_three_lines_and_they_train_a_users_own_network() -> None:
    code = examples()[0]
    statements = [line for line in code.splitlines() if line and not line.startswith("import")]
    assert [line.split("(")[0] for line in statements] == [
        "plan = es.auto_plan",
        "es.initialize_",
        "opt = plan.optimizer",
    ]
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(256, 12, generator=generator)
    targets = (inputs @ torch.randn(12, 3, generator=generator)).argmax(1)
    hidden = [layer for _ in range(4) for layer in (nn.Linear(24, 24), nn.ReLU())]
    model = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), *hidden, nn.Linear(24, 3))
    loader = DataLoader(TensorDataset(inputs, targets), batch_size=32, shuffle=True, generator=generator)
    names: dict[str, Any] = {"model": model, "loader": loader}
    exec(code, names)
    assert isinstance(names["opt"], torch.optim.AdamW)
    before = F.cross_entropy(model(inputs), targets).item()
    for _ in range(10):
        for batch, labels in loader:
            names["opt"].zero_grad()
            F.cross_entropy(model(batch), labels).backward()  # type: ignore[no-untyped-call]
            names["opt"].step()
    assert F.cross_entropy(model(inputs), targets).item() < 0.3 * before


def test_the_example_runs_on_a_users_own_cnn(capsys: pytest.CaptureFixture[str]) -> None:
    code = examples()[1]
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


def test_the_front_page_is_a_page() -> None:
    assert README.count("\n") <= 120


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
