"""A page is one file that needs nothing else, and escapes all that it is given."""

import re
from html.parser import HTMLParser

from flows.pages import publish
from tasks.data import thumbnails
from tests.tasks.toy_data import HEIC

HOSTILE = "<script>alert(1)</script>\"' onmouseover=x &amp;"


def documents_with(text):
    """A document of a run of each of the other flows, with a text wherever one can be."""
    run = {"workload": text, "run": text, "time": "2026-11-02T12:00:00+00:00", "outcome": text}
    run |= {"model": {"name": text, "version": text}, "input": text, "output": text}
    run |= {"look": {"csv": text, "MLflow run": text}}
    values = {"reference": 1.0, "incoming": 2.0, "distance": 0.5, "usual": 0.1, "score": 5.0}
    drift = {"features": [{"feature": text} | values], "labels": [{"label": text} | values]}
    drift |= {"threshold": 2.0, "reference": text, "images": 3, "reference_images": 4}
    found = {"low": 0.4, "high": 0.6, "labelled": 3, "accuracy": 0.5, "recall": 0.5}
    production = {"weeks": [{"week": text} | found], "classes": [{"label": text} | found]}
    production |= {"test": 0.9, "images": 3, "labelled": 2, "unknown": [text], "worse": True}
    trials = [
        {
            "trial": number,
            "state": text,
            "values": {text: text},
            "best": {text: 0.5},
            "reason": text,
        }
        for number in (1, 2)
    ]
    step = {"step": text, "cached": False, "seconds": 1.0, "why": text, "path": text}
    suspects = {"rows": 9, "wrong_labels": 1, "contradictions": 2, "outliers": 1}
    own = {
        "predict": {"rows": 3, "errors": 1, "labels": {text: 2}, "drift": drift, "state": None},
        "drift": {"drift": drift, "state": text},
        "production": {"production": production | {"calibration_error": 0.1}},
        "tune": {"trials": trials, "best": trials[0], "command": text, "search": {"metric": text}},
        "suspects": {"suspects": suspects},
    }
    ended = [run | {"flow": flow} | more for flow, more in own.items()]
    failed = run | {"flow": text, "error": text, "log": text, "steps": [step]}
    return [*ended, failed]


def content_with(document, text):
    """The content of the page of a document, with a list of images."""
    row = {"label": text, "proposed": text, "split": text, "confidence": 0.5, "distance": 2.0}
    row |= {"picture": thumbnails.of_encoded(b"", text)}
    row |= {"why": "outlier", "path": text}
    listed = {"wrong_labels": [[row]], "contradictions": [[row, row]], "outliers": [[row]]}
    return {"document": document, "entry": text, "made": {}, "listed": listed}


def pages_with(text):
    return [
        publish.render("run.html", content_with(document, text))
        for document in documents_with(text)
    ]


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


def assert_stays_text(harmless, hostile):
    """Asserts that a page with hostile texts has the same elements as one with harmless ones."""
    harmless, hostile = Elements(harmless), Elements(hostile)
    assert [(tag, set(of)) for tag, of in hostile.found] == [
        (tag, set(of)) for tag, of in harmless.found
    ]
    assert "script" not in {tag for tag, _ in hostile.found}
    assert any(HOSTILE in text for text in hostile.texts)


def test_a_hostile_name_stays_a_text_wherever_it_is_shown():
    for harmless, hostile in zip(pages_with("harmless"), pages_with(HOSTILE), strict=True):
        assert_stays_text(harmless, hostile)


def test_a_page_makes_no_request():
    for html in pages_with("a"):
        elements = Elements(html).found
        targets = [of[name] for _, of in elements for name in ("href", "src") if name in of]
        assert targets
        assert all(target.startswith(("#", "data:")) for target in targets)
        assert "default-src 'none'" in html


def test_whatever_is_drawn_says_its_value_where_the_pointer_rests_on_it():
    html = "".join(pages_with("a"))
    for mark in ("<circle", '<rect class="bar"', '<line class="whisker'):
        assert mark in html
        for before in html.split(mark)[:-1]:
            assert re.search(r"<title>[^<]+</title>[^<]*(<(?!/g>|/svg>)[^<]*)*$", before), mark


def test_a_photo_of_a_phone_has_a_thumbnail_where_its_package_is_installed():
    assert thumbnails.of_encoded(HEIC, "a photo")["alt"] == "a photo"
    assert "cannot be decoded" in thumbnails.of_encoded(HEIC[:300], "a photo")["alt"]
