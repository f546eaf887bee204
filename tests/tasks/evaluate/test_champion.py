"""The champion answers from its own package, in a process of its own."""

import logging
import shutil
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import models
from retrain.errors import DamagedArtifactError, RejectedDataError
from retrain.file_io import sha256_of, write_json
from retrain.project import Project
from retrain.registry import decisions, packages, tracking, versions
from retrain.registry.ledger import Decision
from retrain.registry.versions import Candidate
from retrain.runs.run import DryRun, Run, StopFollowingError, following
from retrain.step import DataVersion, Step
from retrain.store import Artifact
from retrain.workload import Data, Gate, Model, Workload
from tasks.data import image_table, package
from tasks.evaluate.champion import (
    compare_classes,
    learnt_test_images,
    refuse_missing,
    score_ahead,
    score_opponents,
)
from tests.tasks.evaluate.conftest import ROWS
from tests.tasks.toy_model import (
    LABELS,
    invert_images,
    pixels,
    plain_probabilities,
    write_data,
)

WORKLOAD = Workload(name="toy", data=Data(path="data"), model=Model(family="vit"))


def runner_in(project, kind=Run):
    return kind("toy", WORKLOAD, DataVersion("d", tracked=True), project, "run")


def followed(runner, function, *arguments):
    """What a function gives whose calls of steps a runner takes."""
    with following(runner):
        return function(*arguments)


def appoint(scored: SimpleNamespace, folder: Path) -> versions.ModelVersion:
    """Registers a package and makes it champion."""
    before = versions.champion(scored.project, "toy")
    candidate = Candidate(
        name="toy",
        weights=sha256_of(folder / package.MODEL / packages.WEIGHTS),
        package_digest=package.digest_of_folder(folder),
        train_digest=scored.trained.digest,
        family="vit",
        images={"size": 8, "channels": 1, "resize": "crop"},
        classes=package.classes_digest(package.classes_of(folder)),
        metrics={},
        run_id=scored.run_id,
    )
    version = versions.register(scored.project, candidate, folder)
    decision = Decision("promoted", version.version, before and before.version, "better")
    return decisions.apply(scored.project, version, decision)


@pytest.fixture(scope="module")
def older(scored):
    """A champion whose family is gone from models/, and whose decoder inverts the image.

    Gives the runner and what it made of the champion.
    """
    folder = shutil.copytree(scored.package, scored.project.root / "older")
    code, description = folder / package.CODE / "models", folder / package.MODEL / models.MODEL
    (code / "vit_network.py").rename(code / "old_network.py")
    description.write_text(description.read_text().replace('"family": "vit"', '"family": "old"'))
    write_json(folder / package.SERVING, package.serving_of(folder / package.MODEL, "fp32"))
    invert_images(folder)
    version = appoint(scored, folder)
    runner = runner_in(scored.project)
    champion, reference = followed(runner, score_opponents, *scored.data, scored.scores)
    assert reference is None
    return SimpleNamespace(runner=runner, version=version, champion=champion)


def test_a_champion_whose_family_is_gone_answers_with_its_own_code(scored, older):
    expected = plain_probabilities(scored.trained.folder / "model", 255 - pixels(ROWS), 256)
    table = pq.read_table(older.champion.evaluation.folder / "predictions.parquet")
    assert np.abs(np.stack(table["probabilities"].to_numpy()) - expected).max() < 1e-6
    right = expected.argmax(1) == np.arange(ROWS) % len(LABELS)
    assert older.champion.evaluation.facts["metrics"]["accuracy"] == pytest.approx(right.mean())
    assert older.champion.registered.version == older.version
    folder = packages.download(scored.project, older.version)  # asking has left it as it was
    assert package.digest_of_folder(folder) == older.version.package_digest


def test_it_is_asked_once_and_found_in_the_store_after_that(scored, older):
    pulled, validated = scored.data
    more = (replace(pulled, digest="more"), replace(validated, digest="more"))  # for training
    dry_run = runner_in(scored.project, DryRun)
    for found in (scored.data, more):
        champion, _ = followed(dry_run, score_opponents, *found, scored.scores)
        assert champion.evaluation.digest == older.champion.evaluation.digest
    others = replace(validated, facts=validated.facts | {"test_rows": "others"})
    with pytest.raises(StopFollowingError):
        followed(dry_run, score_opponents, pulled, others, scored.scores)


