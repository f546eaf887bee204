"""The history of a workload, as a page."""

import re
from itertools import pairwise

import pytest

from flows.pages import publish
from retrain.disk import write_json
from retrain.errors import RejectedDataError
from retrain.registry import decisions
from retrain.runs import records
from tests.tasks.promote.conftest import one, project, three  # noqa: F401 (fixtures)


def keep_failure(project, run, day, error, flow="train"):  # noqa: F811
    """Keeps the document of a run that failed; returns the file."""
    folder = project.state / "runs" / flow / "toy"
    folder.mkdir(parents=True, exist_ok=True)
    document = {"run": run, "time": f"{day}T12:00:00+00:00", **records.failure(project, error)}
    write_json(folder / f"{run}.json", document)
    write_json(folder / "latest.json", document)
    return folder / f"{run}.json"


def test_each_champion_is_in_the_picture_and_each_decision_in_the_table(project, three):  # noqa: F811
    entries = decisions.read(project, "toy").entries
    folder = publish.folder_of(project, "toy")
    folder.mkdir(parents=True)
    (folder / f"{entries[0].run}.html").touch()
    html = publish.render("history", publish.history(project, "toy"))
    assert "toy version 3 is the champion." in html
    for number in (1, 2, 3):
        assert html.count(f"<title>version {number}, promoted on") == 1
    link = f'href="{entries[0].run}.html" class="whole"'  # the time is not broken into two lines
    assert html.count(link) == 3  # all are of one run here


def test_a_single_champion_is_no_picture(project, one):  # noqa: F811
    html = publish.render("history", publish.history(project, "toy"))
    assert "<svg" not in html
    assert "promoted" in html


def test_a_version_that_was_not_promoted_does_not_stretch_the_axis(project, three):  # noqa: F811
    found = publish.history(project, "toy")
    *_, last = found["entries"]
    bad = last | {"version": 4, "action": "rejected", "appoints": False, "at": last["at"] + 1}
    bad |= {"metrics": last["metrics"] | {"accuracy": 0.0}, "low": 0.0, "high": 0.1}
    whole = publish.render("history", found)
    html = publish.render("history", found | {"measured": [*found["measured"], bad]})
    ticks = [re.findall(r'text-anchor="end">([^<]+)<', text) for text in (whole, html)]
    assert ticks[0] == ticks[1]
    assert re.search(
        r"<title>version 4, rejected on [^<]*0[.]0000</title>\s*<circle[^>]*hollow", html
    )


def test_a_value_holds_until_the_next_one_in_steps(project, three):  # noqa: F811
    html = publish.render("history", publish.history(project, "toy"))
    for line in re.findall(r'points="([^"]+)"', html):
        places = [place.split(",") for place in line.split()]
        assert len(places) == 5
        assert all(a[0] == b[0] or a[1] == b[1] for a, b in pairwise(places))


def test_waiting_is_shown_only_while_something_waits(project, three):  # noqa: F811
    found = publish.history(project, "toy")
    waited = found["entries"][0] | {"action": "waiting", "appoints": False}
    found["entries"] = [waited, *found["entries"]]
    found["rows"] = [waited, *found["rows"]]
    html = publish.render("history", found)
    assert "aiting<" not in html
    assert ">waited</span>" in html
    html = publish.render("history", found | {"waiting": waited})
    assert "<dt>Waiting</dt><dd>version 1</dd>" in html
    assert 'class="wait">waiting</span>' in html


@pytest.mark.parametrize("days", [0.1, 3, 90, 900])
def test_dates_on_an_axis_are_few_and_within_it(days):
    last = 1.7e9 + days * 86400
    labels = publish.dates([1.7e9, last])
    assert len(labels) == 3
    assert all(1.7e9 <= time <= last for time, _ in labels)
    assert all(a[1] != b[1] for a, b in pairwise(labels))


def test_a_run_without_a_decision_stands_among_them_with_its_reason(project, three):  # noqa: F811
    refusal = RejectedDataError("The data is rejected:\n- no image: 3 of 9\nAll of them: there")
    refused = keep_failure(project, "run-b", "2000-11-02", refusal)
    keep_failure(project, "run-a", "2099-11-09", OSError("the disk is gone"))
    keep_failure(project, "run-c", "2099-11-05", refusal, flow="validate")
    folder = publish.folder_of(project, "toy")
    folder.mkdir(parents=True)
    (folder / f"{refused.stem}.html").touch()
    found = publish.history(project, "toy")
    told = [row.get("action", row.get("refused")) for row in found["rows"]]
    assert told == [False, *["promoted"] * 3, True]
    html = publish.render("history", found)
    assert "run-a.html" not in html
    assert "the disk is gone" in html
    assert "The data is rejected: - no image: 3 of 9" in html
    assert 'href="run-b.html"' in html
    for ending in ("Refused", "Failed"):
        assert f"<dt>{ending}</dt><dd>1</dd>" in html


def test_a_workload_whose_first_data_was_refused_has_a_history(project):  # noqa: F811
    file = keep_failure(project, "run-1", "2026-11-02", RejectedDataError("too few images"))
    html = publish.render("history", publish.history(project, "toy"))
    assert "toy has no champion." in html
    assert "too few images" in html
    file.unlink()  # as `retrain gc` does; the last document stays
    assert "No decision was made yet." in publish.render("history", publish.history(project, "toy"))
