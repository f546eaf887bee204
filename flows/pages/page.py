"""Renders a page as one HTML file that needs nothing else, and puts it where people look."""

from pathlib import Path

from flows.pages.blocks import Page
from retrain.project import Project

TEMPLATES = Path(__file__).with_name("templates")
FOLDER, LATEST, INDEX = "reports", "latest.html", "index.html"


def render(page: Page) -> str:
    """The HTML of a page; whatever it is given is escaped."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style = Markup((TEMPLATES / "style.css").read_text(encoding="utf-8"))
    return environment.get_template("page.html.j2").render(page=page, style=style)


def folder_of(project: Project, workload: str) -> Path:
    """The folder with the pages of a workload."""
    return project.root / FOLDER / workload


def latest_of(workload: str, flow: str) -> str:
    """Where the latest page of a flow is, relative to the project; `latest.html` for trainings."""
    return f"{FOLDER}/{workload}/{LATEST if flow == 'train' else f'{flow}.html'}"
