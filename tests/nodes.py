"""Runs a Ray of two nodes on this machine, each with a store of its own.

It prints the address. The second node is killed at a line `kill` on standard input, and another one
is added at `add`; at its end, all end.
"""

import os
import sys
from pathlib import Path
from typing import Any


def main(folder: Path) -> None:
    from ray.cluster_utils import Cluster

    def options(name: str) -> dict[str, Any]:
        memory, store = 100 * 2**20, {"RETRAIN_STORE": str(folder / name)}
        return {"num_cpus": 2, "object_store_memory": memory, "env_vars": store}

    head = options("head") | {"include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    other = cluster.add_node(**options("other"))
    print(cluster.address, flush=True)
    for line in sys.stdin:
        if line == "kill\n":
            cluster.remove_node(other, allow_graceful=False)
        else:
            other = cluster.add_node(**options("another"))
            cluster.wait_for_nodes()
        print("done", flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    os.chdir("/")  # so that its workers find no code here
    main(Path(sys.argv[1]))
