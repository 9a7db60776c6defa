"""The mover's calls."""

import gc
import os
import threading

import numpy as np
import pytest

import hither

NODE = hither.Set("machine").nodes[0]
PAGES = 256


@pytest.fixture
def mover():
    with hither.Mover(capacity=16) as mover:
        yield mover


def test_pages_are_moved_and_bytes_stay(mover):
    array = hither.empty(PAGES * 4096, "u1", on="machine")
    array[:] = np.arange(array.size) % 251
    before = array.copy()
    move = mover.migrate(array, f"mem:{NODE}", race="block")
    result = move.wait(20)
    assert result.status in ("done", "failed") and move.done()
    assert result.moved + result.already_there + sum(result.refused.values()) == PAGES
    assert result.status == "done", result.refused
    assert result.backend in mover.backends and mover.backends[result.backend] is None
    assert (array == before).all() and hither.where(array).nodes == {NODE: PAGES}
    assert result.move_ns > 0 and "pages moved" in repr(result)
    # The same again, by number and of an array that numpy made.
    assert mover.migrate(np.ones(1 << 20), NODE).wait(20).status == "done"


def test_arrays_are_copied_and_live_until_then(mover):
    target = np.zeros(1 << 20)
    move = mover.replicate(np.arange(1 << 20, dtype=float), target)
    gc.collect()  # the source has no other name
    result = move.wait()
    assert result.status == "done" and result.bytes == 8 << 20 and result.backend == "copy"
    assert (target == np.arange(1 << 20)).all()
    # Nobody asks for these.
    for _ in range(8):
        mover.replicate(target[:1000], np.zeros(1000))


def test_many_threads_wait_each_for_its_own(mover):
    source = np.random.default_rng(1).random(1 << 16)
    wrong = []

    def work():
        for _ in range(50):
            target = np.zeros(1 << 16)
            result = mover.replicate(source, target).wait(20)
            if result.status != "done" or not (target == source).all():
                wrong.append(result)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_closing_runs_what_was_submitted():
    mover = hither.Mover()
    source = np.ones(4 << 20)
    targets = [np.zeros(4 << 20) for _ in range(4)]
    moves = [mover.replicate(source, target) for target in targets]
    mover.close()
    mover.close()
    assert all(move.done() and move.wait().status == "done" for move in moves)
    assert all((target == 1).all() for target in targets)
    with pytest.raises(RuntimeError, match="closed"):
        mover.replicate(source, targets[0])
    assert not moves[0].cancel()


def test_a_child_is_refused(mover):
    array = np.ones(1 << 16)
    move = mover.replicate(array, np.zeros(1 << 16))
    child = os.fork()
    if child == 0:
        wrong = 0
        for call in (move.done, move.wait, move.cancel, lambda: mover.migrate(array, NODE)):
            try:
                call()
                wrong += 1
            except RuntimeError as error:
                wrong += "child after fork" not in str(error)
        mover.close()
        with hither.Mover() as own:
            wrong += own.replicate(array, np.zeros(1 << 16)).wait(20).status != "done"
        os._exit(wrong)
    assert os.waitpid(child, 0)[1] == 0
    assert move.wait(20).status == "done"


def test_all_requests_in_use_is_said():
    with hither.Mover(capacity=1) as mover:
        source, target = np.ones(16 << 20), np.zeros(16 << 20)
        first = mover.replicate(source, target)
        with pytest.raises(RuntimeError, match="all requests are in use"):
            for _ in range(1000):
                mover.replicate(source, target)
                pytest.skip("the first copy ended before the second was asked for")
        with pytest.raises(TimeoutError):
            first.wait(0)
        assert first.wait().status == "done"


def test_bad_arguments_are_refused(mover):
    array, other = np.ones(1 << 16), np.ones(1 << 16)
    frozen = np.ones(1 << 16)
    frozen.flags.writeable = False
    for call, error, says in [
        (lambda: mover.migrate([1], "mem:0"), TypeError, "numpy array"),
        (lambda: mover.migrate(np.ones(3), "mem:0"), ValueError, "no page"),
        (lambda: mover.migrate(array, "cpus:0"), ValueError, "no memory"),
        (lambda: mover.migrate(array, "mem:999"), ValueError, "999"),
        (lambda: mover.migrate(array, 5000), ValueError, "no node of this number"),
        (lambda: mover.migrate(array, -1), TypeError, "to is a Set or its text"),
        (lambda: mover.migrate(array, "mem:0", race="win"), ValueError, "'recover'"),
        (lambda: mover.replicate(array, other[:-1]), ValueError, "one size"),
        (lambda: mover.replicate(array[::2], other[::2]), ValueError, "one piece"),
        (lambda: mover.replicate(array, array), ValueError, "overlap"),
        (lambda: mover.replicate(array, frozen), TypeError, "read-only"),
        (lambda: hither.Mover(workers=0), ValueError, "workers"),
        (lambda: hither.Mover(capacity=32769), ValueError, "capacity is 32769"),
        (lambda: hither.Mover(copiers=0), ValueError, "copiers"),
        (lambda: hither.Mover(capacity=-1), ValueError, "capacity is -1"),
    ]:
        with pytest.raises(error, match=says):
            call()
    move = mover.replicate(array, other)
    for bad in (-1, float("nan")):
        with pytest.raises(ValueError, match="seconds"):
            move.wait(bad)
    assert move.wait().status == "done"
    # A node that is not there is no error of the call.
    assert mover.migrate(array, 999).wait().status == "failed"
