"""The flow `gc`: what no run has used for long, and no model in use came from, is removed.

retrain gc [--days 90] [--dry-run]
prefect deployment run gc/weekly --watch

The command removes without Prefect, whose server removes its old runs itself: `prefect.toml` says
when.
"""

from retrain.flow import flow
from retrain.gc import DAYS, collect, total
from retrain.project import find_project
from retrain.runs.records import Document


@flow
def gc(days: int = DAYS) -> Document:
    """Removes what no run has used for some days, and no model in use came from.

    Args:
        days: How many days something stays after its last use.

    Returns:
        `garbage`, as `retrain gc --json` prints it, and `outcome`.
    """
    garbage = collect(find_project(), days)
    return {"garbage": [vars(piece) for piece in garbage], "outcome": f"Removed: {total(garbage)}."}
