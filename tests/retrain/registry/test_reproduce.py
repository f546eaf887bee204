"""What is compared, and what is refused before anything is trained."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from retrain import hardware
from retrain.errors import UsageError
from retrain.outputs import Plan
from retrain.params import parse_yaml
from retrain.project import Project
from retrain.registry import decisions, lineage, packages, versions
from tests import templates
from tests.retrain.registry.helpers import decision, register
from tests.retrain.registry.test_lineage import output, record

TRAIN = Plan("train", {"train.lr": 0.1}, {"pull": "d1", "start": "new"}, {}, {"numpy": "1.0"})


def made(plan: Plan, digest: str, **provenance):
    return output(plan.step, digest, plan.key, vars(plan), **provenance)


RECORD = record("run", steps=[output("pull", "d1", "key"), made(TRAIN, "d2")])


def test_another_machine_and_other_libraries_are_named():
    here = hardware.machine()
    there = here | {"cores": 999, "host": "another", "memory_gb": 1.0}
    plan = replace(TRAIN, libraries={"numpy": "0.1", "no-such-library": "1.0"})
    changes = {"files": ["a.py", "params.yaml", "data.dvc"]}
    given = RECORD | {"steps": [made(plan, "d", machine=there)], "uncommitted": changes}
    assert list(lineage._surroundings(given)) == [
        "uncommitted changes were not kept, of a.py",
        f"numpy 0.1 -> {lineage.installed('numpy')}",
        "no-such-library 1.0 -> not installed",
        f"cores 999 -> {here['cores']}",
    ]


@pytest.mark.parametrize("missing", ["parameters", "commit"])
def test_what_cannot_be_reproduced_is_refused_at_once(missing, monkeypatch, tmp_path):
    given = RECORD | {missing: None}
    monkeypatch.setattr(lineage, "read", lambda *_: given)
    with pytest.raises(UsageError, match="vit version 3 cannot be reproduced"):
        lineage.reproduce(Project(tmp_path), SimpleNamespace(title="vit version 3"), print)
    assert not (tmp_path / ".retrain").exists()


def test_a_copy_s_champion_is_what_the_training_started_from(tmp_path, monkeypatch):
    project, copy = Project(tmp_path), lineage.Copy(tmp_path / "copy")
    copy.root.mkdir()
    for each in (project, copy):
        templates.place_mlflow_database(each.root)
    first, second = (register(project, "vit", model, tmp_path) for model in "ab")
    decisions.apply(project, second, decision(2))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    before = {path: path.read_bytes() for path in tmp_path.rglob("MLmodel")}
    lineage._register_start(project, copy, "vit", first.weights)
    champion = versions.champion(copy, "vit")
    assert (champion.version, champion.weights, champion.train_key) == (1, first.weights, None)
    assert packages.download(copy, champion).is_relative_to(copy.root)
    assert versions.champion(project, "vit").weights == second.weights
    assert versions.get(project, "vit", 3) is None
    assert {path: path.read_bytes() for path in before} == before
    with pytest.raises(ValueError, match="weights that it started from are not in the registry: w"):
        lineage._register_start(project, copy, "vit", "w")


def test_a_copy_is_told_the_place_that_only_the_clone_has(tmp_path):
    clone, copy = Project(tmp_path / "clone"), lineage.Copy(tmp_path / "clone/.retrain/copy")
    copy.root.mkdir(parents=True)
    for name in ("clone/photos", "beside", "clone/both", "clone/.retrain/copy/both"):
        (tmp_path / name).mkdir()
    for value, expected in {
        "photos": f"{tmp_path}/clone/photos",
        "../beside": f"{tmp_path}/beside",
        "both": "both",
        "owner/name@0123": "owner/name@0123",
        "s3://bucket": "s3://bucket",
        str(tmp_path / "beside"): str(tmp_path / "beside"),
    }.items():
        assert lineage._place(clone, copy, value) == expected
    (tmp_path / "clone" / "mine.pt").touch()
    files = {"model": {"files": {"weights": "mine.pt"}}, "data": {"path": "photos"}}
    data = {"tracked": False, "path": "photos"}
    lineage._prepare(clone, copy, record("run", parameters=files, data=data))
    tree = parse_yaml(copy.params.read_text())["workloads"]["vit"]
    assert tree["model"]["files"] == {"weights": f"{tmp_path}/clone/mine.pt"}
    assert tree["data"]["path"] == f"{tmp_path}/clone/photos"
