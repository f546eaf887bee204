"""The history of a workload, as a page."""

from dataclasses import replace

from flows.pages import history, page
from retrain.registry import decisions, versions
from tests.tasks.promote.conftest import one, project, three  # noqa: F401 (fixtures)


def test_each_champion_is_in_the_picture_and_each_decision_in_the_table(project, three):  # noqa: F811
    entries = decisions.read(project, "toy").entries
    folder = page.folder_of(project, "toy")
    folder.mkdir(parents=True)
    (folder / f"{entries[0].run}.html").touch()
    html = page.render(history.page_of(project, "toy"))
    assert "toy version 3 is the champion." in html
    for number in (1, 2, 3):
        assert html.count(f"<title>version {number}, promoted on") == 1
    assert html.count("20 test images</title>") == 3
    link = f'href="{entries[0].run}.html" class="whole"'  # the time is not broken into two lines
    assert html.count(link) == 3  # all are of one run here


def test_a_single_champion_is_no_picture(project, one):  # noqa: F811
    html = page.render(history.page_of(project, "toy"))
    assert "<svg" not in html
    assert "promoted" in html


def test_a_version_that_was_not_promoted_does_not_stretch_the_axis(project, three):  # noqa: F811
    entries = [
        replace(entry, time=f"2026-11-{1 + entry.number:02d}T00:00:00+00:00")
        for entry in decisions.read(project, "toy").entries
    ]
    known = {number: versions.get(project, "toy", number) for number in (1, 2, 3)}
    bad = replace(known[3], version=4, metrics=known[3].metrics | {"accuracy": 0.0})
    entries.append(
        replace(entries[0], version=4, action="rejected", time="2026-11-09T00:00:00+00:00")
    )
    chart, _ = history.pictures(entries, known | {4: bad})
    champions, others = chart.lines
    assert len(champions.dots) == 3
    assert (others.points, [dot.style for dot in others.dots]) == ("", ["hollow"])
    assert "0.0000" in others.dots[0].title
    assert others.dots[0].y == max(dot.high for dot in champions.dots) or others.dots[0].y <= 164


def test_old_decisions_are_counted_and_the_command_for_them_is_named(project, one):  # noqa: F811
    [entry] = decisions.read(project, "toy").entries
    table, command = history.table([entry] * (history.MAX_ROWS + 2), {}, "toy", project.root)
    assert len(table.rows) == history.MAX_ROWS
    assert (command.meaning, command.command) == ("2 older decisions", "retrain history toy")
