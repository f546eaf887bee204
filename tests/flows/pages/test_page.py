"""A page is one file that needs nothing else, and escapes all that it is given."""

import re
from html.parser import HTMLParser
from itertools import pairwise

import pytest

from flows.pages import page, pictures
from flows.pages.page import Axis, bar, point
from tests.tasks.toy_data import HEIC

HOSTILE = "<script>alert(1)</script>\"' onmouseover=x &amp;"
PIXEL = "data:image/png;base64,AA=="


def content_with(text):
    """The content of a page of a run, with each kind of part, and a text wherever one can be."""
    bars = {"title": text, "bars": [bar(text, 0.5, text, 0.4, 0.6)], "lines": [(0.2, text, "zero")]}
    points = [point(1, 0.5, text, low=0.4, high=0.6), point(2, 0.7, text, marked=True)]
    curves = {"title": text, "curves": {text: points}, "labels": [(1, text)], "mark": (1, text)}
    thumbnail = {"source": PIXEL, "alt": text, "small": True}
    gallery = pictures.gallery([([thumbnail, thumbnail], [(text, "bad"), (text, "path")])], 3)
    table = {"title": text, "columns": ("a", text, "b"), "rows": [(text, text, 1), (text, "", 0.5)]}
    document = {"error": text, "steps": [{"step": text}], "log": text, "workload": text}
    return {
        "title": text,
        "origin": text,
        "verdict": {"name": text, "sentence": text, "mark": "✓", "style": "good"},
        "document": document | {"look": {"MLflow run": text}, "model": {"version": text}},
        "command": text,
        "missing": [text],
        "facts": {text: text},
        "says": text,
        "commands": {text: text},
        "steps": [(text, text, "1.0", text)],
        "machine": [(text, text)],
        "folders": {},
        "parts": {
            "Each part": [{"text": text}, table, bars, bars | {"dots": True}, curves, gallery]
        },
    }


class Elements(HTMLParser):
    """The elements of a page, each with its attributes, and the texts."""

    def __init__(self, html):
        super().__init__()
        self.found, self.texts = [], []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.texts.append(data)


def assert_stays_text(template, content_with_text):
    """Asserts that a hostile text makes the same elements as a harmless one."""
    harmless, hostile = (
        Elements(page.render(template, content_with_text(text))) for text in ("harmless", HOSTILE)
    )
    assert [(tag, set(of)) for tag, of in hostile.found] == [
        (tag, set(of)) for tag, of in harmless.found
    ]
    assert "script" not in {tag for tag, _ in hostile.found}
    assert HOSTILE in hostile.texts


def test_a_hostile_name_stays_a_text_wherever_it_is_shown():
    assert_stays_text("run", content_with)


def test_a_page_makes_no_request():
    html = page.render("run", content_with("a"))
    elements = Elements(html).found
    targets = [of[name] for _, of in elements for name in ("href", "src") if name in of]
    assert targets
    assert all(target.startswith(("#", "data:")) for target in targets)
    assert "default-src 'none'" in html


def test_whatever_is_drawn_says_its_value_where_the_pointer_rests_on_it():
    html = page.render("run", content_with("a"))
    for mark in ("<circle", '<rect class="bar"', '<line class="whisker'):
        for before in html.split(mark)[:-1]:
            assert re.search(r"<title>[^<]+</title>[^<]*(<(?!/g>|/svg>)[^<]*)*$", before), mark


def test_values_are_placed_on_an_axis_and_cut_off_at_its_ends():
    axis = Axis((-1.0, 1.0), 0, 100)
    assert [axis(value) for value in (-2.0, -1.0, 0.0, 0.5, 3.0)] == [0.0, 0.0, 50.0, 75.0, 100.0]
    assert Axis(iter([0.5]), 164, 8)(0.5) == 164  # as of a single epoch, from a template


def test_a_value_holds_until_the_next_one_in_steps():
    points = [point(0, 1.0, ""), point(1, 2.0, ""), point(2, 0.0, "")]
    accuracy = {"a": points}
    content = {"verdict": {}, "facts": {}, "accuracy": accuracy, "sizes": points, "labels": []}
    html = page.render("history", content)
    for line in re.findall(r'points="([^"]+)"', html):
        places = [place.split(",") for place in line.split()]
        assert len(places) == 5
        assert all(a[0] == b[0] or a[1] == b[1] for a, b in pairwise(places))


def test_columns_without_a_value_are_left_out_and_those_of_numbers_are_told():
    rows = [("a", None, 1, "x", "<a>1</a>"), ("b", "", 0.5, "", "2 of 3")]
    assert page.styles_of(rows) == {0: "", 2: "number", 3: "", 4: "number"}


@pytest.mark.parametrize("days", [0.1, 3, 90, 900])
def test_dates_on_an_axis_are_few_and_within_it(days):
    labels = page.date_ticks(1.7e9, 1.7e9 + days * 86400)
    assert 2 <= len(labels) <= 8
    assert all(1.7e9 <= time <= 1.7e9 + days * 86400 for time, _ in labels)
    assert all(one != other for (_, one), (_, other) in pairwise(labels))


def test_a_photo_of_a_phone_has_a_thumbnail_where_its_package_is_installed():
    pytest.importorskip("pi_heif")
    assert pictures.of_encoded(HEIC, "a photo")["alt"] == "a photo"
    assert "cannot be decoded" in pictures.of_encoded(HEIC[:300], "a photo")["alt"]
