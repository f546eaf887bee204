"""What is compared, and what is refused before anything is trained."""

from dataclasses import replace

import pytest

from retrain import hardware
from retrain.errors import UsageError
from retrain.outputs import Plan
from retrain.params import parse_yaml
from retrain.project import Project
from retrain.registry import decisions, packages, reproduce as module, rerun, versions
from retrain.registry.lineage import Made
from retrain.registry.reproduce import Reproduction
from tests import templates
from tests.retrain.registry.helpers import decision, register
from tests.retrain.registry.test_lineage import record

TRAIN = Plan("train", {"train.lr": 0.1}, {"pull": "d1", "start": "new"}, {}, {"numpy": "1.0"})


def made(plan: Plan, digest: str, **provenance) -> Made:
    return Made(plan.step, digest, plan.key, vars(plan), provenance)


RECORD = record("run", steps=(Made("pull", "d1"), made(TRAIN, "d2")))


@pytest.mark.parametrize(
    ("steps", "differs", "said"),
    [
        ((True, True), (), "is reproduced: the weights are identical."),
        (
            (True, False),
            (),
            "is not reproduced: train gave another output; nothing that is recorded differs.",
        ),
        (
            (False, False),
            ("cores 2 -> 4", "numpy 1.0 -> 2.0"),
            "is not reproduced: pull gave another output; cores 2 -> 4; numpy 1.0 -> 2.0.",
        ),
    ],
)
def test_the_first_step_with_another_output_is_named_with_all_that_differs(steps, differs, said):
    by_name = dict(zip(("pull", "train"), steps, strict=True))
    done = Reproduction("vit", 3, "c0ffee", all(steps), "w", "w2", by_name, {}, differs, 1.0)
    assert done.outcome == f"vit version 3 {said}"


def test_a_commit_without_changes_is_preferred():
    changes = {"sha256": "s", "files": ["a.py", "params.yaml"]}
    clean = made(TRAIN, "d2", commit="first", uncommitted=None)
    dirty = made(TRAIN, "d2", commit="first+dirty", uncommitted=changes)
    old = made(TRAIN, "d2", commit="first")
    recorded = {"sha256": "s", "files": ["params.yaml"]}
    for trained, uncommitted, expected in (
        (clean, recorded, ("c0ffee", recorded)),
        (clean, None, ("c0ffee", None)),
        (clean, changes, ("first", None)),
        (dirty, changes, ("c0ffee", changes)),
        (old, changes, ("c0ffee", changes)),
    ):
        given = replace(RECORD, steps=(trained,), uncommitted=uncommitted)
        assert module._code_of(given) == expected


def test_another_machine_and_other_libraries_are_named():
    here = hardware.machine()
    there = here | {"cores": 999, "host": "another", "memory_gb": 1.0}
    plan = replace(TRAIN, libraries={"numpy": "0.1", "no-such-library": "1.0"})
    given = replace(RECORD, steps=(made(plan, "d", machine=there),))
    changes = {"files": ["a.py", "params.yaml", "data.dvc"]}
    assert list(module._surroundings(given, changes)) == [
        "uncommitted changes were not kept, of a.py",
        f"numpy 0.1 -> {module.installed('numpy')}",
        "no-such-library 1.0 -> not installed",
        f"cores 999 -> {here['cores']}",
    ]
    assert next(module._surroundings(given, {"files": ["data.dvc"]})).startswith("numpy")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"parameters": None}, "was registered without its lineage"),
        ({"commit": None}, "was trained outside git"),
    ],
)
def test_what_cannot_be_reproduced_is_refused_at_once(changed, message, monkeypatch, tmp_path):
    from types import SimpleNamespace

    given = replace(RECORD, **changed)
    monkeypatch.setattr(module.lineage, "read", lambda *_: given)
    version = SimpleNamespace(name="vit", version=3)
    with pytest.raises(UsageError, match=message):
        module.reproduce(Project(tmp_path), version, print)
    assert not (tmp_path / ".retrain").exists()


def test_a_copy_s_champion_is_what_the_training_started_from(tmp_path, monkeypatch):
    project, copy = Project(tmp_path), rerun.Copy(tmp_path / "copy")
    copy.root.mkdir()
    for each in (project, copy):
        templates.place_mlflow_database(each.root)
    first, second = (register(project, "vit", model, tmp_path) for model in "ab")
    decisions.apply(project, second, decision(2))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    before = {path: path.read_bytes() for path in tmp_path.rglob("MLmodel")}
    rerun._register_start(project, copy, "vit", first.weights)
    champion = versions.champion(copy, "vit")
    assert (champion.version, champion.weights, champion.train_key) == (1, first.weights, None)
    assert packages.download(copy, champion).is_relative_to(copy.root)
    assert versions.champion(project, "vit").weights == second.weights
    assert versions.get(project, "vit", 3) is None
    assert {path: path.read_bytes() for path in before} == before
    with pytest.raises(ValueError, match="weights that it started from are not in the registry: w"):
        rerun._register_start(project, copy, "vit", "w")


def test_a_copy_is_told_the_place_that_only_the_clone_has(tmp_path):
    clone, copy = Project(tmp_path / "clone"), rerun.Copy(tmp_path / "clone/.retrain/copy")
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
        assert rerun._place(clone, copy, value) == expected
    (tmp_path / "clone" / "mine.pt").touch()
    files = {"model": {"files": {"weights": "mine.pt"}}, "data": {"path": "photos"}}
    data = {"tracked": False, "path": "photos"}
    rerun._prepare(clone, copy, record("run", parameters=files, data=data))
    tree = parse_yaml(copy.params.read_text())["workloads"]["vit"]
    assert tree["model"]["files"] == {"weights": f"{tmp_path}/clone/mine.pt"}
    assert tree["data"]["path"] == f"{tmp_path}/clone/photos"
