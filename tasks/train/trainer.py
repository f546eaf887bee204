"""Ray Train's trainer for a Ray without a dashboard.

The controller of a training has a helper that asks the dashboard, again and again, whether the
controller is still alive. Without a dashboard each question takes ten seconds, and the end of the
training waits for it: 20 s for a training of no steps, 9 s without the helper (Ray 2.60). Nor does
it find then what it is to remove: the CPUs that a killed controller had reserved. They are free
again when the run ends.
"""

from typing import Any

from ray.train.torch import TorchTrainer

from retrain.servers import ray_cluster

NEEDS_DASHBOARD = "PlacementGroupCleanerCallback"


class Trainer(TorchTrainer):  # type: ignore[misc]  # Ray is not typed
    """`TorchTrainer`, whose end does not wait where Ray has no dashboard."""

    def _create_default_callbacks(self) -> list[Any]:
        callbacks = super()._create_default_callbacks()
        if ray_cluster.is_remote():  # a cluster of the user's may have one
            return list(callbacks)
        return [each for each in callbacks if type(each).__name__ != NEEDS_DASHBOARD]
