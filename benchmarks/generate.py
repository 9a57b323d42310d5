"""How long, and in how much memory, the paper's generated sets are drawn.

    python -m benchmarks.generate gen-cls --workers 2

Draws into an empty folder, so that nothing comes from the cache, and maps the file in the end.
"""

import argparse
import os
import resource
import sys
import tempfile
import time

from grant_fast.data.graphon import NAMES, NUM_GRAPHS
from grant_fast.data.load import load_dataset


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=NAMES)
    parser.add_argument("--graphs", type=int, default=NUM_GRAPHS)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        start = time.perf_counter()
        dataset = load_dataset(options.name, num_graphs=options.graphs, workers=options.workers)
        seconds = time.perf_counter() - start
    own, workers = (
        resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    processor = sum(usage.ru_utime + usage.ru_stime for usage in (own, workers))
    unit = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss, in bytes
    peaks = [usage.ru_maxrss * unit / 1e9 for usage in (own, workers)]
    print(dataset.graphs)
    print(f"{seconds:.0f} s, {processor:.0f} s of processor time")
    print(f"peak: {peaks[0]:.2f} GB in this process (the mapped file counts), {peaks[1]:.2f} GB")
    print(f"in the largest of {options.workers} workers, which are gone when the file is mapped")


if __name__ == "__main__":
    main()
