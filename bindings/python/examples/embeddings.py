"""A table of embeddings that does not fit into this machine's memory: built, used and updated.

    python examples/embeddings.py ~/.cenote/well        # the folder of `cenote up`

The table is a NumPy array in a volume. Batches of rows are read by their numbers, as a model's
lookup does, and rows are changed in place. A host may be killed while it runs.
"""

from __future__ import annotations

import sys

import numpy as np

import cenote

ROWS, WIDTH, BATCH = 20_000, 128, 256


def main(folder: str) -> str:
    random = np.random.default_rng(1)
    with cenote.Volume(folder, size="16M", name="embeddings") as volume:
        table = cenote.array(volume, (ROWS, WIDTH), np.float32)
        for start in range(0, ROWS, 2_000):
            numbers = np.arange(start, start + 2_000, dtype=np.float32)
            table[start : start + 2_000] = numbers[:, None]

        # A lookup: the rows of a batch, each by its number. The result is a copy.
        batch = random.integers(0, ROWS, BATCH)
        rows = table[batch]
        assert (rows == batch[:, None]).all()

        # A step of training: these rows alone are written.
        named = np.unique(batch)
        table[named] = table[named] - 0.5

        # Nothing else has changed.
        expected = np.arange(ROWS, dtype=np.float32)
        expected[named] -= 0.5
        assert (table[:, 0] == expected).all()
        status = volume.status()
        return f"{status.scheme}: {len(named)} rows changed, {status.stored >> 20} MiB stored"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    print(main(sys.argv[1]))
