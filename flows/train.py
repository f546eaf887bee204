"""The main job as a Prefect flow; `flows/order.py` has the steps.

retrain train vit
prefect deployment run train/vit --watch
"""

from functools import partial
from typing import Any

from prefect import flow, runtime
from prefect.client.schemas.objects import State
from prefect.states import Completed

from flows.order import follow, look
from retrain.project import find_project
from retrain.runs import records
from retrain.runs.run import Run
from retrain.store import RunContext, Store
from retrain.workload import load_workload
from tasks.pull.step import data_version


@flow(name="train", flow_run_name="train-{workload}", persist_result=False)
def train(
    workload: str = "vit",
    overrides: dict[str, Any] | None = None,
    data_rev: str | None = None,
    refresh: bool = False,
    run: bool = False,
) -> records.Document | State[records.Document]:
    """Trains a workload's model and promotes it if it is better than the one in production.

    When nothing has changed since the last run, none of it is done, and the flow run ends in the
    state `Skipped`.

    Args:
        workload: An entry of `params.yaml`.
        overrides: Parameters that replace the file's, by dotted name: `{"train.lr": 0.0005}`.
        data_rev: A git revision whose version of the data is used; the working tree's if None.
        refresh: Run every step, even those whose output is in the store.
        run: Go through the steps even if nothing has changed.

    Returns:
        The run's summary, as `retrain train --json` prints it.

    Raises:
        ValueError: Something that the user has to mend, such as data that fails its checks. A
            model that the gate rejects is no error.
    """
    project = find_project()
    config = load_workload(project.params, workload, overrides)
    if not (run or refresh) and (same := look(project, config, data_rev).unchanged()):
        return Completed(name="Skipped", message=records.outcome(same), data=same)
    version = data_version(config.data, project, data_rev)
    context = RunContext(str(runtime.flow_run.id), project)
    steps = Run(config, version, Store(project.store), context, refresh)
    with steps.going_on(), records.kept(steps):
        steps.follow(partial(follow, version=version))
    return records.published(steps)
