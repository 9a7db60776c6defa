from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Union, final

from numpy.typing import NDArray
from typing_extensions import Self

VERSION: str

@final
class Set:
    """CPUs and memory nodes as one thing: Set("node:0 + mem:2"), with | & - ~ and comparisons.

    ValueError: a text that cannot be read or names what is not there, marked where it is wrong.
    """

    def __new__(cls, text: str) -> Self: ...
    @property
    def cpus(self) -> list[int]:
        """CPUs that this process may use of it, ascending."""
    @property
    def nodes(self) -> list[int]:
        """Nodes whose memory this process may use of it, by the kernel's numbers, ascending."""
    @property
    def left_out(self) -> list[str]:
        """A sentence for each thing that cpuset or affinity leave out of it."""
    def __or__(self, other: Set, /) -> Set: ...
    def __and__(self, other: Set, /) -> Set: ...
    def __sub__(self, other: Set, /) -> Set: ...
    def __invert__(self) -> Set: ...
    def __le__(self, other: Set, /) -> bool: ...
    def __lt__(self, other: Set, /) -> bool: ...
    def __ge__(self, other: Set, /) -> bool: ...
    def __gt__(self, other: Set, /) -> bool: ...
    def __bool__(self) -> bool: ...

_On = Union[Set, str]

@final
class Memory:
    """Bytes in a set, zero at first; freed with the last array on them (numpy.asarray(memory))."""

    def __new__(
        cls,
        nbytes: int,
        on: _On,
        memory: str | None = None,
        pages: str | None = None,
        populate: bool = False,
    ) -> Self: ...
    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def __array_interface__(self) -> dict[str, Any]: ...
    def __len__(self) -> int: ...

_Array = Union[NDArray[Any], Memory]

@final
class Residency:
    """Where the pages of an array are."""

    @property
    def nodes(self) -> dict[int, int]:
        """Pages of 4 KiB by node."""
    @property
    def absent(self) -> int:
        """Pages that are not in memory: never written to, or swapped out."""
    @property
    def astray(self) -> int:
        """Pages on a node that the policy of their address does not name."""
    @property
    def huge(self) -> int | None:
        """Pages that are parts of huge pages; None before Linux 6.7."""
    @property
    def pages(self) -> int:
        """All pages."""

def residency(array: _Array) -> Residency: ...
def nodes_by_page(array: _Array) -> bytes: ...
def bind_range(
    array: _Array, on: _On, memory: str | None = None, move_pages: bool = False
) -> None: ...

@final
class BoundThread:
    """A thread that is bound, until undo() or the end of a with block."""

    def undo(self) -> None:
        """Gives the thread back what it had; a second call does nothing. RuntimeError in another
        thread."""
    def __enter__(self) -> BoundThread: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

def bind_thread(on: _On, memory: str | None = None) -> BoundThread:
    """Binds the calling thread, and threads that it starts from now on, to a set: it runs on its
    CPUs alone and takes memory by a policy of hither.empty() without stride or home node; None is
    "bind" where the set has memory. A set without CPUs changes nothing of CPUs."""

@final
class Places:
    def __new__(
        cls, on: _On, threads: str = "fill", count: int | None = None, memory: str | None = None
    ) -> Self: ...
    @property
    def count(self) -> int: ...
    def cpu(self, index: int) -> int | None: ...
    def bind(self, index: int) -> BoundThread: ...

@final
class Moved:
    """What became of a move."""

    @property
    def status(self) -> str:
        """'done', 'failed' (a page was refused, or an access ended it) or 'cancelled'."""
    @property
    def backend(self) -> str | None:
        """Who carried it out; None where the mover is closed."""
    @property
    def moved(self) -> int:
        """Pages of 4 KiB now on the target that were elsewhere; of a copy, pages written to."""
    @property
    def already_there(self) -> int: ...
    @property
    def refused(self) -> dict[str, int]:
        """Pages that stayed where they were, by reason."""
    @property
    def bytes(self) -> int:
        """Bytes copied."""
    @property
    def queue_ns(self) -> int:
        """Time from submission until it was begun."""
    @property
    def move_ns(self) -> int:
        """Time that it took."""
    @property
    def stall_ns(self) -> int:
        """Time that threads waited for pages on their way."""

