"""Which nodes are there to take part. Flower connects them; here they are only counted and waited for."""

from __future__ import annotations

import time

from flwr.common import log
from flwr.serverapp import Grid

from fedmap.errors import UnreachableError

_PAUSE_SECONDS = 0.5


def wait_for_nodes(grid: Grid, least: int, seconds: float) -> tuple[int, ...]:
    """The nodes that are connected once there are `least` of them; `UnreachableError` after `seconds`."""
    ends = time.monotonic() + seconds
    told = -1
    while len(nodes := sorted(grid.get_node_ids())) < least:
        if len(nodes) != told:
            log(20, "waiting for nodes: %d of %d are connected", len(nodes), least)
            told = len(nodes)
        if time.monotonic() >= ends:
            raise UnreachableError(
                f"{len(nodes)} node(s) are connected, and {least} are expected",
                hint="start the missing SuperNodes, check that each is registered, or expect fewer sites",
            )
        time.sleep(_PAUSE_SECONDS)
    return tuple(nodes)
