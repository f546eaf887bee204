"""Draws the plots of an evaluation, as PNG files for people."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from retrain.plot_style import BLUE, GREY, RED, STYLE
from tasks.data.metrics import CALIBRATION_BINS, Tally

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from tasks.data.shards import Shards

MAX_COUNTED_CLASSES = 25  # with more, the numbers in the cells are too small to read
MAX_NAMED_CLASSES = 60
GRID_ROWS, GRID_COLUMNS = 4, 8
SHOWN = GRID_ROWS * GRID_COLUMNS
PANEL_WIDTH, PANEL_HEIGHT = 1.1, 1.25  # in sides of an image
NAME_LENGTH = 12


def draw(tally: Tally, images: "Shards", folder: Path) -> None:
    """Draws all plots of an evaluation.

    Args:
        tally: The predictions for the test split.
        images: The images of the test split.
        folder: The folder for the PNG files.
    """
    from matplotlib import rc_context

    with rc_context(STYLE):
        figures = {
            "confusion_matrix": _confusion_matrix(tally),
            "reliability": _reliability(tally),
            "worst_mistakes": _worst_mistakes(tally, images),
        }
        for name, figure in figures.items():
            figure.savefig(folder / f"{name}.png")


def worst_mistakes(tally: Tally) -> NDArray[np.int64]:
    """The rows of the most confident mistakes, the worst first; of equal ones, the first."""
    wrong = np.flatnonzero(~tally.correct)
    order = np.argsort(-tally.predictions.confidence[wrong], kind="stable")
    return wrong[order[:SHOWN]]


def _confusion_matrix(tally: Tally) -> "Figure":
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    counts, size = tally.confusion, len(tally.names)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    side = min(max(4.5, 0.42 * size + 2), 12)
    figure = Figure((side + 0.8, side), layout="constrained")
    axes = figure.subplots()
    axes.grid(False)
    axes.spines[:].set_visible(False)
    cells = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    if size <= MAX_COUNTED_CLASSES:
        for row, column in np.argwhere(counts):
            axes.text(
                column, row, str(counts[row, column]), ha="center", va="center",
                color="white" if shares[row, column] > 0.5 else "black",
            )  # fmt: skip
    if size <= MAX_NAMED_CLASSES:
        names = [_short(name) for name in tally.names]
        steep = max(map(len, names)) > 3
        axes.set_xticks(range(size), names, rotation=90 if steep else 0)
        axes.set_yticks(range(size), names)
    axes.tick_params(length=0)
    axes.set(xlabel="predicted class", ylabel="true class", title="Confusion matrix")
    figure.colorbar(
        cells, shrink=0.6, label="of the true class", format=PercentFormatter(1)
    ).outline.set_visible(False)
    return figure


def _reliability(tally: Tally) -> "Figure":
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    bins = tally.calibration
    figure = Figure((4.8, 5.2), layout="constrained")
    above, below = figure.subplots(2, sharex=True, height_ratios=(3, 1))
    above.plot((0, 1), (0, 1), color=GREY, linestyle="--", label="perfectly calibrated")
    above.plot(bins.confidence, bins.accuracy, color=BLUE, marker="o", label="this model")
    above.set(ylabel="accuracy", title=f"Calibration (expected error {bins.error:.3f})")
    above.legend(loc="upper left")
    below.bar(bins.confidence, bins.share, width=0.8 / CALIBRATION_BINS, color=BLUE)
    below.set(xlabel="confidence", ylabel="of all images", xlim=(0, 1.02))
    for axis in (above.yaxis, below.yaxis, below.xaxis):
        axis.set_major_formatter(PercentFormatter(1))
    return figure


def _worst_mistakes(tally: Tally, images: "Shards") -> "Figure":
    """Images below their true and predicted classes; in one pair of axes, as each takes 10 ms.

    The side of an image is the unit of the axes.
    """
    from matplotlib.figure import Figure

    rows, mistakes = worst_mistakes(tally), int((~tally.correct).sum())
    figure = Figure((1.35 * GRID_COLUMNS, 1.5 * GRID_ROWS + 0.6))
    title = f"The most confident of {mistakes} mistakes in {tally.rows} images"
    figure.suptitle(title, x=0.01, ha="left")
    axes = figure.add_axes((0.01, 0.01, 0.98, 0.92))
    axes.set_axis_off()
    shown = tally.predictions.take(rows)
    for place, image in enumerate(images[rows]):
        row, column = divmod(place, GRID_COLUMNS)
        left = column * PANEL_WIDTH + (PANEL_WIDTH - 1) / 2
        top = row * PANEL_HEIGHT + PANEL_HEIGHT - 1
        # The colour map is for grey images; those with three channels ignore it.
        axes.imshow(
            image.squeeze(), cmap="gray", vmin=0, vmax=255, interpolation="nearest",
            extent=(left, left + 1, top + 1, top),
        )  # fmt: skip
        true, answer = (
            _short(tally.names[indices[place]]) for indices in (shown.labels, shown.predicted)
        )
        caption = f"{true} → {answer}   {shown.confidence[place]:.0%}"
        axes.text(left + 0.5, top - 0.05, caption, color=RED, fontsize=8, ha="center")
    axes.set(xlim=(0, GRID_COLUMNS * PANEL_WIDTH), ylim=(GRID_ROWS * PANEL_HEIGHT, 0))
    return figure


def _short(name: str) -> str:
    """A class's name as it is drawn: on one line, and not too long."""
    name = "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in name)
    return name if len(name) <= NAME_LENGTH else f"{name[: NAME_LENGTH - 1]}…"
