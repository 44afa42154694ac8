"""Check how many trials are taken to fit into memory, and that no chunk is larger."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from evenstep.search import LocalEngine, memory
from evenstep.search.engines import batching
from evenstep.search.engines.batching import Batching, train_in
from evenstep.search.job import Job, Trial
from evenstep.search.recipe import Recipe
from evenstep.search.replicas import StackedReplicas
from tests.search import plain

torch.set_num_threads(1)

TRIALS = [Trial(0.01 * place, place % 2) for place in range(1, 13)]
PARAMETERS = 8 * (72 * 16 + 16 + 16 * 3 + 3)  # of `plain.mlp`, in bytes


def job(**options: Any) -> Job:
    return plain.job_of(plain.mlp, plain.images(), Recipe(batch_size=10, **options))


@pytest.mark.parametrize(
    ("options", "times"),
    [({}, 3), ({"weight_decay": 0.1}, 4), ({"optimizer": "momentum"}, 5), ({"optimizer": "adam"}, 7)],
)
def test_a_trial_needs_its_parameters_several_times_and_its_activations_once(
    options: dict[str, Any], times: int
) -> None:
    """Saved for the way back: what the ReLU gives (10 x 16) and the logarithms of the classes' shares (10 x 3)."""
    found = memory.bytes_of_trial(job(**options), plain.images()) - times * PARAMETERS
    saved = 8 * 10 * (16 + 3)
    assert saved <= found <= saved + 2 * 8 * 10 * 16 + 64


def test_room_is_shared_by_processes_and_never_less_than_one(monkeypatch: pytest.MonkeyPatch) -> None:
    one = memory.bytes_of_trial(job(), plain.images())
    monkeypatch.setattr(memory, "available_bytes", lambda: 40 * one)
    assert memory.trials_that_fit(job(), plain.images()) == 20  # half of it
    assert memory.trials_that_fit(job(), plain.images(), processes=4) == 5
    monkeypatch.setattr(memory, "available_bytes", lambda: 0)
    assert memory.trials_that_fit(job(), plain.images(), processes=4) == 1


def test_no_chunk_is_larger_than_the_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in a timing nor in a run, not even in one whose batching was chosen on a larger machine.

    Half of the memory counts where a batching is chosen, three quarters where it is kept.
    """
    seen: list[int] = []

    class Counted(StackedReplicas):
        def __init__(self, job: Job, trials: Sequence[Trial], device: torch.device) -> None:
            seen.append(len(trials))
            super().__init__(job, trials, device)

    monkeypatch.setattr(batching, "StackedReplicas", Counted)
    monkeypatch.setattr(batching, "_too_small_to_try", lambda *_: False)
    monkeypatch.setattr(memory, "available_bytes", lambda: 10 * memory.bytes_of_trial(job(), plain.images()))
    for given, most, rest in ((None, 5, 2), (Batching("stacked", 100), 7, 5)):
        seen.clear()
        found = list(LocalEngine(workers=1).run(job(steps=200), plain.images(), TRIALS, given))
        assert {result.trial for result in found} == set(TRIALS)
        assert set(seen) <= {2, most, rest}  # two in a trial of whether they stack; the last chunk has what is left
        assert most in seen


def no_room(room: int) -> Any:
    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        stacked: torch.Tensor = torch._C._functorch.get_unwrapped(output)
        if stacked.numel() // output.numel() > room:
            raise RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory")
        return nn.functional.cross_entropy(output, target)

    return loss


def test_where_torch_cannot_allocate_chunks_become_smaller() -> None:
    scarce = dataclasses.replace(job(), recipe=Recipe(steps=2, batch_size=10, loss=no_room(3)))
    found = list(train_in(Batching("stacked", 12), scarce, plain.images(), TRIALS, torch.device("cpu"), "float32"))
    assert [result.trial for result in found] == TRIALS


# What the machine says


def test_this_machine_has_memory() -> None:
    assert 2**26 < memory.available_bytes() < 2**50


@pytest.mark.parametrize(
    ("own", "folder", "names"),
    [
        ("0::/", "", ("memory.max", "memory.current", "inactive_file")),
        ("0::/mine", "mine", ("memory.max", "memory.current", "inactive_file")),
        (
            "3:cpu:/\n4:memory:/a/b",
            "memory/a/b",
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ),
    ],
)
def test_the_limits_of_control_groups_are_read(
    tmp_path: Path, own: str, folder: str, names: tuple[str, str, str]
) -> None:
    group = tmp_path / "groups" / folder
    group.mkdir(parents=True)
    (tmp_path / "own").write_text(f"{own}\n")
    (group / "memory.stat").write_text(f"anon 5\n{names[2]} 30\n")
    (group / names[1]).write_text("400\n")
    (group / names[0]).write_text("1000\n")
    assert set(memory._left_in_groups(str(tmp_path / "groups"), str(tmp_path / "own"))) == {1000 - 400 + 30}
    (group / names[0]).write_text("max\n")
    assert not list(memory._left_in_groups(str(tmp_path / "groups"), str(tmp_path / "own")))


def test_without_control_groups_there_is_no_limit_of_theirs(tmp_path: Path) -> None:
    assert not list(memory._left_in_groups(str(tmp_path / "none"), str(tmp_path / "none")))
