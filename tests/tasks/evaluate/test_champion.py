"""The champion answers from its own package, in a process of its own."""

import json
import logging
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from retrain.errors import DamagedArtifactError, RejectedDataError
from retrain.file_io import sha256_of
from retrain.project import Project
from retrain.registry import decisions, packages, tracking, versions
from retrain.registry.ledger import Decision
from retrain.registry.versions import Candidate
from retrain.runs.run import DryRun, Run, StopFollowingError, following
from retrain.step import DataVersion, Step
from retrain.store import Artifact
from retrain.workload import Data, Evaluate, Gate, Model, Workload
from tasks.data import image_table, package
from tasks.evaluate.champion import (
    learnt_test_images,
    refuse_missing,
    score_ahead,
    score_opponents,
)
from tasks.evaluate.step import evaluate
from tasks.promote.package import write_package
from tests import templates
from tests.tasks.toy_model import (
    LABELS,
    described,
    pixels,
    plain_probabilities,
    workspace,
    write_data,
    write_model,
    write_prepared,
    write_report,
)

ROWS = 45
WORKLOAD = Workload(name="toy", data=Data(path="data"), model=Model(family="vit"))


def runner_in(project, kind=Run):
    return kind("toy", WORKLOAD, DataVersion("d", tracked=True), project, "run")


def followed(runner, function, *arguments):
    """What a function gives whose calls of steps a runner takes."""
    with following(runner):
        return function(*arguments)


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A project with a trained model and the data."""
    root = tmp_path_factory.mktemp("project")
    templates.place_mlflow_database(root)
    return Project(root)


@pytest.fixture(scope="module")
def trained(project):
    trained = write_model(project.root / "train")
    write_report(trained, project)
    return trained


@pytest.fixture(scope="module")
def data(project):
    return write_data(project.root, ROWS)


@pytest.fixture(scope="module")
def written(project, trained):
    """The package of the trained model."""
    folder = project.root / "package"
    write_package(trained.folder / "model", "fp32", dict.fromkeys(LABELS, 12), folder)
    return folder


@pytest.fixture(scope="module")
def scores(project, trained):
    """The challenger's evaluation: of the same network, so that the figures must agree."""
    images = write_prepared(project.root / "prepared", ROWS)
    place = workspace(project.root / "evaluate", project.root)
    settings = Evaluate(precision="fp32")
    facts = evaluate(settings, Gate(), trained, images, described(images), place)
    return Artifact("evaluate", "k", "d", place.folder, facts)


def appoint(project: Project, folder: Path, trained: Artifact) -> versions.ModelVersion:
    """Registers a package and makes it champion."""
    before = versions.champion(project, "toy")
    candidate = Candidate(
        name="toy",
        weights=sha256_of(folder / package.MODEL / packages.WEIGHTS),
        package_digest=package.digest_of_folder(folder),
        train_digest=trained.digest,
        train_key=None,
        start=None,
        family="vit",
        images={"size": 8, "channels": 1, "resize": "crop"},
        classes=package.classes_digest(package.classes_of(folder)),
        metrics={},
        data=None,
        commit=None,
        run_id=json.loads((trained.folder / "report" / "mlflow.json").read_text())["run_id"],
    )
    version = versions.register(project, candidate, folder)
    previous = before and before.version
    return decisions.apply(
        project, version, Decision("promoted", version.version, previous, "better")
    )


@pytest.fixture(scope="module")
def older(project, trained, written, data, scores):
    """A champion whose family is gone from models/, and whose decoder inverts the image.

    Gives the runner and what it made of the champion.
    """
    folder = project.root / "older"
    shutil.copytree(written, folder)
    code = folder / "code" / "models"
    (code / "vit_network.py").rename(code / "transformer_of_old_network.py")
    description = folder / "artifacts" / "model" / "model.json"
    description.write_text(
        description.read_text().replace('"family": "vit"', '"family": "transformer_of_old"')
    )
    serving = package.serving_of(folder / package.MODEL, "fp32")
    (folder / package.SERVING).write_text(json.dumps(serving))
    decoder = (code / "image.py").read_text()
    last_line = "return np.asarray(image).reshape(size, size, channels)"
    assert last_line in decoder
    (code / "image.py").write_text(
        decoder.replace(last_line, last_line.replace("return ", "return 255 - "))
    )
    version = appoint(project, folder, trained)
    runner = runner_in(project)
    champion, reference = followed(runner, score_opponents, *data, scores)
    assert reference is None
    return runner, version, champion


