"""Check that `evenstep doctor` tells a sound installation from a broken one."""

from importlib import metadata

import pytest

from evenstep import __version__
from evenstep.cli import doctor
from tests.cli.command import Run


def test_a_sound_installation(run: Run) -> None:
    found = run("doctor", "--json").json()
    assert found["ok"] is True
    assert found["evenstep"] == __version__
    assert found["device"].split()[0] in ("cpu", "cuda")
    assert found["research"] == __version__  # both have one version
    packages = {package["name"]: package for package in found["packages"]}
    assert packages["torch"] == {
        "name": "torch",
        "version": metadata.version("torch"),
        "lowest": "2.4",
        "extra": "",
        "ok": True,
    }
    assert packages["ray"]["extra"] == "ray"
    assert not any("extra ==" in name or "[" in name for name in packages)
    assert [(check["name"], check["ok"]) for check in found["checks"]] == [("plan", True), ("search", True)]
    for check in found["checks"]:
        assert check["found"] == check["expected"]


def test_the_page_for_people(run: Run) -> None:
    done = run("doctor")
    assert done.code == 0
    assert done.out.rstrip().endswith("everything works")
    for part in (
        f"evenstep {__version__}",
        f"evenstep-research: {__version__}",
        "device:",
        "torch",
        "plan:",
        "search:",
    ):
        assert part in done.out


def test_a_wrong_result_is_a_failure(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_search", lambda: 1.0)
    monkeypatch.setattr(doctor, "_plan", lambda: 0.5)
    done = run("doctor")
    assert done.code == 1
    assert "plan: 0.5" in done.out
    assert "BROKEN, expected 0.471405" in done.out
    assert "broken: plan, search" in done.out


def test_what_a_check_raises_is_told_in_a_line(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def raising() -> float:
        raise OSError("libtorch.so is gone\nand more")

    monkeypatch.setattr(doctor, "_plan", raising)
    monkeypatch.setattr(doctor, "_search", lambda: 4.0)
    done = run("doctor")
    assert done.code == 1
    assert "plan: OSError: libtorch.so is gone and more" in done.out


@pytest.mark.parametrize(
    ("lost", "extra", "code", "said"),
    [
        ("torch", "", 1, "BROKEN: needs 2.4 or later"),
        ("ray", "ray", 0, "pip install 'evenstep[ray]'"),
    ],
)
@pytest.mark.parametrize("version", [None, "1.9"])
def test_packages_missing_or_too_old(
    run: Run, monkeypatch: pytest.MonkeyPatch, lost: str, extra: str, code: int, said: str, version: str | None
) -> None:
    known = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda name: version if name == lost else known(name))
    monkeypatch.setattr(doctor, "self_check", list)
    done = run("doctor")
    assert done.code == code
    (line,) = (line for line in done.out.splitlines() if line.split()[0] == lost)
    assert said in line
    assert (version or "not installed") in line.lower()


def test_versions_are_compared_as_numbers() -> None:
    for version, lowest, ok in (("2.13.0+cpu", "2.4", True), ("2.3.1", "2.4", False), ("10.0rc1", "9.5", True)):
        assert doctor.Package("a", version, lowest, "").ok is ok
