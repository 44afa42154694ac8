"""A web site in this process that serves one archive, well or badly."""

import hashlib
import io
import random
import tarfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from evenstep_research.data import Archive, OfficialFile, Version
from evenstep_research.data.official import Records

FILES = {f"tiny/{name}": random.Random(name).randbytes(120_000) for name in ("train.bin", "test.bin")}


def packed(files: Mapping[str, bytes] = FILES, *, also: tarfile.TarInfo | None = None) -> bytes:
    """Return a compressed archive."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        if also is not None:
            archive.addfile(also)
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return out.getvalue()


@dataclass
class Site:
    """What is served; `cuts` are after how many bytes the first answers break off, `codes` their statuses."""

    content: bytes
    ranges: bool = True
    length: bool = True
    shift: int = 0
    cuts: list[int] = field(default_factory=list)
    codes: list[int] = field(default_factory=list)
    asked: list[str | None] = field(default_factory=list)
    url: str = ""

    def version(self, *, size: int | None = None, md5: str | None = None) -> Version:
        """Return a version whose official archive this is, or would be."""
        archive = Archive(
            self.url,
            hashlib.md5(self.content).hexdigest() if md5 is None else md5,
            len(self.content) if size is None else size,
        )
        digests = {name: f"sha1:{hashlib.sha1(content).hexdigest()}" for name, content in FILES.items()}
        train, test = (OfficialFile(name, 100, digests[f"tiny/{name}"]) for name in ("train.bin", "test.bin"))
        return Version("binary", "tiny", Records(), 10, (train,), (test,), archive)


@contextmanager
def serving(site: Site) -> Iterator[Site]:
    """Serve a site at `site.url`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = self.headers["Range"]
            site.asked.append(asked)
            if self.path == "/moved/tiny.tar.gz":
                self.send_response(302)
                self.send_header("Location", site.url)
                self.end_headers()
                return
            if site.codes and (code := site.codes.pop(0)) != 200:
                self.send_error(code)
                return
            start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and site.ranges else 0
            content = site.content[start:]
            self.send_response(206 if asked and site.ranges else 200)
            if asked and site.ranges:
                whole = len(site.content)
                self.send_header("Content-Range", f"bytes {start + site.shift}-{whole - 1}/{whole}")
            if site.length:
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: site.cuts.pop(0) if site.cuts else None])

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    site.url = f"http://127.0.0.1:{server.server_port}/tiny.tar.gz"
    try:
        yield site
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
