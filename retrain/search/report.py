"""What people see of a search: its trials as a table, and Optuna's plots of them."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retrain.params import as_yaml
from retrain.runs import console

if TYPE_CHECKING:
    from optuna import Study

TABLE, HISTORY, SLICE = "trials.csv", "history.png", "parameters.png"


def write(study: "Study", metric: str, folder: Path) -> None:
    """Writes the trials as a table, their metric in order, and against each parameter.

    Args:
        study: With at least one complete trial.
        metric: The name of the metric.
        folder: Is created.
    """
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot
    from optuna.visualization.matplotlib import plot_optimization_history, plot_slice

    folder.mkdir(parents=True, exist_ok=True)
    study.trials_dataframe().to_csv(folder / TABLE, index=False)
    for plot, file in ((plot_optimization_history, HISTORY), (plot_slice, SLICE)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the plots are marked as experimental
            plot(study, target_name=metric)
        pyplot.savefig(folder / file, bbox_inches="tight")
        pyplot.close("all")


def table(rows: Sequence[Mapping[str, Any]], metric: str) -> list[list[str]]:
    """The trials in cells, below a row with the names of the columns."""
    cells = [["trial", *rows[0]["values"], metric, "best epoch", "epochs", "state"]]
    for row in rows:
        best = row["best"] or {}
        values = [as_yaml(value) for value in row["values"].values()]
        reached = [console.number(best.get(metric)), str(best.get("epoch", "")), str(row["epochs"])]
        cells.append([str(row["trial"]), *values, *reached, row["state"]])
    return cells
