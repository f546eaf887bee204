"""Says what the checks found in the data, for the flows."""

from collections.abc import Mapping
from typing import Any

from tasks.validate.step import NEAR_DUPLICATES


def say_near_duplicates(document: Mapping[str, Any]) -> None:
    """Shows how many images look like one that is held out from them, if there are any."""
    from retrain.runs import console

    if count := document["data"]["near_duplicates"]:
        console.say(
            f"{count:,} images look like one of a split held out from theirs: {NEAR_DUPLICATES} "
            "beside the Data Docs lists them."
        )
