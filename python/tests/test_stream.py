"""Streams."""

import array
import gc
import os
import threading
import time

import numpy as np
import pytest

import hither

LENGTH = 100_500
BLOCK = 1000


def stream(**more):
    return hither.Stream("machine", 1 << 20, block=BLOCK, **{"adapt": "always", **more})


def triad(part):
    b, c = map(np.asarray, part.inputs)
    np.add(b, 3 * c, out=np.asarray(part.outputs[0]))
    time.sleep(1e-4)  # so that copies overtake


def update(part):
    a = np.asarray(part.outputs[0])
    a += np.asarray(part.inputs[0])
    time.sleep(1e-4)


@pytest.fixture
def arrays():
    return np.zeros(LENGTH), np.arange(LENGTH, dtype=float), np.linspace(0, 1, LENGTH)


@pytest.mark.parametrize("results", ["in_place", "fast", "fast_updated"])
@pytest.mark.parametrize("adapt", ["measure", "always", "never"])
def test_every_element_is_computed_once(arrays, results, adapt):
    a, b, c = arrays
    with stream(results=results, adapt=adapt, workers=2) as one:
        for factor in (1, 2):
            told = one.run(triad, [b * factor, c], [a])
            assert (a == b * factor + 3 * c).all()
            assert told.blocks == 101 and 0 <= told.overlap <= 1 and told.elapsed_ns > 0
            assert told.hit_share == told.fast_blocks / told.blocks
        if adapt == "always":
            assert told.fast_blocks > 0 and told.decision == "through"
            assert told.copied_bytes >= told.fast_blocks * 16 * 500
        if adapt == "never":
            assert (told.fast_blocks, told.copied_bytes, told.decision) == (0, 0, "plain")
        if results != "fast":
            before = a.copy()
            one.run(update, [b], [a])
            assert (a == before + b).all()
    assert "blocks from fast memory" in repr(told) and told.buffers == 8


def test_parts_have_the_arrays_types():
    names = np.array([b"one", b"two"] * 5000)
    records = np.zeros(10_000, [("byte", "u1"), ("rest", "S2")])
    text = bytearray(10_000)
    seen = []

    def compute(part):
        seen.append((part.first, len(part), part.is_fast))
        assert [view.readonly for view in part.inputs + part.outputs] == [True, True, False]
        first, second = map(np.asarray, part.inputs)
        assert (first.dtype, second.dtype) == (names.dtype, records.dtype)
        with pytest.raises(ValueError):
            first[0] = b"no"
        part.outputs[0][:] = bytes(one[0] for one in first.tolist())
        time.sleep(1e-4)

    with stream() as one:
        told = one.run(compute, [names, records], [text])
        assert bytes(text) == b"ot" * 5000
        assert sorted(first for first, _, _ in seen) == [BLOCK * block for block in range(10)]
        assert sum(is_fast for _, _, is_fast in seen) == told.fast_blocks
        # Other buffers, and arrays of other sizes: the stream goes on.
        numbers, sums = array.array("i", range(5000)), np.zeros((50, 100), "i8")

        def double(part):
            assert part.inputs[0].format == "i" and len(part) == len(part.inputs[0])
            for index, number in enumerate(part.inputs[0]):
                part.outputs[0][index] = 2 * number

        one.run(double, [memoryview(numbers)], [sums])
        assert (sums.reshape(-1) == 2 * np.arange(5000)).all()


def test_views_end_with_the_call(arrays):
    a, b, c = arrays
    kept = []

    def keep_views(part):
        kept.append(part)
        triad(part)

    with stream() as one:
        one.run(keep_views, [b, c], [a])
        assert (a == b + 3 * c).all() and len(kept) == 101
        for part in kept:
            for view in part.inputs + part.outputs:
                with pytest.raises(ValueError, match="released"):
                    view[0]
        for keep in (
            lambda part: kept.append(np.asarray(part.inputs[0])),
            lambda part: kept.append(part.inputs[0][3:]),
            lambda part: kept.append(memoryview(part.outputs[0])),
            lambda part: kept.append(np.asarray(part.outputs[0])[::7]),
        ):
            with pytest.raises(BufferError, match="was kept: copy"):
                one.run(keep, [b, c], [a])
    del one
    gc.collect()
    # What was kept all the same is memory still: of an array, or of fast memory, which it keeps.
    assert all(sum(view) is not None for view in kept[-4:])
    kept.clear()


def test_what_is_kept_of_fast_memory_keeps_it(arrays):
    a, b, c = arrays
    kept = []

    def keep(part):
        triad(part)
        if part.is_fast:
            kept.append(np.asarray(part.inputs[0]))

    one = stream()
    with pytest.raises(BufferError):
        one.run(keep, [b, c], [a])
    one.close()
    del one
    gc.collect()
    first = int(kept[0][0])
    assert (kept[0] == np.arange(first, first + len(kept[0]))).all()


