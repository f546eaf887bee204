"""A flow of the toy steps, with a real Prefect server, store and log."""

from uuid import uuid4

import pytest
from prefect import flow, runtime

from retrain.project import Project
from retrain.runs.liveness import Processes
from retrain.runs.run import Run
from retrain.workload import Train
from tests.retrain.runs.toy import ASKS, DATA, FIRST, SECOND, WORKLOAD


@pytest.fixture
def run_toy(prefect_session, tmp_path):
    """Runs steps as a flow, each on the output of the one before; returns the run."""

    def toy(run_id, train, data, refresh, steps):
        workload = WORKLOAD.model_copy(update={"train": train})
        run = Run("toy", workload, data, Project(tmp_path), run_id, refresh=refresh)

        def body(made):
            for step in steps:
                made = step(made)

        with Processes(run.store.root).hold():
            run.follow(body)
        return run

    @flow
    def in_prefect(*arguments):
        return toy(str(runtime.flow_run.id), *arguments)

    def call(
        epochs=10, data=DATA, refresh=False, steps=(FIRST, SECOND, ASKS), tasks=False, **others
    ):
        arguments = (Train(epochs=epochs, **others), data, refresh, steps)
        return in_prefect(*arguments) if tasks else toy(str(uuid4()), *arguments)

    return call
