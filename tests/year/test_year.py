"""A year in small ends as it was played, and what is not as it was played is found."""

import sqlite3
from contextlib import closing

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from models.prediction_log import COLUMNS
from tests.year.__main__ import play
from tests.year.age import MLFLOW, PREFECT, make_older
from tests.year.checks import bounds, decisions
from tests.year.images import first_pictures, pictures
from tests.year.plan import SMALL, Plan, monday
from tests.year.team import Team


@pytest.mark.slow
def test_a_year_in_small_ends_as_it_was_played(tmp_path):
    assert play(tmp_path, SMALL) == []


def test_each_image_of_a_year_comes_once():
    plan = Plan.of(52)
    came = [picture for week in range(-plan.lag, 52) for picture in pictures(plan, week)]
    files = [picture.content for picture in [*first_pictures(plan), *came]]
    assert len(set(files)) == len(files) == plan.first + 54 * plan.batch + plan.busy - plan.batch
    wrong = [picture for picture in came if picture.given != picture.label]
    assert 0.1 < len(wrong) / plan.busy < 0.2


def test_a_ledger_that_was_not_played_is_found(tmp_path):
    team = Team(tmp_path, Plan(weeks=2, drift=0, noise=0, corrupted=0, rollback=1, upgrade=0))
    played = [("promoted", 1), ("promoted", 2), ("rolled back", 1)]
    weeks = [
        {"week": 0, "decided": played[:2], "champion": 2, "state": "Promoted"},
        {"week": 1, "decided": played[2:], "champion": 1, "champion_before": 2, "state": "Skipped"},
    ]
    history = [
        {"action": action, "version": version, "time": str(number),
         "before": str(number - 1), "digest": str(number)}
        for number, (action, version) in enumerate(played)
    ]  # fmt: skip
    assert list(decisions(team, weeks, history)) == []
    for wrong in (history[:2], [*history[:2], history[2] | {"version": 2}]):
        assert any("the ledger says" in fault for fault in decisions(team, weeks, wrong))
    [fault] = decisions(team, weeks, [*history[:2], history[2] | {"before": "another"}])
    assert "do not follow" in fault
    [fault] = decisions(team, [weeks[0], weeks[1] | {"champion": 3}], history)
    assert "champion of week 1 is 3, not 1" in fault


def test_what_grows_is_found():
    def year(files=1.0, logs=1.0):
        """A year in which files and logs grow by a factor each week."""
        weeks = []
        for week in range(52):
            images, trained = 100 + week, 400 * week
            here = 1000 * images * files**week + trained
            rows = {
                "prefect flow_run": 70,
                "prefect task_run": 300,
                "mlflow model_versions": week + 1,
            }
            rows["prefect log"] = 2700 * logs**week
            disk = {".retrain": here, "reports": 10, "mlruns": 1000 * week, "mlflow.db": 0}
            weeks.append({"images": images, "trainings": trained, "disk": disk, "rows": rows})
        return weeks

    assert list(bounds(year())) == []
    [fault] = bounds(year(files=1.02))
    assert fault.startswith("bytes of files for each image")
    [fault] = bounds(year(logs=1.02))
    assert fault.startswith("lines of logs for each task")


def test_everything_that_has_an_age_is_made_a_week_older(tmp_path):
    mlflow, prefect = tmp_path / "mlflow.db", tmp_path / "prefect.db"
    for database, tables in ((mlflow, MLFLOW), (prefect, PREFECT)):
        with closing(sqlite3.connect(database)) as connection, connection:
            for table, columns in tables.items():
                connection.execute(f"CREATE TABLE {table} ({', '.join(columns)})")
    week = 7 * 86400
    with closing(sqlite3.connect(mlflow)) as connection, connection:
        connection.execute("INSERT INTO runs VALUES (?, NULL)", [week * 1000 + 5])
    with closing(sqlite3.connect(prefect)) as connection, connection:
        connection.execute("INSERT INTO artifact VALUES ('2026-01-08 10:00:00.000000')")
    answer = {"sha256": "0", "label": "1", "confidence": 0.5, "weights": "0"}
    file = tmp_path / ".retrain/production/vit/answers/one.parquet"
    file.parent.mkdir(parents=True)
    rows = [answer | {"time": monday(1)}]
    pq.write_table(pa.Table.from_pylist(rows, COLUMNS), file)
    report = tmp_path / "reports" / "page.html"
    report.parent.mkdir()
    report.touch()
    (tmp_path / "reports" / "link.html").hardlink_to(report)
    before = report.stat().st_mtime

    make_older(tmp_path, prefect)

    assert report.stat().st_mtime == pytest.approx(before - week)
    assert pq.read_table(file, schema=COLUMNS)["time"].to_pylist() == [monday(0)]
    with closing(sqlite3.connect(mlflow)) as connection:
        assert connection.execute("SELECT * FROM runs").fetchall() == [(5, None)]
    with closing(sqlite3.connect(prefect)) as connection:
        [[time]] = connection.execute("SELECT * FROM artifact").fetchall()
    assert time == "2026-01-01 10:00:00.000000"
