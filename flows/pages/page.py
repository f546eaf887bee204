"""Renders a page as one HTML file that needs nothing else, and says where pages are.

The templates draw its pictures as SVG, so they follow the reader's colours (dark, print) and can be
read aloud, as an image that Matplotlib draws cannot.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retrain.messages import local_time, with_local_times
from retrain.project import Project
from retrain.runs import console

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).with_name("templates")
FOLDER, LATEST, INDEX = "reports", "latest.html", "index.html"
FIGURE = re.compile(r"\s*(<[^>]*>)?[-+]?\d")  # how a cell with a number begins, maybe in a link


def render(template: str, content: Mapping[str, Any]) -> str:
    """The HTML of a page; whatever it is given is escaped.

    Args:
        template: The name of a file in `templates/`, without its ending.
        content: What the template shows.
    """
    return environment().get_template(f"{template}.html.j2").render(content)


def environment() -> "Environment":
    """The templates, and what they call."""
    from jinja2 import Environment, FileSystemLoader

    from tasks.data import thumbnails

    found = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    found.filters |= {"shown": shown, "local_time": local_time, "local_times": with_local_times}
    found.tests["figure"] = FIGURE.match
    found.globals |= {"axis": axis, "ticks": ticks, "interval": interval}
    found.globals["thumbnail"] = thumbnails.of_file
    return found


def shown(value: str | float | None) -> str:
    """A text as it is, and a number as people read it."""
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else console.number(value)


def axis(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    """Where values are drawn: `low` at `start`, `high` at `end`, and what is beyond at its end."""

    def place(value: float) -> float:
        share = (value - low) / ((high - low) or 1.0)
        return round(start + min(max(share, 0.0), 1.0) * (end - start), 2)

    return place


def ticks(low: float, high: float, count: int = 5, whole: bool = False) -> list[float]:
    """Round values within bounds, at most one more than a count; one if the bounds are the same."""
    from matplotlib.ticker import MaxNLocator

    places = MaxNLocator(count, integer=whole).tick_values(low, high)
    return [round(float(place), 10) for place in places if low <= place <= high] or [low]


def interval(share: float, images: float) -> tuple[float, float]:
    """The ends of the 95 % interval of a share of some images."""
    from tasks.data.metrics import wilson

    return wilson(round(share * images), int(images))


def folder_of(project: Project, workload: str) -> Path:
    """The folder with the pages of a workload."""
    return project.root / FOLDER / workload


def latest_of(workload: str, flow: str) -> str:
    """Where the latest page of a flow is, relative to the project; `latest.html` for trainings."""
    return f"{FOLDER}/{workload}/{LATEST if flow == 'train' else f'{flow}.html'}"
