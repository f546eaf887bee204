"""The record of a version's lineage, in a real registry; lists of images; what is trained again."""

import hashlib
import shutil
import subprocess
from dataclasses import replace
from importlib import metadata
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyarrow import parquet

from retrain import hardware
from retrain.errors import UsageError
from retrain.params import parse_yaml
from retrain.project import Project
from retrain.registry import decisions, ledger, lineage, packages, tracking, versions
from tests import templates
from tests.retrain.registry.helpers import candidate_of, decision, register


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def output(step: str, digest: str, key: str, plan=None, **provenance):
    """An output of a step, as a record has it."""
    return {"step": step, "digest": digest, "key": key, "plan": plan, "provenance": provenance}


def record(run_id: str, **changed):
    images = {"step": "validate", "key": "key", "file": "images.parquet", "splits": {}}
    made = output("train", "digest", "key", run="run-1", commit="c0ffee")
    fields = {
        "model": "vit", "package": "package-a", "weights": "w", "time": "2026-11-22T10:00:00+00:00",
        "commit": "c0ffee", "uncommitted": None, "entry": "vit", "overrides": {"train.lr": 0.1},
        "data": {"version": "data-1", "tracked": True, "revision": None, "path": "data/digits"},
        "parameters": {"train": {"lr": 0.1}}, "requirements": None, "validation": {"rows": {}},
        "images": images, "training": {"best_epoch": 3},
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
    for content, how in ((b"{}", "was changed"), (None, "is gone")):
        file.write_bytes(content) if content else file.unlink()
        with pytest.raises(ValueError, match=rf"version 2: the record of its .* {how}"):
            lineage.read(project, version)
        with pytest.raises(ValueError, match=rf"version 2: the record of its .* {how}"):
            versions.get(project, "vit", 2)


def test_a_lost_record_stops_only_what_needs_it(project, version):
    """As `mlflow gc` loses it, with the run of the training."""
    second = register(project, "vit", "c", project.root)
    decisions.apply(project, second, decision(3))
    client, lost = tracking.client(project), versions.get(project, "vit", 1)
    client.delete_run(lost.run_id)
    shutil.rmtree(tracking.local_path(client.get_run(lost.run_id).info.artifact_uri))
    assert [each.version for each in versions.every_of(project, "vit")] == [3]
    assert versions.find_by_weights(project, "vit", lost.weights) is None
    assert versions.find_version(project, "vit", lost.package_digest) is None
    assert versions.champion(project, "vit").version == 3
    untold = decision(1, "compared", previous=3)  # by a run that was killed after this
    run = decisions.read(project, "vit").run
    decisions.write(client, run, 2, ledger.text_of(untold, "vit"))
    decisions.settle(project, "vit")
    assert decisions.read(project, "vit").is_settled
    assert "record" in client.get_model_version("vit", "1").description
    made_again = versions.register(project, candidate_of(lost), project.root / "package-a")
    assert versions.find_version(project, "vit", lost.package_digest) == made_again


def test_the_digest_of_a_split_is_that_of_its_sorted_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(lineage, "BATCH", 2)
    splits = {"train": "bca", "test": "de"}  # one letter for each image
    rows = [
        {"path": f"{each}.png", "split": split, "sha256": sha256(each)}
        for split, letters in splits.items()
        for each in letters
    ]
    parquet.write_table(pa.Table.from_pylist(rows[::-1]), tmp_path / "images", row_group_size=3)
    assert lineage.digests_of_images(tmp_path / "images") == {
        split: {
            "rows": len(letters),
            "sha256": sha256("".join(f"{line}\n" for line in sorted(map(sha256, letters)))),
        }
        for split, letters in splits.items()
    }


def test_another_machine_and_other_libraries_are_named():
    here = hardware.machine()
    there = here | {"cores": 999, "host": "another", "memory_gb": 1.0}
    plan = {
        "libraries": {"numpy": "0.1", "no-such-library": "1.0", "rich": metadata.version("rich")}
    }
    steps = [output("pull", "d1", "key"), output("train", "d2", "key", plan, machine=there)]
    changes = {"files": ["a.py", "params.yaml", "data.dvc", "b.py"]}
    assert list(lineage._surroundings(record("run", steps=steps, uncommitted=changes))) == [
        "uncommitted changes were not kept, of a.py, b.py",
        f"numpy 0.1 -> {metadata.version('numpy')}",
        "no-such-library 1.0 -> not installed",
        f"cores 999 -> {here['cores']}",
    ]
    assert list(lineage._surroundings(record("run"))) == []


@pytest.mark.parametrize("missing", ["parameters", "commit"])
def test_what_cannot_be_reproduced_is_refused_at_once(missing, monkeypatch, tmp_path):
    monkeypatch.setattr(lineage, "read", lambda *_: record("run", **{missing: None}))
    with pytest.raises(UsageError, match="vit version 3 cannot be reproduced"):
        lineage.reproduce(Project(tmp_path), SimpleNamespace(title="vit version 3"), print)
    assert not (tmp_path / ".retrain").exists()


def test_a_commit_is_checked_out_beside_the_clone_and_goes_again(tmp_path):
    clone = Project(tmp_path / "project")  # in a folder of the repository
    clone.root.mkdir()
    clone.params.write_text("as it was")
    for command in ("init -q", "add -A", "-c user.name=t -c user.email=t@t commit -qm start"):
        subprocess.run(["git", *command.split()], cwd=tmp_path, check=True)
    clone.params.write_text("as it is now")
    with lineage._checked_out(clone, clone.git("rev-parse", "HEAD")) as copy:
        assert copy.params.read_text() == "as it was"
        assert copy.store.is_relative_to(clone.state / "reproduce")
    assert not (clone.state / "reproduce").exists()
    missing = lineage._checked_out(clone, "c0ffee")
    with pytest.raises(ValueError, match=r"Commit c0ffee is not in this clone\. Fetch it"), missing:
        pass


@pytest.mark.parametrize(
    ("identical", "differs", "said"),
    [
        (True, [], "vit version 3 is reproduced: the weights are identical."),
        (False, [], "not reproduced: train gave another output; nothing that is recorded differs."),
        (False, ["a", "b"], "not reproduced: train gave another output; a; b."),
    ],
)
def test_the_first_step_that_differs_is_named(identical, differs, said):
    steps = {"pull": True, "train": identical, "evaluate": identical}
    assert lineage.outcome("vit version 3", identical, steps, differs).endswith(said)


def test_a_copy_s_champion_is_what_the_training_started_from(project, version, monkeypatch):
    copy = lineage.Copy(project.root / "copy")
    copy.root.mkdir()
    templates.place_mlflow_database(copy.root)
    second = register(project, "vit", "c", project.root)
    decisions.apply(project, second, decision(3))
    before = decisions.read(project, "vit")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", project.tracking_uri)
    lineage._register_start(project, copy, "vit", version.weights)
    champion = versions.champion(copy, "vit")
    assert (champion.version, champion.weights, champion.train_key) == (1, version.weights, None)
    assert packages.download(copy, champion).is_relative_to(copy.root)
    assert decisions.read(project, "vit") == before
    with pytest.raises(ValueError, match="weights that it started from are not in the registry: w"):
        lineage._register_start(project, copy, "vit", "w")


def test_a_copy_is_told_the_place_that_only_the_clone_has(tmp_path):
    clone, copy = Project(tmp_path / "clone"), lineage.Copy(tmp_path / "clone/.retrain/copy")
    for name in ("clone/photos", "beside", "clone/both", "clone/.retrain/copy/both"):
        (tmp_path / name).mkdir(parents=True)
    for value, expected in {
        "photos": f"{tmp_path}/clone/photos",
        "../beside": f"{tmp_path}/beside",
        "both": "both",
        "owner/name@0123": "owner/name@0123",
        "s3://bucket": "s3://bucket",
        str(tmp_path / "beside"): str(tmp_path / "beside"),
    }.items():
        model = {"pretrained": value, "files": {"weights": value}}
        given = {"model": model, "data": {"path": value}, "tune": {"trials": 3}}
        data = {"tracked": False, "path": value}
        lineage._prepare(clone, copy, record("run", parameters=given, data=data))
        tree = parse_yaml(copy.params.read_text())["workloads"]["vit"]
        model = {"pretrained": expected, "files": {"weights": expected}}
        assert tree == {"model": model, "data": {"path": expected}}
