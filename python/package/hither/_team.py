"""Threads on the CPUs of a resource set."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Callable, Iterable, TypeVar, Union

from ._hither import Places, Set

T = TypeVar("T")


class Team:
    """Threads that each have a CPU of a set, and take memory from its nodes.

    on: a Set or its text; where it names no CPUs, all that may be used stand for it.
    threads: "fill" (close together), "round-robin:node" (apart; also package, domain, core) or
        "float" (each may run on all CPUs of the set).
    count: threads; None is one for each CPU. The thread after the last CPU gets the first again.
    memory: a policy of hither.empty() without stride or home node; None is "bind" where the set has
        memory.

    Threads start when there is work and live until close() or the end of a with block. Python runs
    one of them at a time, but for work that releases the interpreter's lock: numpy's on large
    arrays, the mover's waits.
    """

    def __init__(
        self,
        on: Union[Set, str],
        threads: str = "fill",
        count: int | None = None,
        memory: str | None = None,
    ) -> None:
        self._places = Places(on, threads, count, memory)
        self._numbers = itertools.count()
        self._own = threading.local()
        self._executor = ThreadPoolExecutor(self._places.count, thread_name_prefix="hither-team")

    @property
    def count(self) -> int:
        """Threads of the team."""
        return self._places.count

    @property
    def cpus(self) -> list[int | None]:
        """The CPU of each thread in order; None for threads that float."""
        return [self._places.cpu(index) for index in range(self.count)]

    def submit(self, function: Callable[..., T], /, *arguments: Any, **named: Any) -> Future[T]:
        """Calls a function in whichever thread is free next."""
        return self._executor.submit(self._call, function, arguments, named)

    def map(self, function: Callable[..., T], /, *iterables: Iterable[Any]) -> list[T]:
        """What the function returns for each of the arguments, in order, as map() does. The first
        exception is raised when all calls have ended."""
        futures = [self.submit(function, *arguments) for arguments in zip(*iterables)]
        return _results(futures)

    def run(self, function: Callable[[int], T], /) -> list[T]:
        """Calls the function once in each thread with the thread's number, all at a time, and
        returns what they return, in order of the numbers."""
        gate = threading.Barrier(self.count)

        def call() -> tuple[int, T]:
            # Whoever waits here holds its thread, so that each call gets another one.
            gate.wait()
            return self._own.index, function(self._own.index)

        def bound() -> tuple[int, T]:
            try:
                return self._call(call, (), {})
            except BaseException:
                # A thread that cannot be bound would keep the others waiting.
                gate.abort()
                raise

        futures = [self._executor.submit(bound) for _ in range(self.count)]
        return [result for _, result in sorted(_results(futures), key=lambda pair: pair[0])]

    def close(self) -> None:
        """Ends the threads when they have done what was submitted."""
        self._executor.shutdown()

    def __enter__(self) -> Team:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()

    def _call(self, function: Callable[..., T], arguments: Any, named: Any) -> T:
        if not hasattr(self._own, "index"):
            index = next(self._numbers) % self.count
            # Bound until it ends.
            self._places.bind(index)
            self._own.index = index
        return function(*arguments, **named)


def _results(futures: list[Future[T]]) -> list[T]:
    raised: BaseException | None = None
    results = []
    for future in futures:
        error = future.exception()
        # That others gave up says less than why.
        if error is None:
            results.append(future.result())
        elif raised is None or isinstance(raised, threading.BrokenBarrierError):
            raised = error
    if raised is not None:
        raise raised
    return results
