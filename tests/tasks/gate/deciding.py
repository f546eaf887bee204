"""What the gate is given: an evaluation, and what comparisons found."""

import json
import tempfile
from pathlib import Path

from retrain.project import Project
from retrain.step import Workspace
from retrain.store import Artifact
from retrain.workload import Gate
from tasks.data.champion import Opponent, Opponents
from tasks.gate.step import gate

NONE = Opponents(None, None)
TABLE = [
    {"label": "cat", "recall": 0.9, "precision": 1.0, "f1": 0.95, "rows": 200, "predicted": 180},
    {"label": "dog", "recall": 1.0, "precision": 0.9, "f1": 0.95, "rows": 160, "predicted": 180},
]
NEW = {"label": "new", "recall": 0.0, "precision": 0.0, "f1": 0.0, "rows": 2, "predicted": 1}
FOLDERS = tempfile.TemporaryDirectory()


def scores(table=TABLE, slices=(), **metrics: float) -> Artifact:
    """An evaluation in a folder of its own."""
    rows = sum(row["rows"] for row in table)
    given = {"accuracy": 0.95, "log_loss": 0.2, "worst_class_recall": 0.9, "rows": rows} | metrics
    folder = Path(tempfile.mkdtemp(dir=FOLDERS.name))
    (folder / "classes.json").write_text(json.dumps({"classes": table}))
    facts = {
        "metrics": given,
        "slices": [*slices],
        "package": "my package",
        "train": "my training",
        "test_images": "test images",
    }
    return Artifact("evaluate", "k", "d", folder, facts)


def found(outcome: str, metric="accuracy", **others) -> dict:
    """What a comparison found."""
    of = {
        "challenger": 0.95, "opponent": 0.94, "gained": 7, "lost": 3, "difference": 0.01,
        "low": 0.005, "high": 0.025, "outcome": outcome, "visible": 0.023,
    }  # fmt: skip
    facts = {
        "images": 360, "learnt": 0, "recorded": True, "other_classes": 0, "level": 0.05,
        "absent": [], "new_classes": [], "not_compared": [],
    }  # fmt: skip
    return facts | {"metrics": {metric: of}} | others


def against(champion=None, reference=None) -> Opponents:
    """A champion, version 3, and a reference, version 2, each with what its comparison found."""
    made = (
        None if each is None else Opponent(version, f"t{version}", METRICS, each)
        for version, each in ((3, champion), (2, reference))
    )
    return Opponents(*made)


METRICS = {"accuracy": 0.94, "log_loss": 0.2}


def decide(rules: Gate, challenger: Artifact, opponents: Opponents) -> dict:
    place = Path(tempfile.gettempdir())
    workspace = Workspace(place, place, "key", "toy", Project(place / "nowhere"))
    return gate(rules, challenger, opponents, workspace)
