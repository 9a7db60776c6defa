"""Monitors: what they refuse, and on a machine that counts, that they count."""

import numpy as np
import pytest

import hither

PAGE = 4096


@pytest.fixture
def monitor():
    try:
        monitor = hither.Monitor()
    except ValueError as error:
        assert "nothing counts here: no device" in str(error)
        pytest.skip("nothing counts here")
    with monitor:
        yield monitor


def test_areas_and_sums_without_meaning_are_refused(monitor):
    array = hither.zeros(64 * PAGE, "u1", on="machine", populate=True)
    with pytest.raises(ValueError, match="use read, write"):
        monitor.add_area(array, types="loads")
    with pytest.raises(ValueError, match="power of two"):
        monitor.add_area(array, grain=48)
    with pytest.raises(TypeError, match="a word or a list"):
        monitor.add_area(array, types=3)
    with pytest.raises(ValueError, match="add the area first"):
        monitor.add_sum([0])
    with pytest.raises(ValueError, match="add an area"):
        monitor.start()


def test_accesses_are_counted(monitor):
    array = hither.zeros(16 << 20, "u1", on="machine", pages="huge", populate=True)
    area = monitor.add_area(array, types=["read", "prefetch"])
    lines = monitor.add_sum([area], threshold=1000)
    monitor.start()
    for _ in range(4):
        assert int(array.sum(dtype=np.uint64)) == 0
    reached = monitor.wait(20)
    assert reached is not None and reached.sum == lines
    monitor.stop()
    counts, missed = monitor.read_area(area)
    assert missed == 0 and all(len(of_node) == array.nbytes // PAGE for of_node in counts.values())
    total = sum(map(sum, counts.values()))
    assert total >= 1000 and sum(monitor.read_sum(lines).values()) == total
    with pytest.raises(ValueError, match="start it before"):
        monitor.wait(0)


def test_a_closed_one_says_so(monitor):
    monitor.close()
    with pytest.raises(RuntimeError, match="closed"):
        monitor.start()
