"""The flow `suspects`: pull > validate > embed_with_champion > find_suspects.

retrain suspects vit

It finds what may be wrong in the data, and changes nothing: the report has the images, and
`retrain labels` takes corrections.
"""

from flows.reports.suspects import SuspectsReport
from flows.train import train
from retrain.errors import UsageError
from retrain.flow import steps_flow
from retrain.registry import versions
from retrain.runs.run import current_run
from retrain.step import Input
from tasks.data.champion import Registered, champion_ties
from tasks.pull.step import data_version, pull
from tasks.suspects.embeddings import embed_with_champion
from tasks.suspects.step import find_suspects
from tasks.validate.step import validate


@steps_flow(
    steps=(pull, validate, embed_with_champion, find_suspects),
    report=SuspectsReport(),
    version=data_version,
    other_steps=train.steps,
)
def suspects(version: Input) -> None:
    """Finds labels that are probably wrong, contradictions and outliers in a workload's data.

    Raises:
        UsageError: There is no champion.
        ValueError: It does not tell the embeddings of images; or the data cannot be read, or fails
            its checks.
    """
    run = current_run()
    name = run.workload.name
    champion = versions.champion(run.project, name)
    if champion is None:
        raise UsageError(
            f"{name} has no champion yet, by whose embeddings images are compared: retrain train "
            f"{name}"
        )
    data = pull(version)
    checked = validate(data, champion_ties())
    embedded = embed_with_champion(Registered(run.project, champion).as_input, data, checked)
    find_suspects(checked, embedded)
