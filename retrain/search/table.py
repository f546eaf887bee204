"""The trials of a search as a table, and as values in the document of a run."""

from collections.abc import Mapping, Sequence
from typing import Any

from retrain.runs import console
from retrain.search.patch import as_yaml
from retrain.search.trials import Trial


def row(trial: Trial) -> dict[str, Any]:
    """A trial in the document of a run."""
    return {
        "trial": trial.number,
        "values": dict(trial.values),
        "state": trial.state,
        "best": trial.best and dict(trial.best),
        "epochs": len(trial.reached),
        "reason": trial.reason,
        "cached": trial.cached,
        "seconds": trial.seconds,
        "mlflow": trial.mlflow,
    }


def table(rows: Sequence[Mapping[str, Any]], names: Sequence[str], metric: str) -> list[list[str]]:
    """The trials in cells, below a row with the names of the columns.

    Args:
        rows: As `row` gives them.
        names: Of the parameters that were searched; in the table, without the section if that is
            clear.
        metric: The name of the metric.
    """
    short = [name.rpartition(".")[2] for name in names]
    headings = [
        end if short.count(end) == 1 else name for name, end in zip(names, short, strict=True)
    ]
    cells = [["trial", *headings, metric, "best epoch", "epochs", "state"]]
    for each in rows:
        best = each["best"] or {}
        values = [as_yaml(each["values"][name]) for name in names]
        reached = [
            console.number(best.get(metric)),
            str(best.get("epoch", "")),
            str(each["epochs"]),
        ]
        cells.append([str(each["trial"]), *values, *reached, each["state"]])
    return cells
