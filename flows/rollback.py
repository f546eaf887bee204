"""The flow `rollback`: the champion before the current one becomes champion again.

retrain rollback vit --reason "wrong labels in week 12" [--to VERSION]

The commands call `decide` without Prefect: going back is not to depend on a server.
"""

from retrain.flow import flow
from retrain.project import find_project
from retrain.runs.records import Document
from tasks.promote.approval import decide as decide


@flow
def rollback(workload: str, reason: str, to: int | None = None) -> Document:
    """Makes the champion before the current one champion again, and enters that in the ledger.

    Args:
        workload: The name of the workload.
        reason: Why, for the ledger.
        to: The version to go back to; the champion before the current one if None.

    Returns:
        What was done, as `retrain rollback --json` prints it, with `state` and `outcome`.

    Raises:
        ValueError: There is nothing to go back to, or the version cannot be served.
    """
    result = decide(find_project(), workload, "rolled back", reason, to)
    return result | {"state": "Rolled back", "outcome": f"{result['outcome']}."}
