"""Download from a site in this process: whole, cut off, resumed, wrong and hostile."""

import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from evenstep.errors import InputError
from evenstep_research.data import DATA_SETS, Fetched, fetch
from research.tests.data.site import FILES, Site, packed, serving

CONTENT = packed()


@pytest.fixture
def site() -> Iterator[Site]:
    with serving(Site(CONTENT)) as opened:
        yield opened


def check_whole(folder: Path) -> None:
    """Only the data set's folder is there, and it is whole."""
    assert [path.name for path in folder.iterdir()] == ["tiny"]
    assert {f"tiny/{path.name}": path.read_bytes() for path in (folder / "tiny").iterdir()} == FILES


def test_an_archive_is_downloaded_and_unpacked(site: Site, tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    found = fetch(site.version(), tmp_path / "new" / "place", progress=lambda *now: calls.append(now))
    assert found == Fetched(tmp_path / "new" / "place" / "tiny", already_there=False, downloaded=len(CONTENT))
    check_whole(tmp_path / "new" / "place")
    assert calls[-1] == (len(CONTENT), len(CONTENT))
    assert calls == sorted(calls)
    assert len(calls) > 2
    assert site.asked == [None]


def test_what_is_there_is_left_alone(site: Site, tmp_path: Path) -> None:
    fetch(site.version(), tmp_path)
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert fetch(site.version(), tmp_path) == Fetched(tmp_path / "tiny", already_there=True, downloaded=0)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == times
    assert len(site.asked) == 1


def test_a_folder_that_is_not_whole_is_not_written_over(site: Site, tmp_path: Path) -> None:
    fetch(site.version(), tmp_path)
    (tmp_path / "tiny" / "test.bin").write_bytes(b"changed")
    with pytest.raises(InputError, match=r"test.bin' has the sha1 \w+, not the official"):
        fetch(site.version(), tmp_path)
    (tmp_path / "tiny" / "test.bin").unlink()
    with pytest.raises(InputError, match=r"tiny' is there, but has no 'test.bin'; move it away"):
        fetch(site.version(), tmp_path)
    assert len(site.asked) == 1


def test_a_dropped_connection_goes_on_where_it_was(site: Site, tmp_path: Path) -> None:
    site.cuts = [70_000, 100_000]
    found = fetch(site.version(), tmp_path, pause=0)
    assert site.asked == [None, "bytes=70000-", "bytes=170000-"]
    assert found.downloaded == len(CONTENT)
    check_whole(tmp_path)


def test_a_site_without_ranges_starts_again(site: Site, tmp_path: Path) -> None:
    site.ranges, site.cuts = False, [70_000]
    found = fetch(site.version(), tmp_path, pause=0)
    assert site.asked == [None, "bytes=70000-"]
    assert found.downloaded == 70_000 + len(CONTENT)
    check_whole(tmp_path)


def test_a_site_that_sends_another_range_is_asked_for_all(site: Site, tmp_path: Path) -> None:
    site.cuts, site.shift = [70_000], 5
    fetch(site.version(), tmp_path, pause=0)
    assert site.asked == [None, "bytes=70000-", None]
    check_whole(tmp_path)


def test_a_site_that_only_breaks_off_is_given_up_and_the_part_kept(site: Site, tmp_path: Path) -> None:
    site.cuts = [1000] * 3
    with pytest.raises(InputError, match=r"failed 3 times, .*ended after 3000 of \d+ bytes; 3000 bytes are kept"):
        fetch(site.version(), tmp_path, attempts=3, pause=0)
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.tar.gz.part"]
    assert (tmp_path / "tiny.tar.gz.part").read_bytes() == CONTENT[:3000]
    assert fetch(site.version(), tmp_path).downloaded == len(CONTENT) - 3000
    check_whole(tmp_path)


def test_an_interrupt_leaves_a_part_to_go_on_from(site: Site, tmp_path: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(site.version(), tmp_path, progress=interrupt)
    (part,) = tmp_path.iterdir()
    assert part.name == "tiny.tar.gz.part"
    kept = part.read_bytes()
    assert kept
    assert kept == CONTENT[: len(kept)]
    fetch(site.version(), tmp_path)
    assert site.asked == [None, f"bytes={len(kept)}-"]
    check_whole(tmp_path)


def test_a_whole_part_is_not_asked_for_again(site: Site, tmp_path: Path) -> None:
    (tmp_path / "tiny.tar.gz.part").write_bytes(CONTENT)
    assert fetch(site.version(), tmp_path) == Fetched(tmp_path / "tiny", already_there=False, downloaded=0)
    assert site.asked == []
    check_whole(tmp_path)


@pytest.mark.parametrize("size", [5000, len(CONTENT), len(CONTENT) + 1])
def test_a_part_of_something_else_is_thrown_away(site: Site, tmp_path: Path, size: int) -> None:
    (tmp_path / "tiny.tar.gz.part").write_bytes(b"x" * size)
    fetch(site.version(), tmp_path)
    assert site.asked[-1] is None
    check_whole(tmp_path)


def test_a_range_the_site_does_not_know_is_asked_for_anew(site: Site, tmp_path: Path) -> None:
    (tmp_path / "tiny.tar.gz.part").write_bytes(CONTENT[:5000])
    site.codes = [416]
    fetch(site.version(), tmp_path, pause=0)
    assert site.asked == ["bytes=5000-", None]
    check_whole(tmp_path)


def test_a_range_is_kept_through_a_redirection(site: Site, tmp_path: Path) -> None:
    (tmp_path / "tiny.tar.gz.part").write_bytes(CONTENT[:5000])
    fetch(site.version(), tmp_path, url=site.url.replace("/tiny", "/moved/tiny"))
    assert site.asked == ["bytes=5000-", "bytes=5000-"]
    check_whole(tmp_path)


def test_a_wrong_checksum_leaves_nothing(site: Site, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"has the md5 \w+, not the official {'0' * 32}; it was deleted"):
        fetch(site.version(md5="0" * 32), tmp_path)
    assert not list(tmp_path.iterdir())
    assert len(site.asked) == 1


@pytest.mark.parametrize("code", [404, 403])
def test_what_is_not_there_is_asked_for_once(site: Site, tmp_path: Path, code: int) -> None:
    site.codes = [code]
    with pytest.raises(InputError, match=rf"tiny.tar.gz' answers {code} \(.*\); give another address"):
        fetch(site.version(), tmp_path)
    assert len(site.asked) == 1
    assert not list(tmp_path.iterdir())


def test_a_busy_site_is_asked_again(site: Site, tmp_path: Path) -> None:
    site.codes = [503, 429, 500]
    fetch(site.version(), tmp_path, pause=0)
    assert len(site.asked) == 4
    check_whole(tmp_path)
    with serving(Site(CONTENT, codes=[503] * 9)) as other, pytest.raises(InputError, match=r"failed 2 times, .*503"):
        fetch(other.version(), tmp_path / "other", attempts=2, pause=0)


def test_pauses_grow(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("time.sleep", pauses.append)
    site.codes = [503] * 3
    fetch(site.version(), tmp_path, pause=1.5)
    assert pauses == [1.5, 3.0, 6.0]


def test_no_site_at_all(tmp_path: Path) -> None:
    with serving(Site(CONTENT)) as site:
        version = site.version()
    with pytest.raises(InputError, match=r"failed once, at last since .*refused"):
        fetch(version, tmp_path, attempts=1)
    assert not list(tmp_path.iterdir())


def test_another_size_is_refused_before_or_while_it_comes(site: Site, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"offers {len(CONTENT)} bytes, not the official 1000; give another"):
        fetch(site.version(size=1000), tmp_path)
    site.length = False
    with pytest.raises(InputError, match="sends more than the official 1000 bytes"):
        fetch(site.version(size=1000), tmp_path)
    assert not list(tmp_path.iterdir())


def link(name: str, kind: bytes, target: str) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


@pytest.mark.parametrize(
    ("member", "message"),
    [
        (tarfile.TarInfo("../evil"), r"holds '\.\./evil', which leads out of its folder"),
        (tarfile.TarInfo("tiny/../../evil"), "which leads out of its folder"),
        (tarfile.TarInfo("/evil"), "holds '/evil', which leads out of its folder"),
        (link("tiny/train.bin", tarfile.SYMTYPE, "/etc/hostname"), "which is no plain file or folder"),
        (link("tiny/train.bin", tarfile.LNKTYPE, "../evil"), "which is no plain file or folder"),
        (link("tiny/pipe", tarfile.FIFOTYPE, ""), "which is no plain file or folder"),
    ],
)
def test_a_hostile_archive_leaves_nothing(tmp_path: Path, member: tarfile.TarInfo, message: str) -> None:
    with (
        serving(Site(packed(also=member))) as site,
        pytest.raises(InputError, match=f"the archive .*{message}; it was deleted"),
    ):
        fetch(site.version(), tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert not list((tmp_path / "out").iterdir())


def test_other_members_are_left_out_and_modes_are_not_taken_over(tmp_path: Path) -> None:
    extra = FILES | {"tiny/readme.html": b"read me", "other/train.bin": b"not this one"}
    program = tarfile.TarInfo("tiny/run.sh")
    program.mode = 0o4777
    with serving(Site(packed(extra, also=program))) as site:
        fetch(site.version(), tmp_path)
    check_whole(tmp_path)
    assert not (tmp_path / "tiny" / "train.bin").stat().st_mode & 0o111


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (packed({"tiny/train.bin": FILES["tiny/train.bin"]}), "the archive lacks 'tiny/test.bin'"),
        (CONTENT[:-5000], "the archive cannot be unpacked"),
        (b"a letter, no archive", "the archive cannot be unpacked"),
    ],
)
def test_a_broken_archive_of_the_right_checksum_leaves_nothing(tmp_path: Path, content: bytes, message: str) -> None:
    with (
        serving(Site(content)) as site,
        pytest.raises(InputError, match=f"{message}.*; it was deleted, fetch it again"),
    ):
        fetch(site.version(), tmp_path)
    assert not list(tmp_path.iterdir())


def test_wrong_arguments_are_refused(site: Site, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="attempts is 0"):
        fetch(site.version(), tmp_path, attempts=0)
    with pytest.raises(InputError, match=r"the address 'file:///etc/hostname' is not of http or https"):
        fetch(site.version(), tmp_path, url="file:///etc/hostname")
    with pytest.raises(InputError, match="'tiny' has no archive to download"):
        fetch(replace(site.version(), archive=None), tmp_path)
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match=r"file' cannot be written"):
        fetch(site.version(), tmp_path / "file")
    assert site.asked == []


def test_the_official_addresses_are_those_of_the_cifar_page() -> None:
    archives = [version.archive for one in DATA_SETS for version in one.versions if version.archive]
    names = {archive.url.removeprefix("https://www.cs.toronto.edu/~kriz/") for archive in archives}
    assert names == {f"cifar-{n}-{version}.tar.gz" for n in (10, 100) for version in ("binary", "python")}
