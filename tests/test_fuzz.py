"""Check that the fuzz run works, finds nothing in a few seconds, and would say so if it did."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def fuzzed(*arguments: str, code: str = "pass") -> subprocess.CompletedProcess[str]:
    """Run the script, after other code where there is any."""
    start = f"import sys; sys.path.insert(0, 'benchmarks'); {code}; import fuzz; sys.exit(fuzz.main())"
    return subprocess.run(
        [sys.executable, "-c", start, *arguments], capture_output=True, text=True, check=False, cwd=ROOT, timeout=300
    )


@pytest.mark.slow
def test_ten_seconds_of_random_arguments_meet_nothing_but_our_own_errors(tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    done = fuzzed("--minutes", "0.17", "--seed", "7", "--record", str(record))
    assert done.returncode == 0, done.stderr
    assert "internal" in done.stdout
    assert record.exists()


def test_an_exception_that_is_not_ours_is_found_and_can_be_repeated() -> None:
    broken = "import fuzz_targets as ft; ft.TARGETS['codes'] = lambda draw, folder: 1 // 0"
    done = fuzzed("--minutes", "0.001", "--only", "codes", code=broken)
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr
    seed = done.stderr.split("--replay ")[1].split()[0]
    again = fuzzed("--only", "codes", "--replay", seed, code=broken)
    assert again.returncode == 1
    assert "ZeroDivisionError" in again.stdout
