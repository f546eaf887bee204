"""What a shell completes after `--set`."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cyclopts.completion import CompletionContext


def assignments(_: "CompletionContext") -> list[str]:
    """What `--set` begins with, `KEY=`, for the parameters that all families have."""
    from retrain.faults import names_of
    from retrain.workload import Workload

    return [f"{name}=" for name in names_of(Workload) if name != "name"]
