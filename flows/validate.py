"""The flow `validate`: pull > validate, to check the data before a training or on a schedule.

retrain validate vit
"""

from flows.reports.training import ChecksReport
from flows.train import train
from retrain.flow import steps_flow
from retrain.step import Input
from tasks.data.champion import champion_ties
from tasks.pull.step import data_version, pull
from tasks.validate.step import validate as check


@steps_flow(
    steps=(pull, check),
    report=ChecksReport(),
    version=data_version,
    other_steps=train.steps,
    imports=("great_expectations",),
)
def validate(version: Input) -> None:
    """Pulls and checks a workload's data.

    Raises:
        ValueError: The data cannot be read, or fails its checks.
    """
    data = pull(version)
    check(data, champion_ties())
