"""Replicated arrays."""

import gc
import os
import threading

import numpy as np
import pytest

import hither

FOUR = {"copies": 4, "chunk": 1 << 16}


def test_reads_are_views_of_the_copy():
    values = np.arange(100_000, dtype="f4").reshape(100, 1000)
    table = hither.Replicated(values, **FOUR)
    before = table.read(2)
    assert (before.shape, before.dtype) == ((100, 1000), np.float32)
    assert not before.flags.writeable
    built = table.refresh()
    assert built.bytes == 3 * 7 * (1 << 16) and built.refused == [] and built.seconds > 0
    after = table.read(2)
    assert (before == values).all() and (after == values).all()
    address = lambda array: array.__array_interface__["data"][0]
    assert address(before) == address(table.read(0)) != address(after) == address(table.read(2))
    with pytest.raises(ValueError):
        after.flags.writeable = True
    assert table.figures["copies"] == table.figures["all_copies"] == 21
    assert "21 of 21 copies" in table.report()


def test_writes_are_epochs_and_arrays_hold_theirs():
    table = hither.Replicated(np.zeros((4, 3), "i8"), **FOUR)
    held = table.read(1)
    assert table.write([[1, 2, 3], [4, 5, 6]], start=1) == 2
    assert not held.any() and table.read(1).tolist()[1] == [1, 2, 3]
    with pytest.raises(TimeoutError, match="hold an earlier epoch"):
        table.write(np.ones((4, 3)), timeout=0.05)
    row = held[2]
    del held
    with pytest.raises(TimeoutError):
        table.write(np.ones((4, 3)), timeout=0)
    del row
    gc.collect()
    assert table.write(np.ones((4, 3)), timeout=5) == 3
    assert table.epoch == 3 and table.read().sum() == 12


def test_threads_see_whole_epochs_in_order():
    table = hither.Replicated(np.ones(20_000, "i8"), keep=0.001, **FOUR)
    wrong = []

    def look(place):
        last = 0
        while last < 200:
            array = table.read(place)
            low, high = int(array.min()), int(array.max())
            del array
            if low != high or low < last:
                wrong.append((low, high, last))
                return
            last = low

    threads = [threading.Thread(target=look, args=(place,)) for place in range(4)]
    for thread in threads:
        thread.start()
    for epoch in range(2, 201):
        assert table.write(np.full(20_000, epoch)) == epoch
    for thread in threads:
        thread.join()
    assert wrong == []


def test_copies_are_given_up():
    table = hither.Replicated(np.zeros(1 << 20, "u1"), **FOUR)
    table.refresh()
    assert table.figures["copy_bytes"] == 3 << 20
    held = table.read(3)
    with pytest.raises(TimeoutError):
        table.collapse(timeout=0.02)
    del held
    table.collapse(timeout=5)
    assert table.figures["copy_bytes"] == 0 and not table.read(3).any()
    small = hither.Replicated(np.zeros(1 << 20, "u1"), budget=5 << 16, **FOUR)
    built = small.refresh()
    assert built.bytes == 5 << 16 and all("budget" in why for why in built.refused)
    assert len(built.refused) == 3


@pytest.mark.parametrize(
    "call",
    [
        lambda: hither.Replicated(np.array([object()])),
        lambda: hither.Replicated(np.zeros(0)),
        lambda: hither.Replicated([1], chunk=5),
        lambda: hither.Replicated([1], copies=65),
        lambda: hither.Replicated([1], readers=0),
        lambda: hither.Replicated([1]).read(64),
        lambda: hither.Replicated([1, 2]).write([1], start=2),
        lambda: hither.Replicated([1, 2]).write([1], start=-1),
        lambda: hither.Replicated([1, 2]).write([[1]]),
        lambda: hither.Replicated([1, 2]).write([]),
        lambda: hither.Replicated([1, 2]).write([1], timeout=-1.0),
        lambda: hither.Replicated([1, 2]).write([1], timeout=float("nan")),
    ],
)
def test_what_cannot_be_is_refused(call):
    with pytest.raises(ValueError):
        call()


def test_readers_are_bounded():
    table = hither.Replicated([1, 2], readers=2)
    held = [table.read(), table.read()]
    with pytest.raises(ValueError, match="readers are in use"):
        table.read()
    held.pop()
    assert table.read().tolist() == [1, 2]


def test_a_child_reads_what_was_held_and_is_refused_the_rest():
    table = hither.Replicated(np.arange(1000), **FOUR)
    table.refresh()
    held = table.read(1)
    child = os.fork()
    if not child:
        good = int(held.sum()) == 499_500
        try:
            table.read(1)
            good = False
        except RuntimeError:
            pass
        os._exit(0 if good else 1)
    assert os.waitpid(child, 0)[1] == 0
