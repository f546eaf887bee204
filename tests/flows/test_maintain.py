"""A real clone is kept small, and what was removed from it can be had again."""

import json
import os
import sys
from datetime import timedelta
from time import time

import pytest

from retrain.project import Project
from retrain.registry import retention, versions
from tests.flows.conftest import copy_clone

FLOW = (
    sys.executable, "-c", "from flows.maintain import maintain; print(maintain()['outcome'])"
)  # fmt: skip
AWAY = {"MLFLOW_TRACKING_URI": "http://127.0.0.1:9", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}


@pytest.fixture(scope="module")
def copy(clone, first, tmp_path_factory):
    """A clone whose first version is champion, with two more, of which one keeps its package."""
    copied = copy_clone(clone, tmp_path_factory.mktemp("copy") / "clone")
    copied.edit("params.yaml", "\nworkloads:", "\nretention:\n  versions: 1\nworkloads:")
    for lr in ("0.0021", "0.0022"):
        copied.train("--set", f"train.lr={lr}")
    return copied


@pytest.fixture(autouse=True)
def old(monkeypatch):
    """All versions are older than a day."""
    monkeypatch.setattr(retention, "YOUNG", timedelta(days=-1))


def leave_old(copy, name):
    """A file that is 100 days old."""
    path = copy.root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("12345")
    os.utime(path, (time() - 100 * 86400,) * 2)
    return path


def test_old_versions_and_files_go_and_their_records_stay(copy, first):
    report, drift = (
        leave_old(copy, name) for name in ("reports/vit/old.html", ".retrain/drift/vit/old.json")
    )
    of_last_run = copy.root / "reports" / "vit" / f"{first['run']}.html"
    os.utime(of_last_run, (report.stat().st_mtime,) * 2)
    lineage, card = (copy.retrain(name, "vit@2").stdout for name in ("lineage", "card"))
    assert "add --yes" in copy.retrain("maintain", code=2).stderr
    would = copy.json("maintain", "--dry-run")
    assert report.exists()
    done = copy.json("maintain", "--yes")
    assert done == would | {"dry_run": False}
    named = {(piece["kind"], piece["name"]) for piece in done["garbage"]}
    assert ("version", "vit version 2") in named
    assert {kind for kind, _ in named} >= {"version", "report", "drift"}
    assert not {"vit version 1", "vit version 3"} & {name for _, name in named}
    assert [path.exists() for path in (report, drift, of_last_run)] == [False, False, True]
    assert copy.retrain("lineage", "vit@2").stdout == lineage
    assert copy.retrain("card", "vit@2").stdout == card
    assert "No registered package was changed." in copy.retrain("verify").stdout
    day = versions.find(Project(copy.root), "vit", "2").removed[:10]
    said = (
        f"The package of vit version 2 was removed by the retention on {day}. Have it again with: "
        "retrain reproduce vit@2"
    )
    pulled = str(first["steps"][0]["path"])
    for command in (
        (
            "predict",
            "vit",
            "--version",
            "2",
            "--input",
            pulled,
            "--output",
            "answers.parquet",
        ),
        ("export", "vit@2", "--to", "exported"),
    ):
        assert said in copy.retrain(*command, code=1).stderr
    assert copy.json("maintain", "--yes")["garbage"] == []


def test_the_flow_says_what_it_removed(copy):
    drift = leave_old(copy, ".retrain/drift/vit/other.json")
    assert "Removed: 1 drift (5 bytes); 5 bytes in all." in copy.run(*FLOW).stdout
    assert not drift.exists()
    assert "Removed: nothing; 0 bytes in all." in copy.run(*FLOW).stdout


def test_a_server_that_is_away_keeps_nothing_else_from_being_done(copy):
    drift = leave_old(copy, ".retrain/drift/vit/other.json")
    failed = copy.run(*FLOW, code=1, **AWAY).stderr
    assert not drift.exists()
    assert all(f"{part}: MLFLOW_TRACKING_URI" in failed for part in ("versions", "trials", "store"))
    assert "Removed: 1 drift (5 bytes)" in failed
    shown = json.loads(copy.retrain("maintain", "--yes", "--json", code=1, **AWAY).stdout)
    assert (shown["garbage"], len(shown["failures"])) == ([], 4)


@pytest.mark.slow
def test_a_model_that_is_trained_again_is_registered_again(copy):
    copy.json("maintain", "--yes")
    again = copy.train("--set", "train.lr=0.0021", "--run")
    assert again["model"]["version"] == 4
    assert copy.json("maintain", "--yes", "--dry-run")["garbage"][0]["name"] == "vit version 3"


@pytest.mark.slow
def test_a_version_without_its_package_is_reproduced_and_has_it_again(clone, first, tmp_path):
    copy = copy_clone(clone, tmp_path / "clone")
    copy.edit("params.yaml", "\nworkloads:", "\nretention:\n  versions: 1\nworkloads:")
    for lr in ("0.0023", "0.0024"):
        copy.train("--set", f"train.lr={lr}")
    assert copy.json("maintain", "--yes")["garbage"][0]["name"] == "vit version 2"
    copy.retrain("export", "vit@2", "--to", "exported", code=1)
    document = copy.json("reproduce", "vit@2")
    assert document["identical"]
    assert document["put_back"]
    assert document["outcome"].endswith("Its package is in the registry again.")
    assert "Of 64 test images" in copy.retrain("export", "vit@2", "--to", "exported").stdout
    assert "No registered package was changed." in copy.retrain("verify").stdout
    assert versions.find(Project(copy.root), "vit", "2").removed is None
