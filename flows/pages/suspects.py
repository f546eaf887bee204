"""What the page of the flow `suspects` shows beside the document of the run: the images."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from retrain.store import Artifact
from tasks.data import thumbnails
from tasks.data.raw_images import open_images
from tasks.data.review_list import CONTRADICTION
from tasks.suspects.step import COUNTS, FILE, find_suspects

SHOWN = 200  # of each kind

Row = dict[str, Any]


def content(made: Mapping[str, Artifact]) -> dict[str, Any]:
    """The first suspects of each kind, by the name of its count, as far as the store has them.

    Args:
        made: The outputs of the run's steps that are still there.

    Returns:
        `listed`: of each suspect its row, with a `picture`; or two rows, if they look alike.
    """
    if not {"pull", find_suspects.name} <= made.keys():
        return {"listed": {}}
    rows = json.loads((made[find_suspects.name].folder / FILE).read_bytes())
    listed = {name: _groups(rows, kind)[:SHOWN] for name, kind in COUNTS.items()}
    shown = {
        (row["file"], row["row"]): row
        for groups in listed.values()
        for group in groups
        for row in group
    }
    places = sorted(shown)
    for place, image in zip(places, open_images(made["pull"]).read(places), strict=True):
        shown[place]["picture"] = thumbnails.of_encoded(image, shown[place]["path"])
    return {"listed": listed}


def _groups(rows: Sequence[Row], kind: str) -> list[list[Row]]:
    """The suspects of a kind; two that look like each other are together, once."""
    by_path = {row["path"]: row for row in rows}
    groups = []
    for row in rows:
        if kind not in row["why"].split("; "):
            continue
        other = by_path.get(row["look_alike"]) if kind == CONTRADICTION else None
        if other is None:
            groups.append([row])
        elif other["look_alike"] != row["path"] or row["path"] < other["path"]:
            groups.append([row, other])
    return groups
