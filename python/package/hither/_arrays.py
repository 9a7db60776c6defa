"""Arrays of numpy in resource sets."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any, Literal, Sequence, SupportsIndex, Union

import numpy as np

from . import _hither
from ._hither import Memory, Residency, Set

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

#: A resource set or its text.
On = Union[Set, str]


def empty(
    shape: SupportsIndex | Sequence[SupportsIndex],
    dtype: DTypeLike = float,
    *,
    on: On,
    memory: str | None = None,
    pages: str | None = None,
    populate: bool = False,
    order: Literal["C", "F"] = "C",
) -> NDArray:
    """An array whose pages come from the nodes of a set; its elements are 0.

    A page comes into being on its node when it is first written to, whichever thread does so; with
    ``populate`` all do at once. The memory is freed with the last array on it.

    on: a Set or its text, as in "tier:0" or "node:0 + mem:2".
    memory: how nodes are chosen: "bind" (where the set has memory, this is what None means),
        "preferred", "striped", "striped:16" (16 pages of a node at a time), "weighted", "local",
        "remote", "float" (what None means else); "bind@2" and "preferred@2" begin at node 2.
    pages: "small" (4 KiB), "huge" (2 MiB where there are any free) or None, as the system chooses.
    order: "C" or "F".

    ValueError: a text or a shape that cannot be, more bytes than the nodes have; OSError: the kernel
    refuses it.
    """
    dtype = np.dtype(dtype)
    if dtype.hasobject:
        raise ValueError(f"dtype {dtype} holds references to objects, which live elsewhere")
    if order not in ("C", "F"):
        raise ValueError(f"order is 'C' or 'F', not {order!r}")
    lengths = _lengths(shape)
    nbytes = math.prod(lengths) * dtype.itemsize
    if nbytes > np.iinfo(np.intp).max:
        raise ValueError(f"an array of shape {lengths} and dtype {dtype} is too large to address")
    # Of no bytes there is nothing to place, but what is asked for is looked at all the same.
    block = Memory(max(nbytes, 1), on, memory, pages, populate)
    return np.asarray(block)[:nbytes].view(dtype).reshape(lengths, order=order)


def zeros(
    shape: SupportsIndex | Sequence[SupportsIndex],
    dtype: DTypeLike = float,
    *,
    on: On,
    memory: str | None = None,
    pages: str | None = None,
    populate: bool = False,
    order: Literal["C", "F"] = "C",
) -> NDArray:
    """The same as :func:`empty`, whose elements are 0 anyhow: for programs that say what they need."""
    return empty(shape, dtype, on=on, memory=memory, pages=pages, populate=populate, order=order)


def where(array: NDArray | Memory) -> Residency:
    """Where the pages of an array are: ``nodes`` (pages of 4 KiB by node), ``absent``, ``astray``,
    ``huge`` and ``pages``.

    Pages that the array shares with other objects count too. None is brought into memory.
    """
    return _hither.residency(array)


def nodes_by_page(array: NDArray | Memory) -> NDArray[np.int32]:
    """The node of each page of an array in order, -1 for one that is not in memory."""
    return np.frombuffer(_hither.nodes_by_page(array), dtype=np.int32)


def bind_range(
    array: NDArray | Memory,
    on: On,
    memory: str | None = None,
    *,
    move_pages: bool = False,
) -> None:
    """Gives an array that exists a set and a memory policy, as :func:`empty` takes them.

    Only pages that the array has to itself are bound: of an array that numpy made itself a page at
    each end may be left out. With ``move_pages`` pages that are in memory go where the policy wants
    them; :func:`where` tells how many stayed.
    """
    _hither.bind_range(array, on, memory, move_pages)


def _lengths(shape: Any) -> tuple[int, ...]:
    try:
        lengths = tuple(map(operator.index, shape if np.iterable(shape) else (shape,)))
    except TypeError:
        raise TypeError(f"shape is a number or a tuple of numbers, not {shape!r}") from None
    if any(length < 0 for length in lengths):
        raise ValueError(f"shape {lengths} has a negative length")
    return lengths
