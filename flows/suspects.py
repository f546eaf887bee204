"""The flow `suspects`: pull > validate > embed_with_champion > find_suspects.

retrain suspects vit
prefect deployment run suspects/vit --watch

It finds what may be wrong in the data, and changes nothing: the report has the images, and
`retrain labels import` takes corrections.
"""

from flows.reports.suspects import SuspectsReport
from flows.train import train
from retrain.errors import UsageError
from retrain.flow import flow
from retrain.registry import decisions
from retrain.step import DataVersion, current_run
from tasks.data.champion import Registered
from tasks.pull.step import data_version, pull
from tasks.suspects.embeddings import embed_with_champion
from tasks.suspects.step import find_suspects
from tasks.validate.step import validate


@flow(tells=SuspectsReport(), version=data_version, beside=train)
def suspects(version: DataVersion) -> None:
    """Finds labels that are probably wrong, contradictions and outliers in a workload's data.

    Raises:
        ValueError: There is no champion, or it does not tell the embeddings of images; or the data
            cannot be read, or fails its checks.
    """
    champion = find_champion()  # before the work
    data = pull(version)
    checked = validate(data)
    find_suspects(data, checked, embed_with_champion(champion, data, checked))


def find_champion() -> Registered:
    """The champion of the workload of the run.

    Raises:
        UsageError: There is none.
    """
    run = current_run()
    champion = decisions.champion(run.project, run.workload.name)
    if champion is None:
        name = run.workload.name
        raise UsageError(
            f"{name} has no champion yet, by whose embeddings images are compared: retrain train "
            f"{name}"
        )
    return Registered(run.project, champion)
