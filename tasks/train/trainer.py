"""Ray Train's trainer without the helpers that a training on this machine's own Ray does not need.

Each helper of its controller is a process that takes 2 s of a core to start, beside the workers.

- One asks the dashboard, again and again, whether the controller is still alive. Without a
  dashboard each question takes ten seconds, and the end of the training waits for it: 20 s for a
  training of no steps, 9 s without the helper (Ray 2.60). Nor does it find then what it is to
  remove: the CPUs that a killed controller had reserved. They are free again when the run ends.
- One divides data sets of Ray Data among the workers, also where there are none.
- One watches for nodes of the cluster that are about to be taken away.
"""

import os
from pathlib import Path
from typing import Any

from ray.train.torch import TorchTrainer
from ray.train.v2._internal.execution.callback import WorkerGroupCallback

from retrain.servers import ray_cluster

NEEDS_DASHBOARD = "PlacementGroupCleanerCallback"
DIVIDES_DATA = "DatasetsCallback"
ASKED = "asked"  # in the storage of a training
WATCHES_NODES = "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER"


class Asking(WorkerGroupCallback):  # type: ignore[misc]  # Ray is not typed
    """Keeps a file while Ray Train has asked for workers that have not started."""

    def __init__(self, file: Path) -> None:
        """Takes the file."""
        self._file = file

    def before_worker_group_start(self, _: Any) -> None:
        """Called again when the workers found no place for a while."""
        self._file.touch()

    def after_worker_group_start(self, _: Any) -> None:
        """Called when all workers have started."""
        self._file.unlink(missing_ok=True)


class Trainer(TorchTrainer):  # type: ignore[misc]  # Ray is not typed
    """`TorchTrainer` with the helpers that are of use, and one that tells whether it waits."""

    def fit(self) -> Any:
        """Trains, as `TorchTrainer` does."""
        if not ray_cluster.is_remote():
            os.environ.setdefault(WATCHES_NODES, "0")
        return super().fit()

    def _register_sigint_handler(self, controller: Any) -> None:
        """Leaves Ctrl-C to the step: Ray's own handler exits with code 0."""

    def _create_default_callbacks(self) -> list[Any]:
        without = set()
        if not ray_cluster.is_remote():  # a cluster of the user's may have a dashboard
            without.add(NEEDS_DASHBOARD)
        if not self.datasets:
            without.add(DIVIDES_DATA)
        callbacks = super()._create_default_callbacks()
        used = [each for each in callbacks if type(each).__name__ not in without]
        return [*used, Asking(Path(self.run_config.storage_path, ASKED))]
