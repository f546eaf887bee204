"""The plot of a model's champions: their metric over time."""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from retrain.plot_style import BLUE, GREY, ORANGE, STYLE
from retrain.registry.ledger import Entry
from retrain.registry.versions import ModelVersion

COLOURS = {"promoted": BLUE, "rolled back": ORANGE}


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

    shown: list[tuple[Any, float, Entry]] = [
        (datetime.fromisoformat(entry.time), version.metrics[metric], entry)
        for entry, version in champions
        if metric in version.metrics
    ]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.0, 3.2), layout="constrained")
        axes = figure.subplots()
        times, values = [time for time, _, _ in shown], [value for _, value, _ in shown]
        axes.plot(times, values, drawstyle="steps-post", color=GREY, linewidth=1)
        for action, colour in COLOURS.items():
            of_it = [(time, value) for time, value, entry in shown if entry.action == action]
            if of_it:
                axes.scatter(*zip(*of_it, strict=True), color=colour, label=action, zorder=3)
        for time, value, entry in shown:
            axes.annotate(
                str(entry.version), (time, value), (4, 4), textcoords="offset points", fontsize=8
            )
        axes.set_ylabel(f"{metric} on its test split")
        axes.set_title("Champions, by version")
        if shown:
            axes.legend()
        axes.tick_params("x", rotation=30)
        figure.savefig(file, format="png")
