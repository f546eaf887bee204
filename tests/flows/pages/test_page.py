"""A page is one file that needs nothing else, and escapes all that it is given."""

import re
from html.parser import HTMLParser
from itertools import pairwise

import pytest

from flows.pages import charts, page, thumbnails
from flows.pages.blocks import (
    Cell,
    Columns,
    Command,
    Count,
    Details,
    Gallery,
    Heading,
    Matrix,
    Page,
    Picture,
    Section,
    Summary,
    Table,
    Text,
    Thumbnail,
    Verdict,
    cells,
)
from flows.pages.charts import Interval, Line, Point
from tests.tasks.toy_data import HEIC

HOSTILE = "<script>alert(1)</script>\"' onmouseover=x &amp;"
PIXEL = "data:image/png;base64,AA=="


def page_with(text: str) -> Page:
    """A page with a text wherever one can be."""
    intervals = charts.intervals(
        text, [Interval(text, 0.5, 0.4, 0.6, text)], (0.0, 1.0), lines=[Line(0.2, text, "bound")]
    )
    curves = charts.curves(text, [(text, [Point(1, 0.5, text), Point(2, 0.7, text)])], [(1, text)])
    picture = Picture([Thumbnail(PIXEL, text)], [Text(text)])
    blocks = [
        Text(text),
        Heading(text),
        Command(text, text),
        Summary([(text, text)]),
        Table(text, [cells(text, Cell(text, "bad"), Cell(text, link="#a"))], (text, text, text)),
        Matrix(text, [text], [[Count(3, 0.5, "confused-0")]]),
        Columns([intervals, curves, charts.histogram(text, [3, 0, 1], [0, 1, 2, 3])]),
        Details(text, [Gallery([picture], "confused-0")]),
    ]
    return Page(text, text, Verdict(text, text, "✓", "good"), [intervals], [Section("A", blocks)])


class Elements(HTMLParser):
    """The elements of a page, each with its attributes, and the texts."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.texts.append(data)


def test_a_hostile_name_stays_a_text_wherever_it_is_shown():
    harmless, hostile = (Elements(page.render(page_with(text))) for text in ("harmless", HOSTILE))
    assert [(tag, set(of)) for tag, of in hostile.found] == [
        (tag, set(of)) for tag, of in harmless.found
    ]
    assert "script" not in {tag for tag, _ in hostile.found}
    assert HOSTILE in hostile.texts


def test_a_page_makes_no_request():
    html = page.render(page_with("a"))
    targets = [
        value
        for _, attributes in Elements(html).found
        for name, value in attributes.items()
        if name in ("href", "src")
    ]
    assert targets
    assert all(target.startswith(("#", "data:")) for target in targets)
    assert "default-src 'none'" in html


@pytest.mark.parametrize("values", [[0.5], [0.5, 0.5], [1.0, 3.0, 2.0]])
def test_a_curve_stays_within_its_picture(values):
    points = [Point(number, value, "") for number, value in enumerate(values)]
    chart = charts.curves("a", [("a", points)], [(0, "0")], mark=Line(0.0, "", "zero"))
    places = [tuple(map(float, place.split(","))) for place in chart.lines[0].points.split()]
    assert len(places) == len(values)
    assert all(0 <= x <= chart.width and 0 <= y <= chart.height for x, y in places)
    highest = min(range(len(values)), key=lambda number: places[number][1])
    assert values[highest] == max(values)


def test_a_value_holds_until_the_next_one_in_steps():
    points = [Point(0, 1.0, ""), Point(1, 2.0, ""), Point(2, 0.0, "")]
    chart = charts.curves("a", [("a", points)], [(0, "0")], steps=True)
    places = [place.split(",") for place in chart.lines[0].points.split()]
    assert len(places) == 5
    assert all(a[0] == b[0] or a[1] == b[1] for a, b in pairwise(places))


def test_intervals_are_placed_on_the_axis_and_cut_at_its_ends():
    rows = [Interval("a", 0.0, -2.0, 0.5, ""), Interval("a longer label", 1.0, None, None, "")]
    chart = charts.intervals("a", rows, (-1.0, 1.0), dots=True)
    first, second = chart.rows
    assert (first.low, first.value, first.high) == (0.0, 50.0, 75.0)
    assert (second.value, second.low) == (100.0, None)


def test_whatever_is_drawn_says_its_value_where_the_pointer_rests_on_it():
    html = page.render(page_with("a"))
    for mark in ("<circle", '<rect class="bar"', '<line class="whisker'):
        for before in html.split(mark)[:-1]:
            assert re.search(r"<title>[^<]+</title>[^<]*(<(?!/g>|/svg>)[^<]*)*$", before), mark


def test_a_bar_of_a_histogram_is_as_high_as_its_count_is_large():
    chart = charts.histogram("Width", [3, 0, 1], [0.0, 10.0, 20.0, 30.0])
    assert [bar[0] for bar in chart.bars] == pytest.approx([0, 33.3, 66.7])
    assert [bar[2] for bar in chart.bars] == pytest.approx([100, 0, 33.3])
    assert [bar[3] for bar in chart.bars] == ["0 to 10: 3", "10 to 20: 0", "20 to 30: 1"]
    assert chart.description == "Width: most often 0 to 10"


@pytest.mark.parametrize("days", [0.1, 3, 90, 900])
def test_dates_on_an_axis_are_few_and_within_it(days):
    labels = charts.date_ticks(1.7e9, 1.7e9 + days * 86400)
    assert 2 <= len(labels) <= 8
    assert all(1.7e9 <= time <= 1.7e9 + days * 86400 for time, _ in labels)
    assert all(one != other for (_, one), (_, other) in pairwise(labels))


def test_a_photo_of_a_phone_has_a_thumbnail_where_its_package_is_installed():
    pytest.importorskip("pi_heif")
    assert thumbnails.of_encoded(HEIC, "a photo").alt == "a photo"
    assert "cannot be decoded" in thumbnails.of_encoded(HEIC[:300], "a photo").alt
