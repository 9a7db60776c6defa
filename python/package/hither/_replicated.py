"""Replicated arrays: numpy's side."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, NamedTuple, SupportsIndex

import numpy as np

from ._hither import ReplicatedBytes

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


class Built(NamedTuple):
    """What :meth:`Replicated.refresh` did."""

    #: Bytes copied.
    bytes: int
    #: How long it took.
    seconds: float
    #: What was refused and why, a sentence each; readers use the master there.
    refused: list[str]


class Replicated:
    """One logical array with a copy on each node.

    Threads read the copy of the node that they run on, and write by epochs: a reader has one whole
    epoch, and never finds an earlier one again.

    >>> import numpy as np, hither
    >>> table = hither.Replicated(np.arange(1000))
    >>> table.refresh().refused
    []
    >>> int(table.read()[7])
    7
    >>> table.write([70], start=7)
    2
    >>> int(table.read()[7])
    70

    values: the first epoch; its shape and dtype stay.
    budget: most bytes of all copies; None, as much as nodes have free.
    chunk: bytes that are copied, and stale, at once: a power of two from 64 KiB; None chooses.
    readers: arrays of :meth:`read` that may live at one time, 1 to 16384.
    copies: so many places on the first node, to try a program on a machine with one; None, a place
        on each node.
    interleave: the master is spread over all nodes, and each gets a copy.
    huge: pages of 2 MiB for master and copies, where there are any free.
    keep: a thread makes copies, makes them again after writes and gives them up where writes
        dominate, at least each so many seconds; None, only :meth:`refresh` makes them.

    ValueError: what cannot be; MemoryError: no memory.
    """

    def __init__(
        self,
        values: ArrayLike,
        *,
        budget: int | None = None,
        chunk: int | None = None,
        readers: int = 256,
        copies: int | None = None,
        interleave: bool = False,
        huge: bool = False,
        keep: float | None = None,
    ) -> None:
        array = np.ascontiguousarray(values)
        if array.dtype.hasobject:
            raise ValueError(f"dtype {array.dtype} holds references to objects, which live elsewhere")
        if not array.nbytes:
            raise ValueError(f"an array of shape {array.shape} has no bytes: give a larger one")
        #: As that of numpy's arrays.
        self.shape: tuple[int, ...] = np.shape(values)
        #: The same.
        self.dtype: np.dtype = array.dtype
        self._bytes = ReplicatedBytes(
            array.reshape(-1).view("u1"), budget, chunk or 0, readers, copies or 0, interleave, huge
        )
        if keep is not None:
            self._bytes.keep(keep)

    def read(self, place: int | None = None) -> NDArray:
        """The current epoch as an array that cannot be written: the copy of the node that the thread
        runs on where it is complete, else the master. With ``place`` that of a place.

        The epoch is held until the last array on it is gone: keep none for long, as the second next
        :meth:`write` waits for it. TimeoutError never; ValueError: all ``readers`` are in use.
        """
        return np.asarray(self._bytes.read(place)).view(self.dtype).reshape(self.shape)

    def write(self, values: ArrayLike, start: SupportsIndex = 0, timeout: float | None = None) -> int:
        """Writes elements from ``start`` on along the first axis and publishes them as the next epoch,
        whose number is returned.

        TimeoutError: after so many seconds an array of an epoch before the current one still lives, or
        another thread writes. ValueError: they end behind the array.
        """
        first = operator.index(start)
        new = np.ascontiguousarray(values, dtype=self.dtype)
        row = self.shape[1:]
        if new.shape[1:] != row or new.ndim != max(len(self.shape), 1):
            raise ValueError(f"values of shape {new.shape} are no part of an array of shape {self.shape}")
        count = self.shape[0] if self.shape else 1
        if first < 0 or first + len(new) > count:
            raise ValueError(f"elements {first} to {first + len(new)} are not within 0 to {count}")
        if not new.nbytes:
            raise ValueError("there are no values to write: give one at least")
        offset = first * int(np.prod(row, dtype=np.int64)) * self.dtype.itemsize
        return self._bytes.write(offset, new.reshape(-1).view("u1"), timeout)

    def refresh(self, timeout: float | None = None) -> Built:
        """Makes copies that are missing or stale, on all nodes at once. TimeoutError: as
        :meth:`write`."""
        return Built(*self._bytes.refresh(timeout))

    def collapse(self, timeout: float | None = None) -> None:
        """Gives all copies up, and their memory back. TimeoutError: an array on one still lives; the
        memory comes back with the next write."""
        self._bytes.collapse(timeout)

    def keep(self, seconds: float) -> None:
        """As the argument of the same name, from now on."""
        self._bytes.keep(seconds)

    @property
    def epoch(self) -> int:
        """The number of the current epoch; the first is 1."""
        return self._bytes.figures()["epoch"]

    @property
    def figures(self) -> dict[str, int | float | None]:
        """Figures of :meth:`report`: epoch, places, copies (of chunks), all_copies, copy_bytes,
        master_bytes, local_share."""
        return self._bytes.figures()

    def report(self) -> str:
        """What it did, and what was refused and why, in sentences."""
        return self._bytes.report()
