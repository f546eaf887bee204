"""The plot of a model's champions: their metric over time."""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from retrain.plot_style import BLUE, STYLE
from retrain.registry.ledger import Entry
from retrain.registry.versions import ModelVersion


def plot(champions: Sequence[tuple[Entry, ModelVersion]], metric: str, file: Path) -> None:
    """Draws a step for each champion, from its appointment to that of the next.

    Args:
        champions: The entries that made a version champion, oldest first, with that version. One
            without the metric is left out.
        metric: The name of the metric; as it was measured when the version was registered.
        file: A PNG file.

    Raises:
        OSError: It cannot be written.
    """
    import matplotlib
    from matplotlib.figure import Figure

    shown = [(entry, version) for entry, version in champions if metric in version.metrics]
    times: list[Any] = [datetime.fromisoformat(entry.time) for entry, _ in shown]
    values = [version.metrics[metric] for _, version in shown]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.0, 3.2), layout="constrained")
        axes = figure.subplots()
        axes.plot(times, values, drawstyle="steps-post", color=BLUE, marker="o")
        for time, value, (entry, _) in zip(times, values, shown, strict=True):
            number = str(entry.version)
            axes.annotate(number, (time, value), (4, 4), textcoords="offset points", fontsize=8)
        axes.set_ylabel(f"{metric} on its test split")
        axes.set_title("Champions, by version")
        axes.tick_params("x", rotation=30)
        figure.savefig(file, format="png")
