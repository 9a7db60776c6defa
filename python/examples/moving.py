"""The mover: an array goes to each node in turn while the program computes on it.

    python moving.py
"""

import numpy as np

import hither


def main():
    nodes = hither.Set("machine").nodes
    array = hither.empty(8 << 20, on=f"mem:{nodes[0]}")
    array[:] = np.arange(array.size)
    expected = array.sum()
    with hither.Mover() as mover:
        for name, why_not in mover.backends.items():
            print(f"{name}: {'serves' if why_not is None else why_not}")
        for node in nodes + nodes[:1]:
            move = mover.migrate(array, f"mem:{node}")
            looks = 0
            while not move.done():
                # The array is at its addresses all the while.
                assert array[looks % array.size] == looks % array.size
                looks += 1
            print(f"to node{node}: {move.wait()}, {looks} looks meanwhile")
            assert array.sum() == expected
        copy = np.empty_like(array)
        print(f"copied: {mover.replicate(array, copy).wait()}")
        assert (copy == array).all()
    print(hither.where(array))


if __name__ == "__main__":
    main()