def test_a_champion_whose_family_is_gone_answers_with_its_own_code(older, trained, data):
    runner, version, champion = older
    expected = plain_probabilities(trained.folder / "model", 255 - pixels(ROWS), 256)
    [file] = runner.project.store.glob("evaluate_champion/*/predictions.parquet")
    table = pq.read_table(file)
    assert np.abs(np.stack(table["probabilities"].to_numpy()) - expected).max() < 1e-6
    assert table["prediction"].to_pylist() == [LABELS[best] for best in expected.argmax(1)]
    right = expected.argmax(1) == np.arange(ROWS) % len(LABELS)
    metrics = champion.evaluation.facts["metrics"]
    assert metrics["accuracy"] == pytest.approx(right.mean())
    assert metrics["rows"] == ROWS
    assert champion.registered.version == version
    folder = packages.download(runner.project, version)  # asking has left it as it was
    assert package.digest_of_folder(folder) == version.package_digest


def test_it_is_asked_once_and_found_in_the_store_after_that(older, project, data, scores):
    _, _, champion = older
    dry_run = runner_in(project, DryRun)
    found, _ = followed(dry_run, score_opponents, *data, scores)
    assert found.evaluation.digest == champion.evaluation.digest
    more = (replace(data[0], digest="more"), replace(data[1], digest="more"))  # for training
    found, _ = followed(dry_run, score_opponents, *more, scores)
    assert found.evaluation.digest == champion.evaluation.digest
    others = replace(data[1], facts=data[1].facts | {"test_rows": "others"})
    with pytest.raises(StopFollowingError):
        followed(dry_run, score_opponents, data[0], others, scores)


def stored(run: Run, artifact: Artifact) -> Artifact:
    """The same artifact in the store of a run."""

    def copy(workspace):
        shutil.copytree(artifact.folder, workspace.folder, dirs_exist_ok=True)
        return artifact.facts

    return run.output(Step(artifact.step, copy, inputs=()))


@pytest.mark.parametrize("step", ["pull", "validate"])
def test_damaged_test_images_are_found_and_go(older, scores, tmp_path, step):
    runner, _, _ = older
    store = runner.store
    earlier = runner_in(runner.project)
    made = {each.step: stored(earlier, each) for each in write_data(tmp_path, ROWS + 1)}
    folder = made[step].folder
    file = folder / ("data/test.parquet" if step == "pull" else image_table.FILE_NAME)
    content = file.read_bytes()
    place = content.index(b"IDAT" if step == "pull" else b"bee") + 4 * (step == "pull")
    file.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
    with pytest.raises(DamagedArtifactError, match=f"{step} .* is damaged"):
        followed(runner, score_opponents, made["pull"], made["validate"], scores)
    assert store.find(step, made[step].key) is None
    for each in made.values():
        shutil.rmtree(each.folder, ignore_errors=True)


def test_the_same_package_has_the_challengers_metrics_and_the_best_so_far_is_scored_too(
    project, older, trained, written, data, scores, tmp_path
):
    nothing = runner_in(Project(tmp_path))
    assert followed(nothing, score_opponents, *data, scores) == (None, None)
    runner, best, _ = older
    client = tracking.client(project)
    client.set_registered_model_alias("toy", versions.REFERENCE, str(best.version))
    version = appoint(project, written, trained)
    champion, reference = followed(runner, score_opponents, *data, scores)
    assert champion.registered.version == version
    assert champion.evaluation == scores
    assert reference.registered.version.version == best.version
    assert reference.evaluation.step == "evaluate_reference"
    client.delete_registered_model_alias("toy", versions.REFERENCE)


def broken(written: Path, folder: Path) -> Path:
    """A package that does not load."""
    shutil.copytree(written, folder)
    (folder / "code" / "models" / "__init__.py").write_text("raise RuntimeError('too old')\n")
    return folder


@pytest.mark.slow
def test_a_reference_that_does_not_answer_is_set_aside(
    project, trained, written, data, scores, tmp_path, caplog
):
    best = appoint(project, broken(written, tmp_path / "best"), trained)
    client = tracking.client(project)
    client.set_registered_model_alias("toy", versions.REFERENCE, str(best.version))
    champion = appoint(project, written, trained)
    runner = runner_in(project)
    with caplog.at_level(logging.INFO):
        followed(runner, score_ahead, *data, "training")
    assert "too old" in caplog.text
    assert "That is the reference, the best version so far. It is set aside" in caplog.text
    entry = decisions.read(project, "toy").entries[-1]
    assert (entry.action, entry.version, entry.previous) == (
        "set aside", best.version, champion.version
    )  # fmt: skip
    assert "too old" in entry.reason
    assert versions.champion(project, "toy").version == champion.version
    dry_run = runner_in(project, DryRun)
    found, reference = followed(dry_run, score_opponents, *data, scores)
    assert (found.registered.version.version, reference) == (champion.version, None)
    assert decisions.read(project, "toy").entries[-1] == entry
    client.delete_registered_model_alias("toy", versions.REFERENCE)


