"""Ray Train's trainer without a helper that a training on this machine's own Ray does not need.

The helper is a process that asks the dashboard, again and again, whether the controller of the
training is still alive. Without a dashboard each question takes ten seconds, and the end of the
training waits for it: 20 s for a training of no steps, 9 s without the helper (Ray 2.60). Nor does
it find then what it is to remove: the CPUs that a killed controller had reserved. They are free
again when the run ends.
"""

import os
from typing import Any

from ray.train.torch import TorchTrainer

from retrain.servers import ray_cluster

NEEDS_DASHBOARD = "PlacementGroupCleanerCallback"
# A helper of Ray Train watches for nodes of the cluster that are about to be taken away.
WATCHES_NODES = "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER"


class Trainer(TorchTrainer):  # type: ignore[misc]  # Ray is not typed
    """`TorchTrainer` with the helpers that are of use."""

    def fit(self) -> Any:
        """Trains, as `TorchTrainer` does."""
        if not ray_cluster.is_remote():
            os.environ.setdefault(WATCHES_NODES, "0")
        return super().fit()

    def _register_sigint_handler(self, controller: Any) -> None:
        """Leaves Ctrl-C to the step: Ray's own handler exits with code 0."""

    def _create_default_callbacks(self) -> list[Any]:
        callbacks: list[Any] = super()._create_default_callbacks()
        if ray_cluster.is_remote():  # a cluster of the user's may have a dashboard
            return callbacks
        return [each for each in callbacks if type(each).__name__ != NEEDS_DASHBOARD]
