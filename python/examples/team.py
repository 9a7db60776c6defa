"""A team sums an array, each thread its part, with the part's pages beside the thread.

    python team.py [SET]
"""

import sys
import time

import numpy as np

import hither


def main():
    on = hither.Set(sys.argv[1] if len(sys.argv) > 1 else "allowed")
    with hither.Team(on, "round-robin:node") as team:
        print(f"{team.count} threads on CPUs {team.cpus}")
        # Under "local" a page is near the CPU that writes to it first.
        array = hither.empty(team.count << 22, on="machine", memory="local")
        parts = np.array_split(array, team.count)

        def fill(index):
            parts[index][:] = index + 1

        team.run(fill)
        start = time.perf_counter()
        sums = team.run(lambda index: float(parts[index].sum()))
        seconds = time.perf_counter() - start
        assert sums == [(index + 1) * parts[index].size for index in range(team.count)]
        print(f"sums {sums}: {array.nbytes / seconds / 1e9:.1f} GB/s read, one look at the clock")
        print(hither.where(array))


if __name__ == "__main__":
    main()
