"""Download the official archives: resumed where they were cut off, verified, and unpacked whole or not at all."""

from __future__ import annotations

import gzip
import http.client
import posixpath
import shutil
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from evenstep.errors import InputError
from evenstep_research.data.files import digest, missing, verify_file
from evenstep_research.data.official import Archive, Version

_CHUNK = 1 << 16
_MOST_UNPACKED = 1 << 30
# The client is at fault, but the same request may pass later: time-out, too early, too many.
_PASSING = (408, 425, 429)


@dataclass(frozen=True)
class Fetched:
    """Where the files are, whether they were there before, and how many bytes came over the network."""

    folder: Path
    already_there: bool
    downloaded: int


class _DroppedError(Exception):
    """Report a download that ended early; what came so far is kept."""


def fetch(
    version: Version,
    directory: Path | str,
    *,
    url: str | None = None,
    attempts: int = 5,
    pause: float = 1.0,
    timeout: float = 30.0,
    progress: Callable[[int, int], None] | None = None,
) -> Fetched:
    """Download a version's archive into a folder and unpack it there.

    `url` is a mirror's; the checksum stays the official one. A download that is cut off is tried again after `pause`
    seconds, twice as long each time, and goes on where it was: `ARCHIVE.part` holds it, across calls too. `progress` is
    called with the bytes so far and in all.
    """
    archive, target = version.archive, Path(directory) / version.folder
    if archive is None:
        raise InputError(f"'{version.folder}' has no archive to download; get its files from their own site")
    if attempts < 1:
        raise InputError(f"attempts is {attempts}; give a whole number above 0")
    address = url or archive.url
    if urlsplit(address).scheme not in ("http", "https"):
        raise InputError(f"the address '{address}' is not of http or https; give another")
    if target.exists():
        _check_there(version, target)
        return Fetched(target, already_there=True, downloaded=0)
    part = target.parent / f"{posixpath.basename(urlsplit(archive.url).path)}.part"
    with _writing(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
    resumed = part.exists()
    download = _Download(address, archive, part, progress)
    download.run(attempts, pause, timeout)
    if resumed and digest(part, "md5") != archive.md5:
        # Its beginning was of something else: once more, from the start.
        part.unlink()
        download.run(attempts, pause, timeout)
    found = digest(part, "md5")
    if found != archive.md5:
        part.unlink()
        raise InputError(
            f"what '{address}' sent has the md5 {found}, not the official {archive.md5}; it was deleted, try again or "
            "give another address"
        )
    with _writing(target):
        try:
            _unpack(part, version, target)
        except InputError:
            part.unlink()
            raise
        part.unlink()
    return Fetched(target, already_there=False, downloaded=download.received)


def _check_there(version: Version, target: Path) -> None:
    absent = missing(version, target)
    if absent:
        raise InputError(f"'{target}' is there, but has no '{absent[0].name}'; move it away and fetch again")
    for file in version.files:
        verify_file(target / file.name, file)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(
            f"'{path}' cannot be written ({error.strerror or error}); free some room, or give another folder"
        ) from None


class _Download:
    """One archive on its way into its `.part`."""

    def __init__(self, address: str, archive: Archive, part: Path, progress: Callable[[int, int], None] | None) -> None:
        self.address, self.archive, self.part, self.progress = address, archive, part, progress
        self.received = 0

    def run(self, attempts: int, pause: float, timeout: float) -> None:
        """Receive until the part is whole."""
        for attempt in range(attempts):
            if attempt:
                time.sleep(pause * 2 ** (attempt - 1))
            try:
                self._receive(timeout)
                return
            except urllib.error.HTTPError as error:
                error.close()
                if error.code < 500 and error.code not in (*_PASSING, 416):
                    raise InputError(
                        f"'{self.address}' answers {error.code} ({error.reason}); give another address"
                    ) from None
                if error.code == 416:
                    self.part.unlink(missing_ok=True)  # it is no beginning of what is there
                reason = f"it answers {error.code} ({error.reason})"
            except (_DroppedError, OSError, http.client.HTTPException) as error:
                reason = str(error) or type(error).__name__
        kept = f"; {self.part.stat().st_size} bytes are kept to go on from" if self.part.exists() else ""
        times = "once" if attempts == 1 else f"{attempts} times"
        raise InputError(f"'{self.address}' failed {times}, at last since {reason}{kept}; try again later")

    def _receive(self, timeout: float) -> None:
        size = self.archive.size
        have = self.part.stat().st_size if self.part.exists() else 0
        if have > size:
            self.part.unlink()
            have = 0
        if have == size:
            return
        headers = {"User-Agent": "evenstep", "Accept-Encoding": "identity"}
        if have:
            headers["Range"] = f"bytes={have}-"
        request = urllib.request.Request(self.address, headers=headers)
        with urllib.request.urlopen(request, timeout=timeout) as response:
            if response.status != 206:
                have = 0  # the server knows no ranges and sends all of it
            elif not (response.headers["Content-Range"] or "").startswith(f"bytes {have}-"):
                self.part.unlink()
                raise _DroppedError("it sends another range than was asked for")
            offered = response.headers["Content-Length"]
            if offered is not None and have + int(offered) != size:
                raise InputError(
                    f"'{self.address}' offers {have + int(offered)} bytes, not the official {size}; "
                    "give another address"
                )
            with _writing(self.part):
                file = self.part.open("ab" if have else "wb")
            with file:
                while chunk := response.read(_CHUNK):
                    have += len(chunk)
                    if have > size:
                        break
                    with _writing(self.part):
                        file.write(chunk)
                        file.flush()
                    self.received += len(chunk)
                    if self.progress is not None:
                        self.progress(have, size)
        if have > size:
            self.part.unlink()
            raise InputError(f"'{self.address}' sends more than the official {size} bytes; give another address")
        if have < size:
            raise _DroppedError(f"it ended after {have} of {size} bytes")


def _unpack(part: Path, version: Version, target: Path) -> None:
    """Unpack a version's files beside the target, then rename their folder."""
    wanted = {f"{version.folder}/{file.name}": file.name for file in version.files}
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{version.folder}-") as staging:
        folder = Path(staging) / version.folder
        folder.mkdir()
        try:
            with tarfile.open(part, "r:gz") as archive:
                for member in archive:
                    _check_member(member)
                    name = wanted.pop(posixpath.normpath(member.name), None)
                    source = None if name is None else archive.extractfile(member)
                    if name is None or source is None:
                        continue
                    # Under our own name for it, so that no name, mode or link of the archive's is ever made.
                    with source, (folder / name).open("wb") as file:
                        shutil.copyfileobj(source, file)
        except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise InputError(f"the archive cannot be unpacked ({error}); it was deleted, fetch it again") from None
        if wanted:
            raise InputError(f"the archive lacks '{min(wanted)}'; it was deleted, fetch it again")
        folder.rename(target)


def _check_member(member: tarfile.TarInfo) -> None:
    path = PurePosixPath(member.name)
    what = None
    if path.is_absolute() or ".." in path.parts:
        what = "which leads out of its folder"
    elif not (member.isreg() or member.isdir()):
        what = "which is no plain file or folder"
    elif member.size > _MOST_UNPACKED:
        what = f"of {member.size} bytes"
    if what is not None:
        raise InputError(f"the archive holds '{member.name}', {what}; it was deleted, give another address")
