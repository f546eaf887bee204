"""The record of a version's lineage, in a real registry; lists of images; what is trained again."""

import hashlib
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.csv
import pytest
from pyarrow import parquet

from retrain import hardware
from retrain.errors import UsageError
from retrain.outputs import Plan
from retrain.params import parse_yaml
from retrain.project import Project
from retrain.registry import decisions, ledger, lineage, packages, tracking, versions
from tests import templates
from tests.retrain.registry.helpers import candidate_of, decision, register

SPLITS = {"train": "bca", "test": "de"}  # one letter for each image


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def write_list(file: Path) -> None:
    """A list of images, in two row groups and not in order."""
    rows = [
        {"unit": 0, "path": f"{each}.png", "split": split, "label": "ant", "sha256": sha256(each)}
        for split, letters in SPLITS.items()
        for each in letters
    ]
    parquet.write_table(pa.Table.from_pylist(rows[::-1]), file, row_group_size=3)


def output(step: str, digest: str, key: str, plan=None, **provenance):
    """An output of a step, as a record has it."""
    known = {"key": key, "plan": plan, "provenance": provenance}
    return {"step": step, "digest": digest} | known


def images_of(key: str, splits):
    return {"step": "validate", "key": key, "file": "images.parquet", "splits": splits}


def record(run_id: str, **changed):
    made = output("train", "digest", "key", run="run-1", commit="c0ffee")
    fields = {
        "model": "vit", "package": "package-a", "weights": "w", "time": "2026-11-22T10:00:00+00:00",
        "commit": "c0ffee", "uncommitted": None, "entry": "vit", "overrides": {"train.lr": 0.1},
        "data": {"version": "data-1", "tracked": True, "revision": None, "path": "data/digits"},
        "parameters": {"train": {"lr": 0.1}}, "requirements": None, "validation": {"rows": {}},
        "images": images_of("key", {}), "training": {"best_epoch": 3},
        "metrics": {"accuracy": 0.5}, "steps": [made], "mlflow_run": run_id,
    }  # fmt: skip
    return fields | changed


@pytest.fixture
def project(tmp_path):
    templates.place_mlflow_database(tmp_path)
    return Project(tmp_path)


@pytest.fixture
def version(project):
    """A version with a record, as `promote` registers it."""
    first = register(project, "vit", "a", project.root)
    candidate = replace(candidate_of(first), package_digest="package-b")
    package = project.root / "package-a"
    return versions.register(project, candidate, package, record(first.run_id))


def test_the_record_is_read_as_it_was_written_unless_it_was_edited_or_is_gone(project, version):
    assert versions.find(project, "vit", "2").lineage == version.lineage
    assert lineage.read(project, version) == record(version.run_id)
    [file] = project.root.glob(f"mlruns/**/lineage/{version.lineage}.json")
    for harm, how in (
        (lambda: file.write_text(file.read_text().replace("data-1", "data-2")), "was changed"),
        (file.unlink, "is gone"),
    ):
        harm()
        for read in (
            lambda: lineage.read(project, version),
            lambda: versions.get(project, "vit", 2),
        ):
            with pytest.raises(ValueError, match=rf"version 2: the record of its .* {how}"):
                read()


def test_a_lost_record_stops_only_what_needs_it(project, version):
    """As `mlflow gc` loses it, with the run of the training."""
    second = register(project, "vit", "c", project.root)
    third = register(project, "vit", "d", project.root)
    decisions.apply(project, second, decision(3))
    client, lost = tracking.client(project), versions.get(project, "vit", 1)
    client.delete_run(lost.run_id)
    shutil.rmtree(tracking.local_path(client.get_run(lost.run_id).info.artifact_uri))
    with pytest.raises(ValueError, match=r"version 1: the record of its lineage, .*, is gone"):
        versions.get(project, "vit", 1)
    assert [each.version for each in versions.every_of(project, "vit")] == [4, 3]
    assert versions.find_by_weights(project, "vit", lost.weights) is None
    assert versions.find_by_weights(project, "vit", second.weights).version == 3
    assert versions.find_version(project, "vit", lost.package_digest) is None
    assert versions.champion(project, "vit").version == 3
    run = decisions.read(project, "vit").run
    untold = decision(1, "compared", previous=3)  # by a run that was killed after this
    decisions.write(client, run, 2, ledger.text_of(untold, "vit"))
    decisions.apply(project, third, decision(4, "rejected", previous=3))
    assert decisions.read(project, "vit").is_settled
    assert "record" in client.get_model_version("vit", "1").description
    made_again = versions.register(project, candidate_of(lost), project.root / "package-a")
    assert versions.find_version(project, "vit", lost.package_digest) == made_again


def test_the_digest_of_a_split_is_that_of_its_sorted_lines(tmp_path):
    write_list(tmp_path / "images.parquet")
    assert lineage.digests_of_images(tmp_path / "images.parquet") == {
        split: {
            "rows": len(letters),
            "sha256": sha256("".join(f"{line}\n" for line in sorted(map(sha256, letters)))),
        }
        for split, letters in SPLITS.items()
    }


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
