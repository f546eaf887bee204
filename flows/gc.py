"""The flow `gc`: what no recent run and no model in production needs is removed.

retrain gc [--keep 5] [--days 90] [--dry-run]
prefect deployment run gc/weekly --watch

The command removes without Prefect, whose server removes its old runs itself: `prefect.toml` says
when.
"""

from retrain.flow import flow
from retrain.gc import DAYS, KEEP, collect, total
from retrain.project import find_project
from retrain.runs.records import Document


@flow
def gc(keep: int = KEEP, days: int = DAYS) -> Document:
    """Removes what no recent run and no model in production needs.

    Args:
        keep: How many runs of each flow and workload are kept.
        days: How many days the logs, reports and other files of earlier runs are kept.

    Returns:
        `garbage`, as `retrain gc --json` prints it, and `outcome`.
    """
    garbage = collect(find_project(), keep, days)
    return {"garbage": [vars(piece) for piece in garbage], "outcome": f"Removed: {total(garbage)}."}
