"""Puts numpy arrays and threads on parts of a NUMA machine, and moves arrays without waiting.

>>> import hither
>>> a = hither.empty((1000, 1000), on="machine", memory="striped")
>>> a[:] = 1
>>> hither.where(a).absent
0

The manual is docs/python.md of the repository.
"""

from ._arrays import bind_range, empty, nodes_by_page, where, zeros
from ._hither import VERSION as __version__
from ._hither import (
    BoundThread,
    Memory,
    Monitor,
    Move,
    Moved,
    Mover,
    Reached,
    Residency,
    Set,
    Streamed,
    bind_thread,
    declare,
    opt_in,
    opt_out,
)
from ._replicated import Built, Replicated
from ._stream import Stream, StreamPart
from ._team import Team

__all__ = [
    "BoundThread",
    "Built",
    "Memory",
    "Monitor",
    "Move",
    "Moved",
    "Mover",
    "Reached",
    "Replicated",
    "Residency",
    "Set",
    "Stream",
    "StreamPart",
    "Streamed",
    "Team",
    "bind_range",
    "bind_thread",
    "declare",
    "empty",
    "nodes_by_page",
    "opt_in",
    "opt_out",
    "where",
    "zeros",
]
