"""Exact path moments: how many paths there are and how deep they are, without enumerating them (`eq:lr_dag`)."""

from __future__ import annotations

from dataclasses import dataclass

from evenstep.graph.model import Graph


@dataclass(frozen=True, slots=True)
class PathMoments:
    """Hold the sums of powers of path depths: `count`, `m1`, `m2`, `m3` sum L_p^0 to L_p^3 over all paths p."""

    count: int
    m1: int
    m2: int
    m3: int

    def shifted(self, depth: int) -> PathMoments:
        """Return the moments of the same paths, each deeper by `depth`, by binomial expansion of (L_p + depth)^k.

        >>> PathMoments(1, 1, 1, 1).shifted(1)
        PathMoments(count=1, m1=2, m2=4, m3=8)
        """
        if depth == 0:
            return self
        n, m1, m2, m3 = self.count, self.m1, self.m2, self.m3
        return PathMoments(
            n,
            m1 + depth * n,
            m2 + 2 * depth * m1 + depth**2 * n,
            m3 + 3 * depth * m2 + 3 * depth**2 * m1 + depth**3 * n,
        )


def path_moments(graph: Graph) -> PathMoments:
    """Return the exact moments over all paths from an input to an output, in one topological pass.

    It takes time linear in the number of edges; Python integers keep counts of hundreds of digits exact.
    """
    graph = graph.live()
    # Add up the sources' moments by edge depth and shift each sum once: most edges share one depth, and a shift costs
    # ten times as much as an addition.
    totals: dict[str, dict[int, list[int]]] = {vertex.name: {} for vertex in graph.vertices}
    for name in graph.inputs:
        totals[name][0] = [1, 0, 0, 0]
    moments: dict[str, PathMoments] = {}
    outgoing = graph.outgoing
    for vertex in graph.vertices:
        joined = _joined(totals.pop(vertex.name))
        moments[vertex.name] = joined
        count, m1, m2, m3 = joined.count, joined.m1, joined.m2, joined.m3
        for edge in outgoing[vertex.name]:
            slots = totals[edge.target]
            slot = slots.get(edge.depth)
            if slot is None:
                slots[edge.depth] = [count, m1, m2, m3]
            else:
                slot[0] += count
                slot[1] += m1
                slot[2] += m2
                slot[3] += m3
    return _added([moments[name] for name in graph.outputs])


def _joined(by_depth: dict[int, list[int]]) -> PathMoments:
    return _added([PathMoments(*sums).shifted(depth) for depth, sums in by_depth.items()])


def _added(parts: list[PathMoments]) -> PathMoments:
    return PathMoments(
        sum(p.count for p in parts),
        sum(p.m1 for p in parts),
        sum(p.m2 for p in parts),
        sum(p.m3 for p in parts),
    )