def stored(run: Run, artifact: Artifact) -> Artifact:
    """The same artifact in the store of a run."""

    def copy(workspace):
        shutil.copytree(artifact.folder, workspace.folder, dirs_exist_ok=True)
        return artifact.facts

    return runner_in(run.project).output(Step(artifact.step, copy, inputs=()))


@pytest.mark.parametrize(
    ("step", "name", "change"),
    [
        ("pull", "data/test.parquet", (b"IDAT", b"IDAU")),
        ("validate", image_table.FILE_NAME, (b"bee", b"cee")),
    ],
)
def test_damaged_test_images_are_found_and_go(scored, older, tmp_path, step, name, change):
    more = {each.step: stored(older.runner, each) for each in write_data(tmp_path, ROWS + 1)}
    file = more[step].folder / name
    file.write_bytes(file.read_bytes().replace(*change, 1))
    with pytest.raises(DamagedArtifactError, match=f"{step} .* is damaged"):
        followed(older.runner, score_opponents, *more.values(), scored.scores)
    assert older.runner.store.find(step, more[step].key) is None
    for each in more.values():
        shutil.rmtree(each.folder, ignore_errors=True)


def test_the_same_package_has_the_challengers_metrics_and_the_best_so_far_is_scored_too(
    scored, older, tmp_path
):
    nothing = runner_in(Project(tmp_path))
    assert followed(nothing, score_opponents, *scored.data, scored.scores) == (None, None)
    version = appoint(scored, scored.package)
    with referring(scored.project, older.version):
        champion, reference = followed(older.runner, score_opponents, *scored.data, scored.scores)
    assert (champion.registered.version, champion.evaluation) == (version, scored.scores)
    assert reference.registered.version.version == older.version.version
    assert reference.evaluation.step == "evaluate_reference"


@contextmanager
def referring(project, version):
    """The version is the reference meanwhile."""
    client = tracking.client(project)
    client.set_registered_model_alias("toy", versions.REFERENCE, str(version.version))
    yield client
    client.delete_registered_model_alias("toy", versions.REFERENCE)


def broken(written: Path, folder: Path) -> Path:
    """A package that does not load."""
    shutil.copytree(written, folder)
    (folder / "code" / "models" / "__init__.py").write_text("raise RuntimeError('too old')\n")
    return folder


@pytest.mark.slow
def test_a_reference_that_does_not_answer_is_set_aside(scored, tmp_path, caplog):
    best = appoint(scored, broken(scored.package, tmp_path / "best"))
    champion = appoint(scored, scored.package)
    with referring(scored.project, best), caplog.at_level(logging.INFO):
        followed(runner_in(scored.project), score_ahead, *scored.data, "training")
        entry = decisions.read(scored.project, "toy").entries[-1]
        found, reference = followed(
            runner_in(scored.project, DryRun), score_opponents, *scored.data, scored.scores
        )
    assert "too old" in caplog.text
    assert "That is the reference, the best version so far. It is set aside" in caplog.text
    assert (entry.action, entry.version, entry.previous) == (
        "set aside", best.version, champion.version
    )  # fmt: skip
    assert "too old" in entry.reason
    assert versions.champion(scored.project, "toy").version == champion.version
    assert (found.registered.version.version, reference) == (champion.version, None)
    assert decisions.read(scored.project, "toy").entries[-1] == entry


def test_a_reference_without_its_record_is_told_and_left_out(scored):
    best, champion = (appoint(scored, scored.package) for _ in range(2))
    runner = runner_in(scored.project)
    with referring(scored.project, best) as client:
        client.set_model_version_tag("toy", str(best.version), versions.RECORD, "gone")
        found, reference = followed(runner, score_opponents, *scored.data, scored.scores)
    assert (found.registered.version.version, reference) == (champion.version, None)
    [told] = runner.warnings
    assert f"toy version {best.version}: the record of its lineage" in told
    assert "That is the reference" in told


