"""The plots of an evaluation, as PNG files for people."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retrain.plot_style import BLUE, GREEN, GREY, ORANGE, RED, STYLE
from tasks.data.metrics import CALIBRATION_BINS, Confusion, Predictions, Tally

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from tasks.data.shards import StoredImages

MAX_COUNTED_CLASSES = 25  # with more, the numbers in the cells are too small to read
MAX_NAMED_CLASSES = 60
GRID_ROWS, GRID_COLUMNS = 4, 8
PANEL_WIDTH, PANEL_HEIGHT = 1.1, 1.25  # in sides of an image
NAME_LENGTH = 12


@dataclass(frozen=True)
class Example:
    """One prediction.

    Attributes:
        row: Of the split.
        label: The true class.
        predicted: The predicted one.
        confidence: The probability of the predicted class.
    """

    row: int
    label: int
    predicted: int
    confidence: float


class Examples:
    """The few predictions that are shown with their images.

    Attributes:
        sample: Some, evenly spaced over the split.
        worst: The most confident mistakes, the worst first; of equal ones, the first.
    """

    def __init__(self, rows: int) -> None:
        """Chooses the rows of the sample.

        Args:
            rows: Of the split.
        """
        import numpy as np

        count = GRID_ROWS * GRID_COLUMNS
        self._wanted = np.linspace(0, rows - 1, min(rows, count)).astype(np.int64)
        self.sample: list[Example] = []
        self.worst: list[Example] = []

    def add(self, first: int, predictions: Predictions) -> None:
        """Looks through further rows.

        Args:
            first: The first of them.
            predictions: Of these rows.
        """
        import numpy as np

        def examples(places: "NDArray[np.int64]") -> list[Example]:
            columns = (predictions.labels, predictions.predicted, predictions.confidence)
            chosen = (column[places].tolist() for column in columns)
            return [Example(*each) for each in zip((first + places).tolist(), *chosen, strict=True)]

        stop = first + len(predictions.labels)
        wanted = self._wanted[(self._wanted >= first) & (self._wanted < stop)]
        self.sample += examples(wanted - first)
        wrong = np.flatnonzero(predictions.labels != predictions.predicted)
        order = np.argsort(-predictions.confidence[wrong], kind="stable")
        candidates = self.worst + examples(wrong[order[: GRID_ROWS * GRID_COLUMNS]])
        candidates.sort(key=lambda example: -example.confidence)
        self.worst = candidates[: GRID_ROWS * GRID_COLUMNS]


def draw(
    tally: Tally,
    confusion: Confusion,
    examples: Examples,
    images: "StoredImages",
    history: Sequence[Mapping[str, Any]],
    folder: Path,
) -> None:
    """Draws all plots of an evaluation.

    Args:
        tally: Of the test split.
        confusion: The same.
        examples: Of the same split.
        images: Of the same split.
        history: Of the training, an entry per epoch.
        folder: Where the PNG files go.
    """
    from matplotlib import rc_context

    wrong = tally.rows - int(tally.correct.sum())
    with rc_context(STYLE):
        figures = {
            "confusion_matrix": _confusion_matrix(confusion),
            "reliability": _reliability(tally),
            "predictions": _grid(
                tally.names,
                images,
                examples.sample,
                "Predictions (a wrong one behind the true class)",
            ),
            "worst_mistakes": _grid(
                tally.names,
                images,
                examples.worst,
                f"The most confident of {wrong} mistakes in {tally.rows} images",
            ),
            "learning_curves": _learning_curves(history),
        }
        for name, figure in figures.items():
            figure.savefig(folder / f"{name}.png")


def _confusion_matrix(confusion: Confusion) -> "Figure":
    import numpy as np
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    counts = confusion.counts
    size = len(confusion.names)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    side = min(max(4.5, 0.42 * size + 2), 12)
    figure = Figure((side + 0.8, side), layout="constrained")
    axes = figure.subplots()
    axes.grid(False)
    axes.spines[:].set_visible(False)
    cells = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    if size <= MAX_COUNTED_CLASSES:
        for (row, column), count in np.ndenumerate(counts):
            if count:
                dark = shares[row, column] > 0.5
                axes.text(
                    column, row, str(count), ha="center", va="center",
                    color="white" if dark else "black",
                )  # fmt: skip
    if size <= MAX_NAMED_CLASSES:
        names = [_short(name) for name in confusion.names]
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


def _learning_curves(history: Sequence[Mapping[str, Any]]) -> "Figure":
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    figure = Figure((8.5, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    for name, words, colour in (
        ("loss", "loss", BLUE),  # of a training function of the user's
        ("train_loss", "training", BLUE),
        ("val_loss", "validation", ORANGE),
    ):
        if curve := _curve(history, name):
            left.plot(*curve, color=colour, label=words, marker=".")
    left.set(xlabel="epoch", title="Loss", ylim=(0, None))
    if left.lines:
        left.legend()
    if curve := _curve(history, "val_accuracy"):
        epochs, accuracy = curve
        right.plot(epochs, accuracy, color=ORANGE, marker=".")
        best = accuracy.index(max(accuracy))
        right.annotate(
            f"{accuracy[best]:.1%}", (epochs[best], accuracy[best]),
            (0, -16), textcoords="offset points", ha="center",
        )  # fmt: skip
    right.set(xlabel="epoch", title="Validation accuracy")
    right.yaxis.set_major_formatter(PercentFormatter(1))
    for axes in (left, right):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def _curve(history: Sequence[Mapping[str, Any]], name: str) -> tuple[list[int], list[float]] | None:
    """The epochs that have a metric, and its values; None if there are none."""
    found = [(entry["epoch"], entry[name]) for entry in history if name in entry]
    if not found:
        return None
    epochs, values = zip(*found, strict=True)
    return list(epochs), list(values)


def _grid(
    names: Sequence[str], images: "StoredImages", examples: Sequence[Example], title: str
) -> "Figure":
    """Images with their true and predicted classes; in one pair of axes, as each takes 10 ms."""
    import numpy as np
    from matplotlib.figure import Figure

    figure = Figure((1.35 * GRID_COLUMNS, 1.5 * GRID_ROWS + 0.6))
    figure.suptitle(title, x=0.01, ha="left")
    axes = figure.add_axes((0.01, 0.01, 0.98, 0.92))
    axes.set_axis_off()
    rows = np.array([example.row for example in examples], np.int64)
    for place, (example, image) in enumerate(zip(examples, images[rows], strict=True)):
        row, column = divmod(place, GRID_COLUMNS)
        _panel(axes, names, example, image, column * PANEL_WIDTH, row * PANEL_HEIGHT)
    axes.set(xlim=(0, GRID_COLUMNS * PANEL_WIDTH), ylim=(GRID_ROWS * PANEL_HEIGHT, 0))
    return figure


def _panel(
    axes: "Axes",
    names: Sequence[str],
    example: Example,
    image: "NDArray[np.uint8]",
    left: float,
    top: float,
) -> None:
    """An image below its classes; its sides are the unit of the axes."""
    true, predicted = _short(names[example.label]), _short(names[example.predicted])
    right = example.label == example.predicted
    left, top = left + (PANEL_WIDTH - 1) / 2, top + PANEL_HEIGHT - 1
    # The colour map is for grey images; those with three channels ignore it.
    axes.imshow(
        image.squeeze(), cmap="gray", vmin=0, vmax=255, interpolation="nearest",
        extent=(left, left + 1, top + 1, top),
    )  # fmt: skip
    axes.text(
        left + 0.5,
        top - 0.05,
        f"{true if right else f'{true} → {predicted}'}   {example.confidence:.0%}",
        color=GREEN if right else RED,
        fontsize=8,
        ha="center",
    )


def _short(name: str) -> str:
    """A class's name as it is drawn: on one line, and not too long."""
    name = "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in name)
    return name if len(name) <= NAME_LENGTH else f"{name[: NAME_LENGTH - 1]}…"
