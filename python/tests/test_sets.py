"""Sets: text, operators, comparisons, and what cannot be read."""

import os

import pytest

import hither
from hither import Set


def test_text_and_members():
    everything = Set("machine")
    assert str(everything) == "machine"
    assert repr(everything) == "Set('machine')"
    assert everything.nodes == sorted(everything.nodes) and everything.nodes
    assert set(Set("allowed").cpus) == os.sched_getaffinity(0)
    assert Set("allowed").left_out == []
    assert str(Set("cpus:0+mem:0")) == "cpus:0 + mem:0"


def test_operators_are_those_of_sets():
    cpu, memory = Set("cpus:0"), Set("mem:0")
    both = cpu | memory
    assert str(both) == "cpus:0 + mem:0"
    assert (both.cpus, both.nodes) == ([0], [0])
    assert str((cpu | memory) & ~memory) == "(cpus:0 + mem:0) & ~mem:0"
    assert both - memory == cpu and both & memory == memory
    assert cpu <= both and cpu < both and both >= memory and not both < both
    assert cpu != memory and not (cpu <= memory)
    assert ~~cpu == cpu
    # Nothing in common is a set all the same, but nothing can be bound to it.
    nothing = cpu & memory
    assert not nothing and both and nothing.cpus == [] and nothing <= cpu
    with pytest.raises(ValueError, match="comes to nothing here"):
        hither.bind_thread(nothing)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "a set is missing here"),
        ("nod:0", "nod"),
        ("node:0 +", "\\^"),
        ("node:0 + mem:1000", "no node 1000"),
        ("cpus:0-", "\\^"),
        ("near:nothing9", "nothing9"),
        ("\0", "\\^"),
        ("machine + " * 200 + "machine", "1024"),
    ],
)
def test_what_cannot_be_read_is_a_value_error(text, says):
    with pytest.raises(ValueError, match=says) as raised:
        Set(text)
    assert len(str(raised.value)) > 10


def test_marks_are_below_the_text():
    with pytest.raises(ValueError) as raised:
        Set("node:0 + node:77")
    lines = str(raised.value).splitlines()
    assert lines[1].strip() == "node:0 + node:77" and lines[2].endswith("^^^^^^^")


def test_other_types_are_type_errors():
    for bad in (None, 3, b"machine", ["machine"]):
        with pytest.raises(TypeError):
            Set(bad)
    with pytest.raises(TypeError):
        Set("machine") | "mem:0"
    with pytest.raises(TypeError):
        hash(Set("machine"))


def test_operators_cannot_make_what_cannot_be_written():
    grown = Set("cpus:0")
    with pytest.raises(ValueError, match="1024"):
        for _ in range(2000):
            grown = grown | Set("cpus:0")
