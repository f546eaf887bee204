"""The order of the steps: pull > validate > preprocess > train > evaluate > gate > promote.

It is the same whether the steps are run or only looked at, so it knows nothing of Prefect.
"""

from retrain import summary
from retrain.artifact import Origin, Store
from retrain.look import HasToRunError, Look
from retrain.project import Project
from retrain.step import DataVersion
from retrain.workload import Workload
from tasks.evaluate import STEP as EVALUATE
from tasks.gate import STEP as GATE, Runner, score_champion
from tasks.preprocess import STEP as PREPROCESS
from tasks.promote import STEP as PROMOTE
from tasks.pull import STEP as PULL, data_version
from tasks.train import STEP as TRAIN
from tasks.validate import STEP as VALIDATE


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
    champion = score_champion(run, data, checked, images, scores)
    decision = run(GATE, scores, champion)
    run(PROMOTE, version, model, scores, decision)


def unchanged(
    project: Project, workload: Workload, revision: str | None = None
) -> summary.Document | None:
    """Looks whether a run would change nothing: same data, code and parameters, same champion.

    Args:
        project: The clone.
        workload: With the parameters that a run would have.
        revision: The git revision whose version of the data a run would use.

    Returns:
        The document that a run would end with, under the last run's id and time; None when
        something has to run, or the last run failed or was interrupted.

    Raises:
        ValueError: As a run would.
    """
    last = summary.completed(project, workload.name)
    if last is None:
        return None
    version = data_version(workload.data, project, revision)
    look = Look(workload, version, Store(project.store), Origin(last["run"], project))
    try:
        follow(look, version)
    except HasToRunError:
        return None
    return summary.still(look, last) if look.agrees_with(last) else None
