"""Renders a page as one HTML file that needs nothing else, and says where pages are.

The templates draw its pictures as SVG, so they follow the reader's colours (dark, print) and can be
read aloud, as an image that Matplotlib draws cannot.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from retrain.messages import local_time
from retrain.project import Project
from retrain.runs import console

TEMPLATES = Path(__file__).with_name("templates")
FOLDER, LATEST, INDEX = "reports", "latest.html", "index.html"
A_NUMBER = re.compile(r"\s*(<[^>]*>)?[-+]?\d")  # how a cell with one begins, maybe in a link


def render(template: str, content: Mapping[str, Any]) -> str:
    """The HTML of a page; whatever it is given is escaped.

    Args:
        template: The name of a file in `templates/`, without its ending.
        content: What the template shows.
    """
    from jinja2 import Environment, FileSystemLoader

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"shown": shown, "local_time": local_time}
    environment.globals |= {"axis": Axis, "ticks": ticks, "styles_of": styles_of}
    return environment.get_template(f"{template}.html.j2").render(content)


def shown(value: str | float | None) -> str:
    """A text as it is, and a number as people read it."""
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else console.number(value)


class Axis:
    """Where values are drawn: the least at `start`, the greatest at `end`, and others in between.

    Attributes:
        low: The least value.
        high: The greatest value.
    """

    def __init__(self, values: Iterable[float], start: float, end: float) -> None:
        numbers = [*values]
        self.low, self.high = min(numbers), max(numbers)
        self._start, self._length = start, end - start

    def __call__(self, value: float) -> float:
        """The place of a value; one beyond the ends of the axis is at its end."""
        share = (value - self.low) / ((self.high - self.low) or 1.0)
        return round(self._start + min(max(share, 0.0), 1.0) * self._length, 2)


def ticks(low: float, high: float, count: int = 6, whole: bool = False) -> list[float]:
    """Round values within bounds, at most one more than a count."""
    from matplotlib.ticker import MaxNLocator

    places = MaxNLocator(count, integer=whole).tick_values(low, high)
    return [round(float(value), 10) for value in places if low <= value <= high]


def date_ticks(first: float, last: float) -> list[tuple[float, str]]:
    """Round local dates between two times (seconds since 1970), and their labels."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, num2date

    zone = datetime.now().astimezone().tzinfo
    locator = AutoDateLocator(tz=zone, minticks=3, maxticks=7)
    places = locator.tick_values(*(datetime.fromtimestamp(time, zone) for time in (first, last)))
    labels = ConciseDateFormatter(locator, tz=zone).format_ticks(places)
    times = (num2date(place, zone).timestamp() for place in places)
    return [pair for pair in zip(times, labels, strict=True) if first <= pair[0] <= last]


def styles_of(rows: Sequence[Sequence[object]]) -> dict[int, str]:
    """The columns of a table that have a value anywhere, each with the style of its cells."""
    styles = {}
    for place, column in enumerate(zip(*rows, strict=True)):
        texts = [str(value) for value in column if value not in (None, "")]
        if texts:
            styles[place] = "number" if all(map(A_NUMBER.match, texts)) else ""
    return styles


def bar(
    label: str, value: float, text: str, low: float | None = None, high: float | None = None
) -> dict[str, Any]:
    """A row of the picture `intervals`: a value, its interval if it has one, and what it says."""
    return {"label": label, "value": value, "text": text, "low": low, "high": high}


def point(x: float, y: float, title: str, **more: Any) -> dict[str, Any]:
    """A point of the picture `curves`.

    Args:
        x: Its place on the horizontal axis.
        y: Its value.
        title: What it says.
        more: `low` and `high`, the ends of its interval; `marked`; `style`, a class of `style.css`.
    """
    return {"x": x, "y": y, "title": title, "low": None, "high": None, **more}


def folder_of(project: Project, workload: str) -> Path:
    """The folder with the pages of a workload."""
    return project.root / FOLDER / workload


def latest_of(workload: str, flow: str) -> str:
    """Where the latest page of a flow is, relative to the project; `latest.html` for trainings."""
    return f"{FOLDER}/{workload}/{LATEST if flow == 'train' else f'{flow}.html'}"
