"""Workflow, pre-commit hooks and the project's own check call the same targets of the Makefile."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

ROOT = Path(__file__).parents[1]
MAKEFILE = (ROOT / "Makefile").read_text()


def loaded(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text())


def targets(commands: str) -> list[str]:
    """Return the targets of all calls of make in a script, without its variables and options."""
    calls = [shlex.split(line)[1:] for line in commands.splitlines() if line.strip().startswith("make ")]
    return [word for call in calls for word in call if "=" not in word and not word.startswith("-")]


def prerequisites(target: str) -> list[str]:
    (found,) = re.findall(rf"^{target}:(.*)$", MAKEFILE, flags=re.MULTILINE)
    return str(found).split()


def test_targets_are_read_from_calls_of_make() -> None:
    script = "set -e\n# make docs\nmake -j2 test PYTHON=python3.12\ncmake all\n  make lint types\n"
    assert targets(script) == ["test", "lint", "types"]


def test_the_workflow_runs_what_the_projects_own_check_runs() -> None:
    jobs = loaded(".github/workflows/ci.yml")["jobs"].values()
    steps = [step["run"] for job in jobs for step in job["steps"] if "run" in step]
    assert [target for step in steps for target in targets(step)] == targets((ROOT / ".ci" / "run").read_text())
    assert targets(steps[-1]) == ["test"]


def test_the_workflow_tests_the_oldest_python_that_installs() -> None:
    (job,) = loaded(".github/workflows/ci.yml")["jobs"].values()
    oldest = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"].removeprefix(">=")
    assert job["strategy"]["matrix"]["python"][0] == oldest
    assert f"PYTHON ?= python{oldest}" in MAKEFILE
    assert all(isinstance(version, str) for version in job["strategy"]["matrix"]["python"])  # 3.10 would read as 3.1


def test_hooks_before_a_commit_are_part_of_the_tests() -> None:
    (repository,) = loaded(".pre-commit-config.yaml")["repos"]
    assert repository["repo"] == "local"
    hooked = [target for hook in repository["hooks"] for target in targets(hook["entry"])]
    assert hooked == ["lint", "types"]
    assert set(hooked) <= set(prerequisites("test"))


def test_issue_templates_have_a_name_and_say_what_they_are_for() -> None:
    templates = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.md"))
    assert len(templates) == 3
    for template in templates:
        front = yaml.safe_load(template.read_text().split("---\n")[1])
        assert front["name"], template.name
        assert front["about"], template.name


def test_the_citation_is_of_this_version() -> None:
    citation = loaded("CITATION.cff")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert citation["version"] == project["version"]
    assert citation["license"] == project["license"]
    assert [author["family-names"] for author in citation["references"][0]["authors"]] == [
        "Chen",
        "Wu",
        "Wang",
        "Hanin",
    ]
