"""Streams: numpy's side."""

from __future__ import annotations

import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, Literal, Sequence, Union

import numpy as np

from ._arrays import empty
from ._hither import BufferStream, Memory, Set, Streamed

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Bytes of a block of the larger elements, where nobody says how large a block is.
BLOCK_BYTES = 256 << 10


class StreamPart:
    """A part of the arrays, to be computed. Its views end with the call that it is passed to."""

    __slots__ = ("block", "first", "inputs", "is_fast", "outputs")

    def __init__(
        self,
        block: int,
        first: int,
        inputs: tuple[memoryview, ...],
        outputs: tuple[memoryview, ...],
        is_fast: bool,
    ) -> None:
        #: The block's number.
        self.block = block
        #: Position in the arrays of the part's first element.
        self.first = first
        #: The part of each input, read-only, with the input's type of elements.
        self.inputs = inputs
        #: The part of each output.
        self.outputs = outputs
        #: Is the input in fast memory?
        self.is_fast = is_fast

    def __len__(self) -> int:
        """How many elements it has."""
        return len((self.inputs or self.outputs)[0])


class Stream:
    """Computes over arrays in slow memory, from fast memory that workers fill ahead.

    >>> import numpy as np, hither
    >>> b, c = np.arange(100_000.0), np.ones(100_000)
    >>> a = np.empty(100_000)
    >>> def triad(part):
    ...     b, c = map(np.asarray, part.inputs)
    ...     np.add(b, 3 * c, out=np.asarray(part.outputs[0]))
    >>> with hither.Stream("machine", 1 << 20, block=10_000) as stream:
    ...     stream.run(triad, [b, c], [a]).blocks
    10
    >>> float(a[7])
    10.0

    Workers copy without the interpreter's lock, while Python computes one part at a time: a team of
    threads would wait for each other at every part, so that there is none.

    fast: a Set or its text, of whose nodes ``nbytes`` of fast memory are allocated, as in "tier:0"; or an
        array (of :func:`empty`) or Memory that is fast memory: it is the stream's as long as that lives.
    block: elements of a block; None, 256 KiB of the larger elements.
    buffers: most buffers, of a block of each array; fewer where fast memory has no room for them.
    cache_bytes: bytes of the last-level cache: so many buffers more as exceed it by a quarter.
    results: "in_place", straight to the arrays; "fast", through fast memory, where each element must be
        written; "fast_updated", the same for functions that read results.
    adapt: "measure", fast memory is used where that is faster; "always"; "never".
    workers: threads that copy, 1 to 256. copiers: threads that share a copy of 1 MiB or more.

    ValueError: what cannot be; OSError: the system has no thread or memory to give.
    """

    def __init__(
        self,
        fast: Union[Set, str, NDArray, Memory],
        nbytes: int = 16 << 20,
        *,
        block: int | None = None,
        buffers: int = 8,
        cache_bytes: int = 0,
        results: Literal["in_place", "fast", "fast_updated"] = "in_place",
        adapt: Literal["measure", "always", "never"] = "measure",
        workers: int = 1,
        copiers: int = 1,
    ) -> None:
        if isinstance(fast, (Set, str)):
            fast = empty(nbytes, "u1", on=fast, populate=True)
        elif isinstance(fast, Memory):
            fast = np.asarray(fast)
        if block is not None and block < 1:
            raise ValueError(f"block is {block}: a block has 1 element at least")
        self._fast: NDArray = _flat("fast", fast).view("u1")
        self._block = block
        self._stream = BufferStream(
            self._fast, buffers, cache_bytes, results, adapt, workers, copiers
        )

    def run(
        self,
        compute: Callable[[StreamPart], Any],
        inputs: Sequence[Any] = (),
        outputs: Sequence[Any] = (),
    ) -> Streamed:
        """Calls ``compute`` for each part of the arrays, each element in one of them, in about, but not
        exactly, ascending order; returns when all results are in the arrays.

        inputs, outputs: numpy arrays, or other buffers, in one piece (C order), of as many elements each.
            Elements of all inputs have one size, and those of all outputs. No output overlaps another array.

        ``part.inputs`` and ``part.outputs`` are memoryviews, of which numpy.asarray() makes arrays. They
        are released when ``compute`` returns: who keeps one gets ValueError. Where an array or another
        view of a part is kept, the run ends with BufferError: copy what is to be kept.

        An exception of ``compute`` ends the run, and is raised when no copy is under way any more; outputs
        hold values from before and after then. RuntimeError: the stream runs already, is closed, or is
        that of the parent process.
        """
        given = [_flat(f"inputs[{number}]", one) for number, one in enumerate(inputs)]
        taken = [_flat(f"outputs[{number}]", one) for number, one in enumerate(outputs)]
        if not given and not taken:
            raise ValueError("there is no array: pass inputs or outputs")
        length = (given or taken)[0].size
        for name, arrays in ("inputs", given), ("outputs", taken):
            for number, one in enumerate(arrays):
                if one.size != length:
                    raise ValueError(
                        f"{name}[{number}] has {one.size} elements instead of {length}: pass arrays of one length"
                    )
        sizes = _size("inputs", given), _size("outputs", taken)
        block = self._block or max(1, BLOCK_BYTES // max(sizes))

        def part(
            number: int,
            first: int,
            count: int,
            is_fast: bool,
            sources: list[int | None],
            targets: list[int | None],
        ) -> None:
            views: list[memoryview] = []
            pieces: list[weakref.ref[NDArray]] = []

            def view(array: NDArray, at: int | None) -> memoryview:
                if at is None:
                    piece = array[first : first + count]
                else:
                    piece = self._fast[at : at + count * array.itemsize].view(array.dtype)
                pieces.append(weakref.ref(piece))
                views.append(memoryview(piece))
                return views[-1]

            told = StreamPart(
                number,
                first,
                tuple(view(array, at).toreadonly() for array, at in zip(given, sources)),
                tuple(view(array, at) for array, at in zip(taken, targets)),
                is_fast,
            )
            views.extend(told.inputs)
            try:
                compute(told)
            except BaseException:
                _release(views)
                raise
            if not _release(views) or any(piece() is not None for piece in pieces):
                raise BufferError(
                    f"a view or an array on part {first} to {first + count} was kept: copy what is to be "
                    "kept, by bytes(view) or numpy.array(view)"
                )

        return self._stream.run(given, taken, sizes, length, block, part)

    def close(self) -> None:
        """Ends the workers; a second call does nothing."""
        self._stream.close()

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _flat(name: str, given: Any) -> NDArray:
    """The elements of a buffer, in one row."""
    # Not of a list: numpy would make an array of its own, and results would be lost.
    array = np.asarray(given if isinstance(given, np.ndarray) else memoryview(given))
    if array.dtype.hasobject:
        raise ValueError(f"{name} has dtype {array.dtype}, of references to objects, which live elsewhere")
    if not array.flags.c_contiguous:
        raise ValueError(f"{name} is not in one piece in C order: pass numpy.ascontiguousarray() of it")
    flat = array.reshape(-1)
    memoryview(flat).release()  # dtypes that no buffer can have are refused before anything is computed
    return flat


def _size(name: str, arrays: list[NDArray]) -> int:
    """Bytes of an element of all."""
    sizes = {array.itemsize for array in arrays}
    if len(sizes) > 1:
        raise ValueError(f"elements of {name} have {sorted(sizes)} bytes: pass arrays of one size")
    return sizes.pop() if sizes else 0


def _release(views: list[memoryview]) -> bool:
    """Ends views; False: an array on one lives."""
    good = True
    for view in views:
        try:
            view.release()
        except BufferError:
            good = False
    return good
