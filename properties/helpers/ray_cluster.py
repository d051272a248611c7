"""A Ray cluster whose two hosts are processes of this host, until its standard input is closed.

Run as `python -m properties.helpers.ray_cluster`. It prints its address in one line. For each line
`remove` on its standard input it removes one of the hosts, and then prints `removed`.
"""

import os
import sys
from typing import Any

# By default its workers have a low priority, and a busy machine would starve them.
os.environ |= {"RAY_worker_niceness": "0", "RAY_USAGE_STATS_ENABLED": "0"}
# Ray would replace 127.0.0.1 by the address of the host on its network.
LOOPBACK: dict[str, Any] = {"node_ip_address": "127.0.0.2", "object_store_memory": 80 << 20}


def main() -> None:
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "include_dashboard": False, **LOOPBACK}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        hosts = [cluster.add_node(num_cpus=2, **LOOPBACK) for _ in range(2)]
        print(cluster.address, flush=True)  # noqa: T201 - tests read it
        for _ in sys.stdin:
            cluster.remove_node(hosts.pop(), allow_graceful=False)
            print("removed", flush=True)  # noqa: T201 - tests read it
    finally:
        cluster.shutdown()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
