"""A flow of the toy steps, with a real Prefect server, store and log."""

from uuid import uuid4

import pytest
from prefect import flow, runtime

from retrain.project import Project
from retrain.runs.liveness import Processes
from retrain.runs.run import Run
from retrain.workload import Train
from tests.flows.conftest import until
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


@pytest.fixture
def task_states(prefect_session):
    """The names of the final states of a run's tasks, by the tasks' names."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowRunFilter

    def find(run, count):
        this_run = FlowRunFilter.model_validate({"id": {"any_": [run.id]}})
        with get_client(sync_client=True) as client:

            def ended():
                tasks = client.read_task_runs(flow_run_filter=this_run)
                states = {task.name: task.state.name for task in tasks if task.state.is_final()}
                return states if len(states) == count else None

            return until(ended)

    return find
