"""Arrays in sets: where pages come from, and where they go.

    python placement.py [SET]
"""

import sys

import numpy as np

import hither

PAGES = 4096


def show(name, array):
    found = hither.where(array)
    nodes = ", ".join(f"node{node} {count}" for node, count in found.nodes.items())
    print(f"{name:24} {nodes or 'none in memory'}; {found.absent} absent, {found.astray} astray")
    return found


def main():
    on = hither.Set(sys.argv[1] if len(sys.argv) > 1 else "machine")
    print(f"{on}: CPUs {on.cpus}, memory of nodes {on.nodes}")
    for left_out in on.left_out:
        print(f"  {left_out}")

    for memory in ("bind", "striped", "striped:64", "preferred"):
        array = hither.empty(PAGES * 4096, np.uint8, on=on, memory=memory, pages="small")
        array[: array.size // 2] = 1
        found = show(f"{memory}, half written", array)
        assert found.absent == PAGES // 2 and found.astray == 0

    # An array that numpy made, spread afterwards.
    array = np.ones(PAGES * 512)
    before = show("numpy's own", array)
    hither.bind_range(array, on, "striped", move_pages=True)
    after = show("the same, striped", array)
    assert before.absent == after.absent == 0 and array.sum() == array.size

    try:
        hither.empty(10, on="node:0 + node:77")
    except ValueError as error:
        print(f"refused: {error}")


if __name__ == "__main__":
    main()
