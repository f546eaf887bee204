"""The order of the steps: pull > validate > preprocess > train > evaluate > gate > promote.

It is the same whether the steps are run or only looked at, so it knows nothing of Prefect.
"""

from collections.abc import Callable
from functools import partial
from importlib import import_module

from retrain import tracking
from retrain.project import Project
from retrain.runs import records
from retrain.runs.dry_run import DryRun, StepHasToRunError
from retrain.runs.runner import Runner
from retrain.step import DataVersion
from retrain.store import RunContext, Store
from retrain.workload import Workload
from tasks.evaluate.champion import score_champion
from tasks.evaluate.step import STEP as EVALUATE
from tasks.gate.step import STEP as GATE
from tasks.preprocess.step import STEP as PREPROCESS
from tasks.promote.step import STEP as PROMOTE
from tasks.pull.step import STEP as PULL, data_version
from tasks.train.step import STEP as TRAIN
from tasks.validate.step import STEP as VALIDATE

# What the steps import that takes long, in the order in which it is needed.
IMPORTS = {
    "pull": ("dvc.repo",),
    "validate": ("great_expectations",),
    "preprocess": ("numpy", "pyarrow.parquet"),
    "train": ("mlflow", "torch", "ray.train.torch", "transformers.modeling_utils"),
    "evaluate": ("matplotlib.figure",),
}


def follow(run: Runner, version: DataVersion) -> None:
    """Takes a version of the data through all steps.

    Raises:
        ValueError: Something that the user has to mend, such as data that fails its checks.
    """
    data = run(PULL, version)
    checked = run(VALIDATE, data)
    images = run(PREPROCESS, data, checked)
    model = run(TRAIN, images)
    scores = run(EVALUATE, model, images)
    champion = score_champion(run, data, checked, scores)
    decision = run(GATE, scores, champion)
    run(PROMOTE, version, data, checked, model, scores, decision)


def look(project: Project, workload: Workload, revision: str | None = None) -> DryRun:
    """Looks at the steps, in order, as far as none of them has to run. Nothing is changed.

    Args:
        project: The clone.
        workload: With the parameters that a run would have.
        revision: The git revision whose version of the data a run would use.

    Raises:
        ValueError: As a run would.
    """
    last = records.completed(project, workload.name)
    context = RunContext(last["run"] if last else "", project)
    version = data_version(workload.data, project, revision)
    looked = DryRun(workload, version, Store(project.store), context, last)
    try:
        follow(looked, version)
    except StepHasToRunError as error:
        looked.has_to_run = error.step
    return looked


def import_ahead(project: Project, first: str | None) -> list[Callable[[], object]]:
    """What a run imports from its first step on that has to run, in calls of a second or so."""
    names = list(IMPORTS)
    if first not in names:
        return []
    after = names[names.index(first) :]
    modules = [module for name in after for module in IMPORTS[name]]
    ahead: list[Callable[[], object]] = [partial(import_module, module) for module in modules]
    if "train" in after:
        ahead.append(partial(tracking.client, project))  # may have to make MLflow's database
    return ahead
