"""A few jobs on a cluster of two nodes, in a separate process: `python ray_run.py FOLDER`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import ray
from ray.cluster_utils import Cluster
from rich.console import Console

from ffo.lab.jobs import Job
from ffo.lab.runner.cluster import run_on_ray
from ffo.lab.runner.progress import bars
from ffo.lab.store import Limits, Store
from ffo.lab.tasks import TaskSizes

TINY = TaskSizes(d_y=6, samples=20, d_x=5, hidden=4, learning_rate=1e-2)


def main(folder: Path) -> None:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=1)
    cases = [("qp", "FFOQP", 0), ("qp", "FFOQP", 1), ("qp", "FFOCP", 0), ("socp", "QPTH", 0)]
    jobs = [Job("dfl", task, method, seed, TINY, 8, "train", epochs=2, steps=2) for task, method, seed in cases]
    try:
        ray.init(address=cluster.address, log_to_driver=False)
        (folder / "nodes.json").write_text(json.dumps(sum(node["Alive"] for node in ray.nodes())))
        ray.shutdown()
        with Store(folder) as store, bars(jobs, Console(quiet=True), at_once=2) as shown:
            run_on_ray(jobs, store, Limits(8000.0), shown, 1, cluster.address, 1)
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
