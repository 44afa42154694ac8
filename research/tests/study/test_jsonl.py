"""Check ledgers with real processes: long lines, readers beside writers, writers that are killed, full disks."""

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from evenstep.errors import StoreError
from evenstep_research.study import jsonl

LONG = 2_000_000
WRITER = f"""
import sys
from pathlib import Path
from evenstep_research.study import jsonl
path, name, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
print("ready", flush=True)
sys.stdin.readline()
for number in range(count):
    jsonl.append(path, {{"name": name, "number": number, "filling": name * {LONG}}})
    print(number, flush=True)
"""
READER = """
import sys
from pathlib import Path
from evenstep_research.study import jsonl
path, most = Path(sys.argv[1]), 0
print("ready", flush=True)
sys.stdin.readline()
while most < int(sys.argv[2]):
    seen = sum(1 for _ in jsonl.read(path, lambda line: line["number"])) if path.exists() else 0
    assert seen >= most, (seen, most)
    most = seen
"""


def started(code: str, *arguments: object) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_readers_beside_writers_of_long_lines_lose_none(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    writers = [started(WRITER, path, name, 12) for name in "ab"]
    readers = [started(READER, path, 24) for _ in range(2)]
    for process in (*writers, *readers):
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    for process in (*writers, *readers):
        _, error = process.communicate(timeout=120)
        assert process.returncode == 0, error
    found = lines(path)
    assert sorted((line["name"], line["number"]) for line in found) == [(n, i) for n in "ab" for i in range(12)]
    assert all(line["filling"] == line["name"] * LONG for line in found)


def test_a_writer_that_is_killed_costs_its_last_line_at_most(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    killed, other = started(WRITER, path, "a", 1000), started(WRITER, path, "b", 20)
    for process in (killed, other):
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    assert killed.stdout is not None
    reported = [int(killed.stdout.readline()) for _ in range(5)]
    killed.send_signal(signal.SIGKILL)
    rest, _ = killed.communicate()
    reported += [int(line) for line in rest.splitlines()]
    other.communicate(timeout=120)
    jsonl.append(path, {"name": "c", "number": 0, "filling": ""})
    found = lines(path)  # every line is whole
    numbers = {name: [line["number"] for line in found if line["name"] == name] for name in "abc"}
    assert numbers["b"] == list(range(20))
    assert numbers["a"][: len(reported)] == reported
    assert len(numbers["a"]) <= len(reported) + 1
    assert numbers["c"] == [0]


def test_a_line_that_does_not_fit_on_the_disk_is_taken_back(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    jsonl.append(path, {"number": 0})
    before = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(StoreError, match="cannot be written"):
            jsonl.append(path, {"number": 1, "filling": "x" * LONG})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert path.read_bytes() == before
    jsonl.append(path, {"number": 2})
    assert [line["number"] for line in lines(path)] == [0, 2]


@pytest.mark.parametrize("line", ["[" * 100_000, '{"number": NaN}', "1e999", '{"number": "one"}', "[]"])
def test_damage_before_the_last_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "l.jsonl"
    path.write_text(f'{line}\n{{"number": 1}}\n')

    def parse(values: Any) -> int:
        if type(values["number"]) is not int:
            raise ValueError
        return int(values["number"])

    with pytest.raises(StoreError, match=r"line 1 of the ledger '.*' cannot be read; remove that line"):
        list(jsonl.read(path, parse))


def test_a_ledger_that_cannot_be_written_is_still_read(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    jsonl.append(path, {"number": 1})
    path.chmod(0o444)
    assert list(jsonl.read(path, lambda line: line["number"])) == [1]
    assert os.listdir(tmp_path) == ["l.jsonl"]
