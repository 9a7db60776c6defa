"""A stream: triad over arrays in slow memory, by way of fast memory that workers fill ahead.

    python streaming.py [SET]

SET is where fast memory is: "machine", where nothing is said, gains nothing on a machine with one node.
"""

import sys

import numpy as np

import hither

LENGTH = 1 << 20


def triad(part):
    b, c = map(np.asarray, part.inputs)
    a = np.asarray(part.outputs[0])
    np.multiply(c, 3, out=a)
    np.add(a, b, out=a)


def main():
    fast = sys.argv[1] if len(sys.argv) > 1 else "machine"
    a, b, c = np.zeros(LENGTH), np.arange(LENGTH, dtype=float), np.ones(LENGTH)
    for adapt in "measure", "always", "never":
        a[:] = 0
        with hither.Stream(fast, 2 << 20, block=8 << 10, adapt=adapt) as stream:
            told = stream.run(triad, [b, c], [a])
        assert (a == b + 3 * c).all()
        print(f"{adapt}: {told}")


if __name__ == "__main__":
    main()
