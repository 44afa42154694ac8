"""Check the list of records: that it names every one, and that it sees which code has changed."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import records

ROOT = Path(__file__).parents[2]


def git(folder: Path, *arguments: str) -> str:
    named = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"}
    environment = {**os.environ, **named}
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True, env=environment)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Make a checkout with one source file, one commit, and a record of that commit."""
    monkeypatch.setattr(records, "ROOT", tmp_path)
    (tmp_path / "src" / "old").mkdir(parents=True)
    (tmp_path / "src" / "old" / "rule.py").write_text("".join(f"line = {number}\n" for number in range(50)))
    (tmp_path / "notes.py").write_text("note = 1\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "first")
    write(tmp_path, git(tmp_path, "rev-parse", "--short=12", "HEAD"))
    records._differing.cache_clear()
    yield tmp_path
    records._differing.cache_clear()


def write(repository: Path, commit: str) -> Path:
    path = repository / "results" / "made" / "record.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"provenance": {"commit": commit, "device": "a GPU"}}))
    return path


def listed(repository: Path) -> records.Listed:
    records._differing.cache_clear()
    (path,) = records.records_in(repository / "results")
    return records.listed(path, repository / "results")


def test_a_record_is_marked_when_its_code_changes_and_not_when_it_moves(repository: Path) -> None:
    first = listed(repository)
    assert (first.mark, first.devices, first.date) == ("up to date", ("a GPU",), "not committed")
    (repository / "notes.py").write_text("note = 2\n")  # no record depends on it
    git(repository, "mv", "src/old", "src/new")
    assert listed(repository).mark == "up to date"
    rule = repository / "src" / "new" / "rule.py"
    rule.write_text(rule.read_text().replace("line = 7\n", "line = 8\n"))
    assert listed(repository).mark == "1 file changed since"
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "second")
    assert listed(repository).mark == "1 file changed since"
    assert len(listed(repository).date) == len("2026-01-01")


def test_the_oldest_of_a_records_commits_counts_and_an_unknown_one_is_said(repository: Path) -> None:
    old = git(repository, "rev-parse", "HEAD")
    (repository / "src" / "old" / "rule.py").write_text("line = 0\n")
    git(repository, "commit", "-qam", "second")
    path = write(repository, git(repository, "rev-parse", "HEAD") + "+")
    assert listed(repository).mark == "up to date"
    path.with_name("ledger.jsonl").write_text(json.dumps({"provenance": {"commit": old}}) + "\n")
    assert listed(repository).mark == "1 file changed since"
    path.with_name("ledger.jsonl").unlink()
    write(repository, "0123456789ab")
    assert listed(repository).mark == "commit not known"


def test_every_record_has_a_command_and_code_that_is_there() -> None:
    """A new record must be named in benchmarks/records.py, with what it depends on."""
    found = {str(path.relative_to(ROOT / "results")) for path in records.records_in(ROOT / "results")}
    assert found == set(records.RECORDS)
    for source in records.RECORDS.values():
        assert source.command
        for place in source.depends:
            assert (ROOT / place).exists(), place


def test_the_list_needs_nothing_but_python() -> None:
    command = [sys.executable, "-S", "benchmarks/records.py", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    rows = {row["record"]: row for row in json.loads(done.stdout)}
    assert set(rows) == set(records.RECORDS)
    assert "NVIDIA H200" in rows["nas/record.json"]["devices"]