def test_exceptions_end_the_run(arrays):
    a, b, c = arrays
    seen = []

    def compute(part):
        seen.append(part)
        if part.block == 30:
            raise KeyError("of the program")
        triad(part)

    with stream(results="fast") as one:
        for _ in range(3):
            seen.clear()
            with pytest.raises(KeyError, match="of the program"):
                one.run(compute, [b, c], [a])
            assert seen[-1].block == 30
            with pytest.raises(ValueError):
                seen[-1].inputs[0][0]
        with pytest.raises(KeyboardInterrupt):
            one.run(lambda part: os.kill(os.getpid(), 2) or time.sleep(1), [b, c], [a])
        one.run(triad, [b, c], [a])
    assert (a == b + 3 * c).all()


def test_other_threads_run_and_streams_run_one_at_a_time(arrays):
    a, b, c = arrays
    wrong, go, done = [], threading.Event(), threading.Event()

    def compute(part):
        go.set()
        assert done.wait(20)
        for act in (lambda: one.run(triad, [b, c], [a]), one.close):
            with pytest.raises(RuntimeError, match="the stream runs"):
                act()
        triad(part)

    def other():
        go.wait(20)
        try:
            one.run(triad, [b, c], [a])
            wrong.append("ran")
        except RuntimeError:
            pass
        done.set()

    thread = threading.Thread(target=other)
    thread.start()
    with stream() as one:
        one.run(compute, [b, c], [a])
        thread.join()
    assert not wrong and (a == b + 3 * c).all()
    with pytest.raises(RuntimeError, match="closed"):
        one.run(triad, [b, c], [a])
    one.close()


def test_fast_memory_may_be_the_programs(arrays):
    a, b, c = arrays
    for own in (hither.empty(1 << 17, "f8", on="machine"), hither.Memory(1 << 20, "machine"), bytearray(1 << 20)):
        with hither.Stream(own, block=BLOCK, adapt="always") as one:
            a[:] = 0
            told = one.run(triad, [b, c], [a])
            assert told.fast_blocks > 0 and (a == b + 3 * c).all()
    fast = np.zeros(1 << 20, "u1")
    with hither.Stream(fast, block=BLOCK) as one:
        with pytest.raises(ValueError, match="overlaps fast memory"):
            one.run(triad, [b, c], [fast[: 8 * LENGTH].view("f8")])


def test_what_cannot_be_is_refused(arrays):
    a, b, c = arrays
    never = lambda part: pytest.fail("called")
    with stream() as one:
        for inputs, outputs in [
            ([], []),
            ([], [a]),  # nothing goes through fast memory
            ([b, c[1:]], [a]),
            ([b], [a[:-1]]),
            ([b, c.astype("f4")], [a]),
            ([b[::2]], [a[: len(b[::2])]]),
            ([b, a], [a]),
            ([a[:1000]], [a[500:1500]]),
            ([b[:0]], [a[:0]]),
            ([np.array([object()])], [a[:1]]),
            ([np.zeros(5, "M8[s]")], [a[:5]]),
            ([np.zeros((5, 5), order="F")], [a[:25]]),
        ]:
            with pytest.raises(ValueError):
                one.run(never, inputs, outputs)
        with pytest.raises(TypeError):
            one.run(never, [b], [bytes(LENGTH)])
        with pytest.raises(TypeError):
            one.run(never, [b], [[0.0] * LENGTH])
        a.flags.writeable = False
        with pytest.raises(TypeError, match="read-only"):
            one.run(never, [b, c], [a])
        with pytest.raises(TypeError):
            one.run(None, [b, c], [np.zeros(LENGTH)])
    for make in (
        lambda: hither.Stream("node:77"),
        lambda: hither.Stream("machine", 0),
        lambda: hither.Stream("machine", block=0),
        lambda: stream(results="slow"),
        lambda: stream(adapt="often"),
        lambda: stream(workers=0),
        lambda: stream(copiers=257),
        lambda: hither.Stream("machine", 4096).run(never, [b], [np.zeros(LENGTH)]),
    ):
        with pytest.raises(ValueError):
            make()
    with pytest.raises(TypeError):
        hither.Stream(b"read-only" * 1000)


def test_a_child_is_refused_and_ends(arrays):
    a, b, c = arrays
    one = stream()
    one.run(triad, [b, c], [a])
    child = os.fork()
    if not child:
        good = False
        try:
            one.run(triad, [b, c], [a])
        except RuntimeError as error:
            good = "child after fork" in str(error)
        one.close()
        del one
        os._exit(0 if good else 1)
    assert os.waitpid(child, 0)[1] == 0
    one.run(triad, [b, c], [a])
    one.close()