@final
class Move:
    """A move that was submitted. Its arrays live until it is finished."""

    def done(self) -> bool:
        """Is it finished, whether or not it succeeded? Does not wait."""
    def wait(self, timeout: float | None = None) -> Moved:
        """What became of it, when it is finished. TimeoutError after so many seconds; None waits
        for ever. Other threads of Python run meanwhile."""
    def cancel(self) -> bool:
        """Cancels it if it has not begun. True: it will end as 'cancelled' and has not run."""

@final
class Mover:
    """Moves arrays to other nodes, and copies arrays, while the program goes on.

    workers: threads that move, 1 to 256. capacity: moves that may be under way, 1 to 32768.
    copiers: threads that share a copy of 1 MiB or more.
    """

    def __new__(cls, workers: int = 1, capacity: int = 256, copiers: int = 1) -> Self: ...
    @property
    def backends(self) -> dict[str, str | None]:
        """Which backends serve, and why the others do not: None, or a sentence."""
    def migrate(self, array: _Array, to: _On | int, race: str = "recover") -> Move:
        """Has the pages that an array has to itself moved to a node: a set with memory of one, its
        text, or the node's number. The array stays where it is for the program. race says what an
        access to a page on its way does: it goes on at once ("recover", "fail"; the latter ends the
        move) or waits ("block")."""
    def replicate(self, source: _Array, target: _Array) -> Move:
        """Has the bytes of one array copied to another of as many bytes. Neither may be written to
        meanwhile, and the target not be read, by who minds which bytes it sees."""
    def close(self) -> None:
        """Ends it when all that was submitted has run; a second call does nothing."""
    def __enter__(self) -> Mover: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

@final
class Streamed:
    """What a run of a stream did."""

    @property
    def blocks(self) -> int:
        """Blocks computed: all of them."""
    @property
    def fast_blocks(self) -> int:
        """Those computed from fast memory."""
    @property
    def late_fills(self) -> int:
        """Those computed from slow memory while they were being filled: nothing else was left."""
    @property
    def failed_fills(self) -> int: ...
    @property
    def failed_returns(self) -> int:
        """Results that the workers failed to bring back, so that the run did."""
    @property
    def copied_bytes(self) -> int:
        """Bytes that the workers copied."""
    @property
    def copying_ns(self) -> int:
        """Time they copied, summed over copies."""
    @property
    def overlap(self) -> float:
        """Share of that time in which computing went on, too; 1 where nothing was copied."""
    @property
    def hit_share(self) -> float:
        """Share of blocks computed from fast memory."""
    @property
    def elapsed_ns(self) -> int:
        """From the first block to the last result in place."""
    @property
    def decision(self) -> str:
        """What the stream holds of fast memory now: 'undecided', 'plain' or 'through'."""
    @property
    def gain(self) -> float | None:
        """The worst comparison of the last try: how many times as fast fast memory is; None: nothing was compared."""
    @property
    def buffers(self) -> int:
        """Buffers that the stream has."""

@final
class BufferStream:
    def __new__(
        cls,
        fast: NDArray[Any],
        buffers: int,
        cache_bytes: int,
        results: str,
        adapt: str,
        workers: int,
        copiers: int,
    ) -> Self: ...
    def run(
        self,
        inputs: Sequence[NDArray[Any]],
        outputs: Sequence[NDArray[Any]],
        element_bytes: tuple[int, int],
        length: int,
        block: int,
        part: Callable[[int, int, int, bool, list[int | None], list[int | None]], None],
    ) -> Streamed: ...
    def close(self) -> None: ...

@final
class ReplicatedView:
    @property
    def epoch(self) -> int: ...
    @property
    def is_local(self) -> bool: ...
    @property
    def __array_interface__(self) -> dict[str, Any]: ...

