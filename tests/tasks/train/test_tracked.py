"""A training has one run in MLflow, whenever it was killed: real processes."""

import os
import signal
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path

import pytest

from retrain.registry import tracking
from retrain.workload import Train
from tests.tasks.train.helpers import KEY, run

ROOT = Path(__file__).parents[3]
RECIPE = Train(epochs=2, batch_size=16)

# Trains, and is killed when it calls a method of MLflow's client; at its end if it ends the run.
KILLED = textwrap.dedent(
    """
    import os, signal, sys
    from pathlib import Path
    from mlflow import MlflowClient
    from tests.tasks.train.helpers import run
    from tests.tasks.train.test_tracked import RECIPE

    root, images, name = sys.argv[1:]
    method = getattr(MlflowClient, name)

    def killed(*arguments, **named):
        if name == "set_terminated":
            method(*arguments, **named)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(MlflowClient, name, killed)
    run(Path(root), Path(images), RECIPE, output=name)
    """
)


@pytest.mark.slow
def test_a_training_has_one_run_whenever_it_was_killed(images, tmp_path):
    # Before the run has its parameters; when it has ended, and the output is not published yet.
    for name in ("log_batch", "set_terminated"):
        done = subprocess.run(
            [sys.executable, "-c", KILLED, str(tmp_path), str(images), name],
            env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == -signal.SIGKILL, done.stderr
    trained = run(tmp_path, images, RECIPE)
    client = tracking.client(trained.project)
    experiment = client.get_experiment_by_name("sides")
    [tracked] = client.search_runs([experiment.experiment_id])
    assert tracked.info.run_id == trained.run_id
    assert tracked.info.status == "FINISHED"
    assert tracked.data.tags[tracking.KEY] == KEY
    assert tracked.data.params["train.epochs"] == "2"
    for name in sorted(trained.history[0].keys() - {"seconds"}):
        steps = [metric.step for metric in client.get_metric_history(trained.run_id, name)]
        assert Counter(steps) == {1: 1, 2: 1}
