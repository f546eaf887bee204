"""The main job: pull > validate > preprocess > train > evaluate > gate > promote.

retrain train vit
prefect deployment run train/vit --watch
"""

from typing import Any

from prefect import flow, runtime

from retrain import summary
from retrain.artifact import Origin, Store
from retrain.project import find_project
from retrain.run import Run
from retrain.workload import load_workload
from tasks.evaluate import STEP as EVALUATE
from tasks.gate import STEP as GATE, score_champion
from tasks.preprocess import STEP as PREPROCESS
from tasks.promote import STEP as PROMOTE
from tasks.pull import STEP as PULL, data_version
from tasks.train import STEP as TRAIN
from tasks.validate import STEP as VALIDATE


@flow(name="train", flow_run_name="train-{workload}")
def train(
    workload: str = "vit",
    overrides: dict[str, Any] | None = None,
    data_rev: str | None = None,
    refresh: bool = False,
) -> dict[str, Any]:
    """Trains a workload's model and promotes it if it is better than the one in production.

    Args:
        workload: An entry of `params.yaml`.
        overrides: Parameters that replace the file's, by dotted name: `{"train.lr": 0.0005}`.
        data_rev: A git revision whose version of the data is used; the working tree's if None.
        refresh: Run every step, even those whose output is in the store.

    Returns:
        The run's summary, as `retrain train --json` prints it.

    Raises:
        ValueError: Something that the user has to mend, such as data that fails its checks. A
            model that the gate rejects is no error.
    """
    project = find_project()
    config = load_workload(project.params, workload, overrides)
    version = data_version(config.data, project, data_rev)
    origin = Origin(str(runtime.flow_run.id), project)
    run = Run(config, version, Store(project.store), origin, refresh)
    with summary.kept(run):
        data = run(PULL, version)
        checked = run(VALIDATE, data)
        images = run(PREPROCESS, data, checked)
        model = run(TRAIN, images)
        scores = run(EVALUATE, model, images)
        champion = score_champion(run, data, checked, images, scores)
        decision = run(GATE, scores, champion)
        run(PROMOTE, version, model, scores, decision)
    return summary.published(run)