@final
class ReplicatedBytes:
    def __new__(
        cls,
        source: NDArray[Any],
        budget: int | None,
        chunk: int,
        readers: int,
        copies: int,
        interleave: bool,
        huge: bool,
    ) -> Self: ...
    def read(self, place: int | None = None) -> ReplicatedView: ...
    def write(self, offset: int, source: NDArray[Any], timeout: float | None = None) -> int: ...
    def refresh(self, timeout: float | None = None) -> tuple[int, float, list[str]]: ...
    def collapse(self, timeout: float | None = None) -> None: ...
    def keep(self, seconds: float) -> None: ...
    def report(self) -> str: ...
    def figures(self) -> dict[str, Any]: ...

@final
class Reached:
    """A threshold that was reached: by a grain of an area, or by a sum."""

    @property
    def area(self) -> int | None: ...
    @property
    def grain(self) -> int | None: ...
    @property
    def sum(self) -> int | None: ...
    @property
    def node(self) -> int:
        """Node of whoever asked last."""

@final
class Monitor:
    """Counts which node's CPUs ask for which part of arrays: by the laboratory's device where there is one and this
    process is root's, else by samples of the PMU, which are estimates. ValueError: nothing here counts, with each
    reason. hither_monitor_open(3) says what counts and what does not."""

    def __new__(cls, *, samples: bool = False) -> Self: ...
    @property
    def limits(self) -> str:
        """What counts, and what it leaves out."""
    @property
    def is_exact(self) -> bool: ...
    def add_area(
        self,
        array: _Array,
        *,
        grain: int = 4096,
        types: str | Sequence[str] | None = None,
        directions: str | Sequence[str] | None = None,
        node: int | None = None,
        threshold: int = 0,
    ) -> int:
        """Watches an array, `grain` bytes together; its number. `types` are of "read", "write", "prefetch",
        "prefetch_write", "write_back", "transfer", "transfer_write", "ownership", "fills" (the default), "transfers" and
        "all"; `directions` of "inbound", "outbound", "local" and "remote", as seen from `node` or any."""
    def add_sum(
        self,
        areas: Sequence[int],
        *,
        types: str | Sequence[str] | None = None,
        threshold: int = 0,
    ) -> int:
        """Counts what areas count and is of these types; its number."""
    def start(self) -> None:
        """Counts from 0 on, where the pages are now."""
    def stop(self) -> None: ...
    def read_area(self, area: int) -> tuple[dict[int, list[int]], int]:
        """By node the counts of each grain; and how many pages were not in memory at the start or have moved since."""
    def read_sum(self, sum: int) -> dict[int, int]: ...
    def wait(self, timeout: float | None = None) -> Reached | None:
        """Waits for a threshold that was not told yet; None when the time, in seconds, is over."""
    def totals(self) -> dict[str, Any] | None:
        """Packets between nodes, transactions with memory and floating-point operations of the whole machine since the
        start; None where samples do not tell."""
    def close(self) -> None: ...
    def __enter__(self) -> Monitor: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

def opt_out() -> None:
    """Has the daemon leave this process alone until it ends, and children that it makes from now on.
    ConnectionRefusedError: no daemon answers at $HITHER_SOCKET, or /run/hither/control.sock.
    PermissionError: it refuses."""

def opt_in() -> None:
    """Takes opt_out() back, and lets targets with opt_in = true take this process. PermissionError
    also where HITHER=off was in the environment, or the control group says so."""

def declare(
    memory: NDArray[Any] | Memory,
    hint: Literal["hot", "cold", "pin_fast", "pin_slow"] | None,
) -> None:
    """Tells the daemon what an array is for, where its policy is tiers: "hot" and "cold" are expectations, which
    count for 10 s like evidence; "pin_fast" and "pin_slow" hold until None takes them back. The pages that lie
    wholly within count. Errors as of opt_out()."""