@pytest.mark.parametrize(
    ("init", "learnt", "said"),
    [
        ("new", None, []),  # it is not known
        ("new", [100], []),
        ("new", [2, 4, 8], ["5 of the 8 test images", "leaves them out."]),
        ("champion", [2, 4, 8], ["5 of the 8 test images", "The model starts from it"]),
    ],
)
def test_test_images_that_the_champion_has_learnt_are_counted_before(
    scored, tmp_path, init, learnt, said
):
    """As they are when one more look-alike has brought a group from train to test."""
    run_id = tracking.start_run(scored.project, "toy", "key", {}, "digest")
    appoint(SimpleNamespace(**vars(scored) | {"run_id": run_id}), scored.package)
    table = {
        "split": ["test"] * 8 + ["train"],
        "pixels": [f"{number:016x}" for number in range(9)],
        "tie": [1, 1, 1, 2, 3, 3, 4, 4, 5],
    }
    pq.write_table(pa.table(table), tmp_path / image_table.FILE_NAME)
    runner = runner_in(scored.project)
    train = WORKLOAD.train.model_copy(update={"init": init})
    runner.workload = WORKLOAD.model_copy(update={"train": train})
    file = scored.project.state / "learnt_pixels" / f"{run_id}.npy"
    file.parent.mkdir(parents=True, exist_ok=True)
    if learnt:
        np.save(file, np.array(learnt, np.uint64))
    found = followed(runner, learnt_test_images, Artifact("validate", "k", "d", tmp_path, {}))
    assert (found is None) is not bool(said)
    assert all(each in found for each in said)


def test_a_champion_that_does_not_answer_is_an_error_before_the_training(scored, tmp_path):
    folder = broken(scored.package, tmp_path / "champion")
    (folder / "code" / "models" / "more.py").touch()  # another package than the one above
    appoint(scored, folder)
    with pytest.raises(ValueError, match="too old") as caught:
        followed(runner_in(scored.project), score_ahead, *scored.data, "training")
    assert "That is the champion" in str(caught.value)
    assert "retrain rollback toy" in str(caught.value)


def test_classes_that_are_new_or_gone_are_told(scored):
    appoint(scored, scored.package)
    runner = runner_in(scored.project)
    runner.workload = WORKLOAD.model_copy(update={"gate": Gate(may_drop=("dog",))})
    classes = dict.fromkeys(("ant", "bee", "cat", "wasp"), 9)
    validated = replace(scored.data[1], facts=scored.data[1].facts | {"classes": classes})
    followed(runner, compare_classes, validated)
    [told] = runner.warnings
    assert told.endswith(", the champion: wasp is new, and dog is gone.")


BOTH = {"ant": 9, "bee": 9}


@pytest.mark.parametrize(
    ("theirs", "ours", "may_drop", "found"),
    [
        (BOTH, {"bee": 30, "ant": 20}, (), []),
        ({"ant": 9}, BOTH, (), []),
        (BOTH, {"bee": 9}, ("ant", "never seen"), ["ant"]),
    ],
)
def test_data_may_have_further_classes_and_lack_those_that_may_go(theirs, ours, may_drop, found):
    assert refuse_missing(Gate(may_drop=may_drop), "toy version 3", theirs, ours) == found


@pytest.mark.parametrize(
    ("theirs", "ours", "may_drop", "said"),
    [
        (
            {"ant": 1240, "bee": 9},
            {"bee": 9, "wasp": 1},
            (),
            [
                "The data lacks 1 of the 2 classes of toy version 3, the champion",
                "\n- missing, with the images then: ant (1,240)\n- the champion's classes: ant, bee"
                "\n- the data's classes: bee, wasp\n",
                "gate.may_drop",
                "params.yaml",
                "--as NAME",
            ],
        ),
        (BOTH, {"cat": 9}, ("ant",), ["then: bee (9)\n"]),
        ({f"n{number:08}": 9 for number in range(1000)}, {"ant": 9}, (), ["and 990 more"]),
    ],
)
def test_a_class_that_is_gone_is_refused_with_what_was_and_what_is(theirs, ours, may_drop, said):
    with pytest.raises(RejectedDataError) as raised:
        refuse_missing(Gate(may_drop=may_drop), "toy version 3", theirs, ours)
    assert all(each in str(raised.value) for each in said)
    assert len(str(raised.value)) < 1500
