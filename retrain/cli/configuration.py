"""What a shell completes after `--set`."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cyclopts.completion import CompletionContext


def assignments(_: "CompletionContext") -> dict[str, str]:
    """What `--set` begins with, `KEY=`, with the first sentence about each parameter."""
    from retrain.cli.params import parameters

    return {f"{one.name}=": one.description.partition(".")[0] for one in parameters()}
