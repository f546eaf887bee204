"""The geometry of a page's pictures; `templates/page.html.j2` draws them as SVG.

Drawn so, a picture follows the reader's colours (dark, print), and can be read aloud; an image that
Matplotlib draws cannot. Positions are in pixels of the picture, or in percent of its width.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from typing import ClassVar

CURVE_WIDTH, CURVE_HEIGHT, CURVE_LEFT = 330, 190, 52
MAX_DOTS = 200  # of a curve; more would cover each other


@dataclass(frozen=True)
class Tick:
    """A labelled place on an axis."""

    at: float
    label: str


@dataclass(frozen=True)
class Line:
    """A vertical line across a picture; `style` is `zero` or `bound` of `style.css`."""

    at: float
    label: str
    style: str


@dataclass(frozen=True)
class Interval:
    """A value with its interval, to be drawn.

    Attributes:
        label: Beside the row.
        value: What is drawn as a dot or a bar.
        low: The lower end of the interval; None without one.
        high: The upper end.
        text: What is said of the value, on the other side.
    """

    label: str
    value: float
    low: float | None
    high: float | None
    text: str


@dataclass(frozen=True)
class Intervals:
    """Rows of values with their intervals over one axis: a table, with pictures in it.

    The values of `ticks`, `lines` and `rows` are places from 0 (left) to 100, in percent.
    """

    kind: ClassVar[str] = "intervals"
    description: str
    rows: Sequence[Interval]
    ticks: Sequence[Tick]
    lines: Sequence[Line]
    legend: str
    dots: bool


def intervals(
    description: str,
    rows: Sequence[Interval],
    bounds: tuple[float, float],
    form: str = ".0%",
    lines: Sequence[Line] = (),
    legend: str = "",
    dots: bool = False,
) -> Intervals:
    """Lays out rows of values with their intervals.

    Args:
        description: What a screen reader says.
        rows: From the top.
        bounds: The least and the greatest value of the axis.
        form: The format of the axis.
        lines: Vertical lines, at values of the axis.
        legend: A sentence below.
        dots: Whether the values are dots; bars from the left end of the axis if not.
    """

    def place(value: float) -> float:
        share = (value - bounds[0]) / (bounds[1] - bounds[0])
        return round(100 * min(max(share, 0.0), 1.0), 2)

    def placed(row: Interval) -> Interval:
        low, high = (None if end is None else place(end) for end in (row.low, row.high))
        return replace(row, value=place(row.value), low=low, high=high)

    return Intervals(
        description=description,
        rows=[placed(row) for row in rows],
        ticks=[Tick(place(value), format(value, form)) for value in ticks(*bounds, count=4)],
        lines=[replace(line, at=place(line.at)) for line in lines],
        legend=legend,
        dots=dots,
    )


@dataclass(frozen=True)
class Point:
    """A point of a curve, to be drawn; `marked` ones are larger, and `style` is one of a dot."""

    x: float
    y: float
    title: str
    low: float | None = None
    high: float | None = None
    marked: bool = False
    style: str = ""


@dataclass(frozen=True)
class Curve:
    """A curve in pixels: its line as SVG has it, which is empty for mere dots, and its dots."""

    label: str
    points: str
    dots: Sequence[Point]


@dataclass(frozen=True)
class Curves:
    """Curves over one axis."""

    kind: ClassVar[str] = "curves"
    title: str
    description: str
    width: int
    height: int
    left: int
    x_ticks: Sequence[Tick]
    y_ticks: Sequence[Tick]
    marks: Sequence[Line]
    lines: Sequence[Curve]
    legend: str


def curves(
    title: str,
    lines: Sequence[tuple[str, Sequence[Point]]],
    x_labels: Sequence[tuple[float, str]],
    mark: Line | None = None,
    legend: str = "",
    steps: bool = False,
    width: int = CURVE_WIDTH,
) -> Curves:
    """Lays out curves.

    Args:
        title: What they show.
        lines: The label and the points of each, with values instead of pixels, by ascending `x`.
        x_labels: Places and labels on the horizontal axis.
        mark: A vertical line, at a value of the horizontal axis.
        legend: A sentence below.
        steps: Whether a value holds until the next one.
        width: Of the picture, in pixels.
    """
    points = [point for _, of in lines for point in of]
    across = _Scale([point.x for point in points], CURVE_LEFT, width - 12)
    ends = [end for point in points for end in (point.y, point.low, point.high) if end is not None]
    up = _Scale(ends, CURVE_HEIGHT - 26, 8)
    return Curves(
        title=title,
        description=f"{title}: {'; '.join(_described(label, of) for label, of in lines)}",
        width=width,
        height=CURVE_HEIGHT,
        left=CURVE_LEFT,
        x_ticks=[Tick(across(value), label) for value, label in x_labels],
        y_ticks=[Tick(up(value), f"{value:,g}") for value in ticks(min(ends), max(ends))],
        marks=[] if mark is None else [replace(mark, at=across(mark.at))],
        lines=[_curve(label, of, across, up, steps) for label, of in lines],
        legend=legend,
    )


def _curve(
    label: str, points: Sequence[Point], across: "_Scale", up: "_Scale", steps: bool
) -> Curve:
    every = max(1, len(points) // MAX_DOTS)
    dots = [
        replace(
            point,
            x=across(point.x),
            y=up(point.y),
            low=None if point.low is None else up(point.low),
            high=None if point.high is None else up(point.high),
        )
        for number, point in enumerate(points)
        if number % every == 0 or point.marked
    ]
    path = [(across(point.x), up(point.y)) for point in points]
    if steps:
        corners = pairwise(path)
        path = [path[0], *(end for at, after in corners for end in ((after[0], at[1]), after))]
    line = " ".join(f"{x},{y}" for x, y in path)
    return Curve(label, "" if points[0].style else line, dots)


@dataclass(frozen=True)
class Histogram:
    """How often values are in each of some ranges; all places are in percent, upwards too.

    Attributes:
        title: What is counted.
        description: What a screen reader says.
        bars: The left end, the width, the height and the text of each.
        ticks: Labels on the axis.
    """

    kind: ClassVar[str] = "histogram"
    title: str
    description: str
    bars: Sequence[tuple[float, float, float, str]]
    ticks: Sequence[Tick]


def histogram(title: str, counts: Sequence[int], edges: Sequence[float]) -> Histogram:
    """Lays out how often values are in each of some ranges.

    Args:
        title: What is counted.
        counts: How many values are in each range; one of them is greater than 0.
        edges: The ends of the ranges in ascending order, one more than there are ranges.
    """
    across, up = _Scale([edges[0], edges[-1]], 0, 100), _Scale([0, max(counts)], 0, 100)
    ranges = [f"{low:,.4g} to {high:,.4g}" for low, high in pairwise(edges)]
    bars = [
        (across(low), across(high) - across(low), up(count), f"{text}: {count:,}")
        for count, text, (low, high) in zip(counts, ranges, pairwise(edges), strict=True)
    ]
    described = f"{title}: most often {ranges[counts.index(max(counts))]}"
    labels = [Tick(across(value), f"{value:,g}") for value in ticks(edges[0], edges[-1], count=4)]
    return Histogram(title, described, bars, labels)


def ticks(low: float, high: float, whole: bool = False, count: int = 6) -> list[float]:
    """Round values within bounds, at most one more than a count."""
    from matplotlib.ticker import MaxNLocator

    places = MaxNLocator(count, integer=whole).tick_values(low, high)
    return [round(float(value), 10) for value in places if low <= value <= high]


def date_ticks(first: float, last: float) -> list[tuple[float, str]]:
    """Round local dates between two times (seconds since 1970), and their labels."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, num2date

    zone = datetime.now().astimezone().tzinfo
    ends = (datetime.fromtimestamp(time, zone) for time in (first, last))
    locator = AutoDateLocator(tz=zone, minticks=3, maxticks=7)
    places = locator.tick_values(*ends)
    labels = ConciseDateFormatter(locator, tz=zone).format_ticks(places)
    times = (num2date(place, zone).timestamp() for place in places)
    return [
        (time, label) for time, label in zip(times, labels, strict=True) if first <= time <= last
    ]


class _Scale:
    """Turns values into pixels: the least into `start`, the greatest into `end`."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        self._low = min(values)
        self._range = (max(values) - self._low) or 1.0
        self._start, self._length = start, end - start

    def __call__(self, value: float) -> float:
        return round(self._start + (value - self._low) / self._range * self._length, 1)


def _described(label: str, points: Sequence[Point]) -> str:
    return f"{label} from {points[0].y:.4g} to {points[-1].y:.4g}"
