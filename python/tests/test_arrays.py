"""Arrays in sets: numpy's side, where pages are, and what is refused."""

import gc
import mmap
import os

import numpy as np
import pytest

import hither

PAGE = 4096
NODE = hither.Set("machine").nodes[0]


def policies_of(array):
    """What the kernel says of the mapping that the array begins in (/proc/self/numa_maps)."""
    address = array.__array_interface__["data"][0]
    with open("/proc/self/numa_maps") as lines:
        fields = [line.split() for line in lines]
    starts = [(int(line[0], 16), line[1]) for line in fields]
    return max((start, policy) for start, policy in starts if start <= address)[1]


def test_an_array_is_numpys():
    array = hither.empty((3, 5), np.float32, on="machine")
    assert (array.shape, array.dtype, array.flags.c_contiguous) == ((3, 5), np.float32, True)
    assert array.flags.writeable and not array.any()
    array[:] = np.arange(15).reshape(3, 5)
    assert array.sum() == 105 and (array.T @ array).shape == (5, 5)
    assert hither.empty(7, on="machine").shape == (7,)
    assert hither.zeros((), "i8", on="machine").shape == ()
    assert hither.zeros((2, 0, 3), on="machine").size == 0
    columns = hither.zeros((4, 6), "c16", on="machine", order="F")
    assert columns.flags.f_contiguous and columns.shape == (4, 6)
    record = hither.empty(10, [("key", "i4"), ("value", "f8")], on="machine")
    record["value"] = 2
    assert record["value"].sum() == 20


@pytest.mark.parametrize(
    ("memory", "kernel"),
    [
        (None, f"bind:{NODE}"),
        ("preferred", f"prefer:{NODE}"),
        ("striped", f"interleave:{NODE}"),
        ("striped:16", f"prefer:{NODE}"),
        ("local", "local"),
    ],
)
def test_the_kernel_has_the_policy(memory, kernel):
    array = hither.zeros(1 << 20, "u1", on=hither.Set(f"mem:{NODE}"), memory=memory)
    assert policies_of(array) == kernel


def test_where_counts_pages_and_brings_none():
    array = hither.empty(64 * PAGE, "u1", on=f"mem:{NODE}", pages="small")
    found = hither.where(array)
    assert (found.pages, found.absent, found.nodes) == (64, 64, {})
    array[5 * PAGE : 8 * PAGE] = 1
    found = hither.where(array)
    assert (found.absent, found.astray, found.nodes) == (61, 0, {NODE: 3})
    assert found.huge in (0, None)
    assert repr(found) == f"Residency(node{NODE} 3; 61 of 64 pages absent, 0 astray)"
    by_page = hither.nodes_by_page(array)
    assert by_page.dtype == np.int32 and len(by_page) == 64
    assert list(np.flatnonzero(by_page >= 0)) == [5, 6, 7]
    assert hither.where(array[: PAGE + 1]).pages == 2
    full = hither.empty(64 * PAGE, "u1", on=f"mem:{NODE}", populate=True)
    assert hither.where(full).absent == 0


def test_memory_lives_as_long_as_the_last_view():
    array = hither.empty(16 * PAGE, "u1", on="machine")
    address = array.__array_interface__["data"][0]
    array[-1] = 9
    view = array[-PAGE:].view("u2")
    del array
    gc.collect()
    assert view[-1] == 9 << 8
    del view
    gc.collect()
    with open("/proc/self/maps") as maps:
        assert not any(line.startswith(f"{address:x}-") for line in maps)


def test_existing_arrays_are_bound():
    array = np.ones(1 << 20)
    hither.bind_range(array, "machine", "striped", move_pages=True)
    found = hither.where(array)
    assert (found.absent, found.astray) == (0, 0) and array.sum() == 1 << 20
    mapped = np.frombuffer(mmap.mmap(-1, 1 << 20), "u1")
    hither.bind_range(mapped, f"mem:{NODE}")
    assert policies_of(mapped) == f"bind:{NODE}"


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        (dict(shape=-1, on="machine"), ValueError, "negative length"),
        (dict(shape=(2, -1), on="machine"), ValueError, "negative length"),
        (dict(shape=1.5, on="machine"), TypeError, "shape is a number"),
        (dict(shape="ab", on="machine"), TypeError, "shape is a number"),
        (dict(shape=1 << 62, on="machine"), ValueError, "too large"),
        (dict(shape=1 << 50, dtype="u1", on="machine"), ValueError, "more than nodes"),
        (dict(shape=1, dtype=object, on="machine"), ValueError, "references"),
        (dict(shape=1, dtype="nothing", on="machine"), TypeError, "nothing"),
        (dict(shape=1, on="nod:0"), ValueError, "\\^\\^\\^"),
        (dict(shape=1, on=None), TypeError, "Set or its text"),
        (dict(shape=1, on="machine", memory="near"), ValueError, "no memory policy `near`"),
        (dict(shape=1, on="machine", memory="bind:3"), ValueError, "has no stride"),
        (dict(shape=1, on="machine", memory="striped:0"), ValueError, "1 or more"),
        (dict(shape=1, on="machine", memory="bind@999"), ValueError, "home node 999"),
        (dict(shape=1, on="machine", memory=3), TypeError, "memory"),
        (dict(shape=1, on="machine", pages="giant"), ValueError, "'small', 'huge' or None"),
        (dict(shape=1, on="machine", order="K"), ValueError, "'C' or 'F'"),
    ],
)
def test_bad_arguments_are_refused(arguments, error, says):
    for make in (hither.empty, hither.zeros):
        with pytest.raises(error, match=says):
            make(**arguments)
    with pytest.raises(TypeError):
        hither.empty(3)


def test_what_is_no_array_in_one_piece_is_refused():
    square = np.ones((1000, 1000))
    for call in (hither.where, hither.nodes_by_page, lambda it: hither.bind_range(it, "machine")):
        for bad in ([1, 2], b"bytes", None, 3, np.float64(3)):
            with pytest.raises((TypeError, ValueError)):
                call(bad)
        with pytest.raises(ValueError, match="not in one piece"):
            call(square[:, ::2])
        with pytest.raises(ValueError, match="no bytes"):
            call(np.ones(0))
    with pytest.raises(ValueError, match="no page of 4096 bytes to itself"):
        hither.bind_range(np.ones(10), "machine")
    with pytest.raises(ValueError, match="memory"):
        hither.bind_range(square, "machine", "nowhere")


def test_a_child_has_its_own_copy():
    array = hither.zeros(PAGE, "u1", on="machine")
    array[0] = 1
    child = os.fork()
    if child == 0:
        array[0] = 2
        os._exit(0 if array[0] == 2 else 1)
    _, status = os.waitpid(child, 0)
    assert status == 0 and array[0] == 1
