"""Run `evenstep data`, and give folders of data sets to `--data`."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from evenstep_research.data import DATA_SETS, DataSet, OfficialFile, cifar10
from research.tests.data import made
from research.tests.data.site import Site, packed, serving
from tests.cli.command import Run


def test_list_names_every_data_set(run: Run) -> None:
    done = run("data", "list")
    assert done.code == 0
    names = ["digits", "cifar10", "cifar100", "imagenet16-120", "imagenet"]
    assert [line.split()[0] for line in done.out.splitlines()] == names
    assert "evenstep data fetch cifar10" in done.out.splitlines()[1]
    found = [json.loads(line) for line in run("data", "list", "--json").out.splitlines()]
    assert [one["name"] for one in found] == names
    assert [one["classes"] for one in found] == [10, 10, 100, 120, 1000]
    assert [one["checksums"] for one in found] == [False, True, True, True, False]
    assert found[1]["folders"] == ["cifar-10-batches-bin", "cifar-10-batches-py"]


def use(monkeypatch: pytest.MonkeyPatch, site: Site) -> None:
    """Let the site's archive be CIFAR-10's official one."""
    tiny = DataSet("cifar10", "CIFAR-10", 10, 32, (site.version(),), "evenstep data fetch cifar10")
    monkeypatch.setattr("evenstep_research.data.DATA_SETS", (tiny, *DATA_SETS[1:]))


def test_fetch_downloads_once(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = packed()
    with serving(Site(content)) as site:
        use(monkeypatch, site)
        first = run("data", "fetch", "cifar10", "--out", str(tmp_path), "--json").json()
        expected = {"data_set": "cifar10", "version": "binary", "folder": str(tmp_path / "tiny")}
        assert first == expected | {"downloaded": len(content), "already_there": False}
        assert sorted(path.name for path in (tmp_path / "tiny").iterdir()) == ["test.bin", "train.bin"]
        again = run("data", "fetch", "cifar10", "--out", str(tmp_path), "--json").json()
        assert again == expected | {"downloaded": 0, "already_there": True}
        words = run("data", "fetch", "cifar10", "--out", str(tmp_path))
        assert words.out.splitlines() == [f"CIFAR-10 is in '{tmp_path / 'tiny'}' already; nothing to do"]
        words = run("data", "fetch", "cifar10", "--out", str(tmp_path / "other"))
        assert "its checksum is the official one" in words.out
        assert len(site.asked) == 2


def test_a_mirror_must_have_the_official_archive(run: Run, tmp_path: Path) -> None:
    with serving(Site(packed())) as site:
        done = run("data", "fetch", "cifar100", "--out", str(tmp_path), "--url", site.url, "--version", "python")
    assert done.code == 2
    assert "not the official 169001437; give another address" in done.err
    assert not list(tmp_path.iterdir())


def test_check_reads_every_file(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = made.cifar10_binary(tmp_path)
    done = run("data", "check", str(tmp_path), "--json")
    assert done.code == 1
    found = json.loads(done.out)
    assert (found["data_set"], found["version"], found["ok"]) == ("cifar10", "binary", False)
    assert {file["images"] for file in found["files"]} == {20}
    words = run("data", "check", str(tmp_path))
    assert words.code == 1
    assert words.out.count("not the official") == 6

    def with_digests(files: tuple[OfficialFile, ...]) -> tuple[OfficialFile, ...]:
        sums = {path.name: hashlib.md5(path.read_bytes()).hexdigest() for path in folder.iterdir()}
        return tuple(replace(file, digest=f"md5:{sums[file.name]}") for file in files)

    version = DATA_SETS[0].versions[0]
    ours = replace(version, train=with_digests(version.train), test=with_digests(version.test))
    monkeypatch.setattr("evenstep_research.data.folder.DATA_SETS", (replace(DATA_SETS[0], versions=(ours,)),))
    words = run("data", "check", str(tmp_path))
    assert words.code == 0
    assert words.out.count("20 images, official") == 6
    assert run("data", "check", str(tmp_path), "--json").json()["ok"]


NETWORK = """
from torch import nn

def make():
    return nn.Sequential(nn.Flatten(), nn.Linear(3072, 4), nn.ReLU(), nn.Linear(4, 10))

def data():
    from evenstep_research.data import cifar10
    return cifar10("cifar-10-batches-py").train
"""


def test_a_folder_is_data_for_a_search(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made.cifar10_python(tmp_path)
    Path("network.py").write_text(NETWORK)
    search = ("search", "network.py:make", "--seeds", "1", "--steps", "4", "--batch-size", "20", "--json")
    found = run(*search, "--data", "cifar-10-batches-py").json()
    assert found == run(*search, "--data", "network.py:data").json()
    assert len(cifar10(tmp_path).train[0]) == 100


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("data", "fetch", "imagenet"), "the data set is 'imagenet'; give cifar10 or cifar100"),
        (("data", "fetch", "cifar10", "--version", "matlab"), "version is 'matlab'; give binary or python"),
        (("data", "fetch", "cifar10", "--url", "ftp://x/y"), "'ftp://x/y' is not of http or https"),
        (("data", "fetch", "cifar10", "--attempts", "0"), "attempts is 0"),
        (("data", "check", "nowhere"), "there is no folder 'nowhere'"),
        (("data", "check", "."), "holds no data set"),
        (("search", "network.py:make", "--data", "."), "holds no data set"),
        (("search", "network.py:make", "--data", "harmful"), "names posix.system, which"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("network.py").write_text(NETWORK)
    for name in ("train", "test"):
        Path("harmful").mkdir(exist_ok=True)
        Path("harmful", name).write_bytes(b"\x80\x02}U\x04datacposix\nsystem\nU\x0atouch markR" + b"s.")
    done = run(*arguments)
    assert done.code == 2
    lines = [line for line in done.err.splitlines() if line.strip()]
    assert len(lines) == 1, done.err
    assert lines[0].startswith("error: ")
    assert message in lines[0]
    assert not done.out.strip()
    assert not Path("mark").exists()