def test_a_reference_without_its_record_is_told_and_left_out(
    project, trained, written, data, scores
):
    best, champion = (appoint(project, written, trained) for _ in range(2))
    client = tracking.client(project)
    client.set_registered_model_alias("toy", versions.REFERENCE, str(best.version))
    client.set_model_version_tag("toy", str(best.version), versions.RECORD, "gone")
    runner = runner_in(project)
    found, reference = followed(runner, score_opponents, *data, scores)
    assert (found.registered.version.version, reference) == (champion.version, None)
    [told] = runner.warnings
    assert f"toy version {best.version}: the record of its lineage" in told
    assert "That is the reference" in told
    client.delete_registered_model_alias("toy", versions.REFERENCE)


@pytest.mark.parametrize("init", ["new", "champion"])
def test_test_images_that_the_champion_has_learnt_are_counted_before(
    project, trained, written, tmp_path, init
):
    """As they are when one more look-alike has brought a group from train to test."""
    champion = appoint(project, written, trained)
    pixels = [f"{number:016x}" for number in range(9)]
    table = {
        "split": ["test"] * 8 + ["train"],
        "pixels": pixels,
        "tie": [1, 1, 1, 2, 3, 3, 4, 4, 5],
    }
    pq.write_table(pa.table(table), tmp_path / image_table.FILE_NAME)
    validated = Artifact("validate", "k", "d", tmp_path, {})
    runner = runner_in(project)
    train = WORKLOAD.train.model_copy(update={"init": init})
    runner.workload = WORKLOAD.model_copy(update={"train": train})
    for learnt, said in (([100], None), ([2, 4, 8], "5 of the 8 test images")):
        file = project.state / "learnt_pixels" / f"{champion.run_id}.npy"
        file.parent.mkdir(parents=True, exist_ok=True)
        np.save(file, np.array(learnt, np.uint64))
        found = followed(runner, learnt_test_images, validated)
        assert (said in found) if said else (found is None)
    file.unlink()
    assert ("The model starts from it" in found) is (init == "champion")
    assert followed(runner, learnt_test_images, validated) is None  # it is not known


def test_a_champion_that_does_not_answer_is_an_error_before_the_training(
    project, trained, written, data, tmp_path
):
    folder = broken(written, tmp_path / "champion")
    (folder / "code" / "models" / "more.py").touch()  # another package than the one above
    appoint(project, folder, trained)
    with pytest.raises(ValueError, match="too old") as caught:
        followed(runner_in(project), score_ahead, *data, "training")
    said = str(caught.value)
    assert "That is the champion" in said
    assert "retrain rollback toy" in said


def compare_classes(theirs, ours, may_drop=()):
    """Compares the classes of a champion and of the data, both with their images."""
    return refuse_missing(Gate(may_drop=tuple(may_drop)), "toy version 3", theirs, ours)


BOTH = {"ant": 9, "bee": 9}


@pytest.mark.parametrize(
    ("theirs", "ours", "may_drop", "found"),
    [
        (BOTH, {"bee": 30, "ant": 20}, (), []),
        ({"ant": 9}, BOTH, (), []),
        (BOTH, {"bee": 9}, ["ant", "never seen"], ["ant"]),
    ],
)
def test_data_may_have_further_classes_and_lack_those_that_may_go(theirs, ours, may_drop, found):
    assert compare_classes(theirs, ours, may_drop) == found


def test_a_class_that_is_gone_is_refused_with_what_was_and_what_is():
    with pytest.raises(RejectedDataError) as raised:
        theirs, ours = {"ant": 1240, "bee": 9}, {"bee": 9, "wasp": 1}
        compare_classes(theirs, ours)
    lines = str(raised.value).splitlines()
    assert lines[0].startswith("The data lacks 1 of the 2 classes of toy version 3, the champion")
    assert lines[1:4] == [
        "- missing, with the images then: ant (1,240)",
        "- the champion's classes: ant, bee",
        "- the data's classes: bee, wasp",
    ]
    for way in ("gate.may_drop", "params.yaml", "--as NAME"):
        assert way in lines[4]


@pytest.mark.parametrize(
    ("theirs", "ours", "may_drop", "said"),
    [
        (BOTH, {"cat": 9}, ["ant"], "then: bee (9)\n"),
        ({f"n{number:08}": 9 for number in range(1000)}, {"ant": 9}, [], "and 990 more"),
    ],
)
def test_what_is_gone_is_named_briefly(theirs, ours, may_drop, said):
    with pytest.raises(RejectedDataError) as raised:
        compare_classes(theirs, ours, may_drop)
    assert said in str(raised.value)
    assert len(str(raised.value)) < 1500
