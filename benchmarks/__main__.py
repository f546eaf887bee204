"""Runs every benchmark: `make bench`."""

import sys

from benchmarks import deployment, flow, train_throughput

for benchmark in (train_throughput, flow, deployment):
    print(f"\n{benchmark.__name__}", flush=True)
    sys.argv = [benchmark.__name__]  # each with its defaults
    benchmark.main()
