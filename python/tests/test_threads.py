"""Threads: bound for a while, and teams."""

import os
import threading

import pytest

import hither

OWN = os.sched_getaffinity(0)
FIRST = min(OWN)


def test_a_thread_is_bound_for_a_while():
    with hither.bind_thread(f"cpus:{FIRST}", memory="striped") as bound:
        assert os.sched_getaffinity(0) == {FIRST}
        with hither.bind_thread("allowed"):
            assert os.sched_getaffinity(0) == OWN  # what the process may use, not this thread
        assert os.sched_getaffinity(0) == {FIRST}
        bound.undo()
        assert os.sched_getaffinity(0) == OWN
    assert os.sched_getaffinity(0) == OWN
    with pytest.raises(KeyError), hither.bind_thread(f"cpus:{FIRST}"):
        raise KeyError
    assert os.sched_getaffinity(0) == OWN


def test_memory_alone_says_nothing_of_cpus():
    with hither.bind_thread("mem:0"):
        assert os.sched_getaffinity(0) == OWN
        with open("/proc/thread-self/numa_maps") as lines:
            assert "bind:0" in lines.readline()


def test_only_the_thread_itself_undoes():
    bound = hither.bind_thread(f"cpus:{FIRST}")
    raised = []

    def other():
        try:
            bound.undo()
        except RuntimeError as error:
            raised.append(str(error))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    bound.undo()
    assert len(raised) == 1 and "in the thread itself" in raised[0]
    assert os.sched_getaffinity(0) == OWN


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        (("cpus:99999",), ValueError, "99999"),
        (("allowed", "striped:2"), ValueError, "no memory policy"),
        ((None,), TypeError, "Set or its text"),
        (("mem:",), ValueError, "\\^"),
    ],
)
def test_bad_bindings_are_refused(arguments, error, says):
    with pytest.raises(error, match=says):
        hither.bind_thread(*arguments)
    with pytest.raises(error):
        hither.Team(arguments[0], memory=(arguments + (None,))[1])
    assert os.sched_getaffinity(0) == OWN


@pytest.mark.parametrize("threads", ["fill", "round-robin:node", "round-robin:core", "float"])
def test_each_thread_of_a_team_has_its_cpu(threads):
    with hither.Team("allowed", threads, count=len(OWN) + 1) as team:
        found = team.run(lambda index: (index, os.sched_getaffinity(0)))
        assert [index for index, _ in found] == list(range(len(OWN) + 1))
        for cpu, (_, affinity) in zip(team.cpus, found):
            assert affinity == (OWN if cpu is None else {cpu})
        assert (team.cpus[0] is None) == (threads == "float")
        assert team.cpus[0] == team.cpus[len(OWN)]
        # The same threads again.
        assert team.run(lambda index: os.sched_getaffinity(0)) == [cpus for _, cpus in found]
    assert os.sched_getaffinity(0) == OWN


def test_map_keeps_the_order_and_passes_on_exceptions():
    with hither.Team("allowed", count=3) as team:
        assert team.map(pow, range(20), [2] * 20) == [n * n for n in range(20)]
        assert team.submit(int, "ff", base=16).result() == 255
        with pytest.raises(ZeroDivisionError):
            team.map(lambda n: 1 // n, [1, 0, 2])
        with pytest.raises(KeyError):
            team.run(lambda index: {}[index])
        assert team.map(len, ["ab", ""]) == [2, 0]
    with pytest.raises(RuntimeError):
        team.map(len, ["a"])


def test_threads_of_a_team_run_at_a_time():
    with hither.Team("allowed", count=2) as team:
        # Each waits there for the other: in turns, the first would time out.
        gate = threading.Barrier(2, timeout=10)
        assert team.run(lambda index: gate.wait() >= 0) == [True, True]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (dict(threads="spread"), "no thread policy `spread`"),
        (dict(threads="round-robin:cpu"), "no thread policy"),
        (dict(count=0), "1 to 65536"),
        (dict(count=-3), "1 to 65536"),
        (dict(count=1 << 20), "1 to 65536"),
    ],
)
def test_bad_teams_are_refused(arguments, says):
    with pytest.raises(ValueError, match=says):
        hither.Team("allowed", **arguments)
