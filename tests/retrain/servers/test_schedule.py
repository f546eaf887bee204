"""When a workload is run next, by the schedules in the files of the deployments."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from retrain.project import Project
from retrain.servers.schedule import next_runs

DEPLOYMENTS = """\
deployments:
  - parameters: {workload: vit}
    schedules:
      - {cron: "30 4 * * *", timezone: Europe/Berlin}
      - {cron: "* * * * *", active: false}
  - parameters: {workload: beans}
    schedules: [{cron: "nonsense"}, {interval: 60}]
  - parameters: {}
    schedules: [{cron: "* * * * *"}]
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    return Project(tmp_path)


def test_the_next_run_is_what_the_active_schedules_say(project):
    assert next_runs(project) == {}
    (project.root / "prefect.yaml").write_text(DEPLOYMENTS)
    (project.root / "team").mkdir()
    ours = DEPLOYMENTS.replace("30 4 * * *", "0 0 1 1 *").replace("beans", "ours")
    (project.root / "team" / "prefect.yaml").write_text(ours.replace("nonsense", "* * * * *"))
    runs = next_runs(project)
    assert runs.keys() == {"vit", "ours"}
    assert not runs["vit"].planned
    time = datetime.fromisoformat(runs["vit"].time)
    berlin = time.astimezone(ZoneInfo("Europe/Berlin"))
    assert (berlin.hour, berlin.minute) == (4, 30)  # the sooner of the two
    assert 0 < (time - datetime.now(UTC)).total_seconds() <= 25 * 3600
    assert (datetime.fromisoformat(runs["ours"].time) - datetime.now(UTC)).total_seconds() <= 60


def test_a_file_that_cannot_be_read_has_no_schedules(project):
    (project.root / "prefect.yaml").write_text("deployments: [")
    assert next_runs(project) == {}
