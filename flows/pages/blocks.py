"""What a page is made of: sections of blocks, which `templates/page.html.j2` draws.

The names and texts may come from the user's data: the template escapes them all.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

TALL = 4  # letters; of longer names, few fit side by side


class Block(Protocol):
    """A part of a section; its kind says how it is drawn."""

    kind: ClassVar[str]


@dataclass(frozen=True)
class Text:
    """A paragraph; `style` is a class of `style.css`, or empty."""

    kind: ClassVar[str] = "text"
    text: str
    style: str = ""


@dataclass(frozen=True)
class Heading:
    """A heading within a section."""

    kind: ClassVar[str] = "heading"
    text: str


@dataclass(frozen=True)
class Command:
    """A command that the reader may want, and what it is for."""

    kind: ClassVar[str] = "command"
    meaning: str
    command: str


@dataclass(frozen=True)
class Summary:
    """What counts most, as pairs of a name and a value, side by side."""

    kind: ClassVar[str] = "summary"
    facts: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Cell:
    """A cell of a table; `style` is a class of `style.css`, `link` a target."""

    text: str
    style: str = ""
    link: str = ""


@dataclass(frozen=True)
class Table:
    """A table, whose first column names its rows.

    Attributes:
        caption: What it shows.
        rows: The cells of each row.
        columns: The names of the columns; none where they explain themselves.
        numbers: The columns, from 0, that have numbers.
    """

    kind: ClassVar[str] = "table"
    caption: str
    rows: Sequence[Sequence[Cell]]
    columns: Sequence[str] = ()
    numbers: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Count:
    """A cell of a matrix: a count, its share of the row (0 to 1), and the anchor of its images."""

    count: int
    heat: float
    link: str | None = None


@dataclass(frozen=True)
class Matrix:
    """A square of counts by true class (rows) and predicted class (columns)."""

    kind: ClassVar[str] = "matrix"
    caption: str
    names: Sequence[str]
    rows: Sequence[Sequence[Count]]

    @property
    def tall(self) -> bool:
        """Whether the names of the columns are written from top to bottom."""
        return max(map(len, self.names)) > TALL


@dataclass(frozen=True)
class Thumbnail:
    """An image as a page has it.

    Attributes:
        source: A data URL.
        alt: What a screen reader says.
        small: Whether it is enlarged, with sharp pixels.
    """

    source: str
    alt: str
    small: bool = False


@dataclass(frozen=True)
class Picture:
    """One or several thumbnails side by side, with lines of text below."""

    thumbnails: Sequence[Thumbnail]
    lines: Sequence[Text]


@dataclass(frozen=True)
class Gallery:
    """Pictures in a grid; `anchor` is what a link on the page leads to."""

    kind: ClassVar[str] = "gallery"
    pictures: Sequence[Picture]
    anchor: str = ""


@dataclass(frozen=True)
class Columns:
    """Blocks side by side, where the page is wide enough."""

    kind: ClassVar[str] = "columns"
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Details:
    """Blocks that the reader can open."""

    kind: ClassVar[str] = "details"
    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Section:
    """A section with a place in the navigation."""

    title: str
    blocks: Sequence[Block]

    @property
    def anchor(self) -> str:
        """What a link to it leads to."""
        return self.title.lower().replace(" ", "-")


@dataclass(frozen=True)
class Verdict:
    """How a run ended.

    Attributes:
        name: In a word.
        sentence: In a sentence.
        mark: A sign that goes with the word, so that colour is not all that tells.
        style: A class of `style.css`.
    """

    name: str
    sentence: str
    mark: str
    style: str


@dataclass(frozen=True)
class Page:
    """A page.

    Attributes:
        title: In the browser's tab.
        origin: What it is of: a workload, a run, a time.
        verdict: How that ended.
        top: Blocks before the first section.
        sections: In order.
    """

    title: str
    origin: str
    verdict: Verdict
    top: Sequence[Block]
    sections: Sequence[Section]


def cells(*values: object) -> tuple[Cell, ...]:
    """A row of plain texts."""
    return tuple(value if isinstance(value, Cell) else Cell(str(value)) for value in values)
