"""Where trials run: in this process and its workers, or on a cluster."""

from evenstep.search.engines.local import LocalEngine
from evenstep.search.engines.protocol import Engine

__all__ = ["Engine", "LocalEngine"]
