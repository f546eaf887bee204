"""Runs a Ray of two nodes on this machine: one in a folder, the other in `/`.

It prints the address. The second node is killed at a line on standard input; at its end, all end.
"""

import os
import sys
from pathlib import Path


def main(folder: Path) -> None:
    from ray.cluster_utils import Cluster

    options = {"num_cpus": 2, "object_store_memory": 100 * 2**20}
    os.chdir(folder)  # so that its workers find no code here
    head = options | {"include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    os.chdir("/")
    other = cluster.add_node(**options)
    print(cluster.address, flush=True)
    if sys.stdin.readline():
        cluster.remove_node(other, allow_graceful=False)
        print("done", flush=True)
        sys.stdin.read()
    cluster.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
