"""Join a Ray cluster, or start a private one on this machine that prints nothing to standard output."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from evenstep.errors import InputError, SearchError

_LOOPBACK = "127.0.0.1"
# On Linux, Ray replaces a loopback address by the machine's unless it knows that there are no other machines.
_ALONE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"


class RayCluster:
    """A connection to Ray that stops only a cluster that it started.

    Without an address, and if the environment variable RAY_ADDRESS names none, a cluster is started on this machine,
    which listens only on the loopback interface. What Ray's threads print goes to standard error, because a program may
    read standard output.
    """

    def __init__(self, address: str | None = None) -> None:
        self.address = address
        self._began = False
        self._before: str | None = None
        self._stdout: Any = None

    def join(self) -> Any:
        """Connect, and return the module ray."""
        ray = _ray()
        if ray.is_initialized():
            return ray
        options: dict[str, Any] = {"address": self.address}
        if self.address is None and not os.environ.get("RAY_ADDRESS"):
            options |= {"include_dashboard": False, "_node_ip_address": _LOOPBACK}
            self._before = os.environ.get(_ALONE)
            os.environ[_ALONE] = "0"
            # For a ray that is imported already and has read the variable.
            ray._private.ray_constants.ENABLE_RAY_CLUSTER = False
        self._began = True
        self._stdout, sys.stdout = sys.stdout, _StdoutForUs(sys.stdout)
        try:
            ray.init(log_to_driver=False, logging_level="ERROR", **options)
        except BaseException as error:
            self.leave()
            if isinstance(error, Exception):
                reason = " ".join(str(error).split())[:300]
                raise InputError(
                    f"Ray cannot be started or joined (address {self.address}): {reason}; check the address, or train "
                    "with the engine 'local'"
                ) from error
            raise
        return ray

    def answers(
        self, function: Callable[..., Any], tasks: Sequence[tuple[Any, ...]], *, retries: int, remedy: str, **needs: int
    ) -> Iterator[tuple[int, Any]]:
        """Yield the place of every task and what the function returns for it, in the order in which they end.

        A task whose worker dies is tried again up to `retries` times. `needs` says what each takes, such as `num_cpus`.
        What the function raises is raised as it was there.
        """
        ray = self.join()
        work = ray.remote(max_retries=retries, **needs)(function)
        waiting = {work.remote(*task): place for place, task in enumerate(tasks)}
        while waiting:
            done, _ = ray.wait(list(waiting))
            for reference in done:
                try:
                    answer = ray.get(reference)
                except ray.exceptions.RayTaskError as error:
                    raise error.cause if isinstance(error.cause, Exception) else error from None
                except ray.exceptions.RayError as error:
                    reason = " ".join(str(error).split())[:200]
                    raise SearchError(
                        f"a worker was lost {retries + 1} times ({type(error).__name__}: {reason}); {remedy}"
                    ) from error
                yield waiting.pop(reference), answer

    def leave(self) -> None:
        """Disconnect, and stop the cluster if it was started here."""
        if not self._began:
            return
        self._began = False
        _ray().shutdown()
        if isinstance(sys.stdout, _StdoutForUs) and sys.stdout.stream is self._stdout:
            sys.stdout = self._stdout
        if self._before is None:
            os.environ.pop(_ALONE, None)
        else:
            os.environ[_ALONE] = self._before


class _StdoutForUs:
    """Standard output, except that what Ray's threads write goes to standard error."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """Write a text to the stream it belongs to."""
        of_ray = threading.current_thread().name.startswith("ray_")
        return int((sys.stderr if of_ray else self.stream).write(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise InputError(
            "the engine 'ray' needs the package ray; install it with pip install 'evenstep[ray]'"
        ) from None
    return ray
