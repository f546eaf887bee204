"""What is said of a model: the verdict of its run, its card, and its lineage."""

import hashlib
import json
from dataclasses import replace

import pytest

from retrain.cli.main import main
from retrain.registry import lineage, packages, tracking, versions
from retrain.step import DataVersion
from retrain.store import Artifact
from tasks.data import image_table
from tasks.promote import outcome
from tests.tasks.promote.conftest import COMPARE, DATA, REQUIREMENTS, ROWS, train
from tests.tasks.toy_model import LABELS, write_model

RULE = {"rule": "accuracy >= 0.9", "value": 0.87654, "bound": 0.9, "passed": False}
FOUND = {"metrics": {"accuracy": {"difference": 0.0125, "low": -0.003, "high": 0.028}}}


def document(verdict, *, first=False, passed=True, promote=True, rules=(), **model):
    decision = {"verdict": verdict, "passed": passed, "rules": rules, "comparisons": {}}
    decision["new_classes"] = []
    if verdict == "not worse":
        decision["comparisons"] = {"champion": FOUND}
    champion = None if first else {"version": 3, "metrics": {}}
    version = {"name": "toy", "version": 4, **model}
    return {"decision": decision, "champion": champion, "model": version, "promote": promote}


@pytest.mark.parametrize(
    ("run", "state", "sentence"),
    [
        (document("first", first=True), "Promoted", "toy version 4 is the first champion."),
        (
            document("not worse"),
            "Promoted",
            "toy version 4 is the new champion, in place of version 3: it is not worse than the "
            "champion, except by less than the margin; accuracy +1.2 points (-0.3 to +2.8).",
        ),
        (
            document("repackaged"),
            "Promoted",
            "toy version 4 is the new champion, in place of version 3: it is the training of the "
            "champion in a new package.",
        ),
        (
            document("below bounds", passed=False, rules=[RULE]),
            "Rejected",
            "toy version 4 is rejected: accuracy >= 0.9 fails with 0.8765. Version 3 stays the "
            "champion.",
        ),
        (
            document("cannot tell", passed=False, first=True),
            "Rejected",
            "toy version 4 is rejected: it cannot be told whether it is better than the champion. "
            "There is no champion yet.",
        ),
        (
            document("better", withheld="version 4 was rejected on 2026-11-24: blurred"),
            "Rejected",
            "toy version 4 is not promoted: version 4 was rejected on 2026-11-24: blurred; it is "
            "promoted only with --promote.",
        ),
        (
            document("better", waiting=True),
            "Waiting",
            "toy version 4 passes the gate and waits for approval: retrain approve toy --reason "
            "WHY, or retrain reject toy --reason WHY.",
        ),
        (
            document("better", promote=False),
            "Compared",
            "toy version 4 would be the new champion, in place of version 3; add --promote to "
            "promote it.",
        ),
        (
            document("first", first=True, promote=False),
            "Compared",
            "toy version 4 would be the first champion; add --promote to promote it.",
        ),
        (
            document("first", first=True, promote=False, passed=False, rules=[RULE]),
            "Compared",
            "toy version 4 would be rejected: accuracy >= 0.9 fails with 0.8765. There is no "
            "champion yet.",
        ),
        (
            document("champion already"),
            "Unchanged",
            "This model is already the champion, toy version 4.",
        ),
    ],
)  # fmt: skip
def test_a_run_ends_in_one_state_with_a_plain_sentence(run, state, sentence):
    assert outcome.verdict(run) == (state, sentence)


def test_classes_that_the_champion_does_not_know_are_named_with_it():
    run = document("first", first=True)
    run["decision"]["new_classes"] = [{"label": "ant", "rows": 12, "recall": 0.5}]
    assert outcome.verdict(run).sentence.endswith(
        "champion. New classes: ant (12 test images, recall 0.50)."
    )


@pytest.fixture
def trained(tmp_path):
    """What `train` leaves, with its facts and its manifest."""
    made = write_model(tmp_path)
    numerics = {"precision": "bf16", "attention": "sdpa", "compiled": False, "threads": 1}
    facts = {"parameters": 5432, "numerics": numerics, "batch_size": 64, "best_epoch": 3}
    return replace(made, facts=made.facts | facts, provenance={"commit": "c0ffee"})


def evaluated(folder, *rows, **facts) -> Artifact:
    """An evaluation with these classes: name, images, recall."""
    folder.mkdir(exist_ok=True)
    table = [
        {"label": label, "precision": 0.5, "recall": recall, "f1": 0.5, "rows": count}
        for label, count, recall in rows
    ]
    (folder / "classes.json").write_text(json.dumps({"classes": table}))
    total = sum(count for _, count, _ in rows)
    given = {"metrics": {"accuracy": 0.9, "log_loss": 0.25, "rows": total}, "precision": "fp32"}
    return Artifact(
        "evaluate",
        "k",
        "d",
        folder,
        given | {"package": "p" * 64, "package_bytes": 12_345_678} | facts,
    )


def described(trained, evaluation, slices=(), **facts) -> str:
    validated = {
        "rows": {"train": 700, "val": 100, "test": 200}, "quarantined": 3, "near_duplicates": 0,
        "classes": {"ant": 400, "bee": 250, "cat": 150, "dog": 200},
    }  # fmt: skip
    decision = {"verdict": "better", "says": ["Accuracy is better.", "So it is."], "slices": slices}
    return outcome.card_of(
        "toy", DataVersion("data-1", True), validated | facts, trained, evaluation, decision
    )


def test_the_card_has_the_slices(trained, tmp_path):
    few = {"column": "site", "value": "a|b", "images": 9, "accuracy": 0.5, "low": 0.2, "high": 0.8}
    third = few | {"column": "side", "value": "lowest", "images": 91, "from": 8.0, "to": 16.0}
    slices = (few | {"judged": False}, third | {"judged": True})
    text = described(trained, evaluated(tmp_path / "evaluated", ("ant", 100, 0.5)), slices)
    assert "| site: a\\|b | 9 (too few to judge) | 0.5000 | 0.2000 to 0.8000 |" in text
    assert "| side: lowest (8 to 16) | 91 | 0.5000 | 0.2000 to 0.8000 |" in text
    assert "They were measured by class, site, side, and by nothing else" in text


def test_the_card_says_what_is_known(trained, tmp_path):
    rows = [("ant", 80, 0.95), ("bee", 60, 0.9), ("cat", 29, 0.5), ("dog", 31, 1.0)]
    text = described(trained, evaluated(tmp_path / "evaluated", *rows))
    for line in (
        "# toy",
        "An image classifier with 4 classes: ant, bee, cat, dog. It takes images of 8 x 8 pixels, "
        "grey (resize crop, bicubic).",
        "Version `data-1`: 700 train, 100 val, 200 test images. 3 were set aside.",
        "The classes have from 150 images (cat) to 400 (ant).",
        "200 images that the model was not trained on. It answers in fp32.",
        # Wilson's interval of 180 of 200.
        "| accuracy | 0.9000 | 0.851 to 0.934 |",
        "| log_loss | 0.2500 |  |",
        "| dog | 31 | 1.0000 | 0.890 to 1.000 | 0.5000 |",
        "The gate says: it is better than the champion.",
        "So it is.",
        "Family vit, 5,432 parameters, best epoch 3, batches of 64, precision bf16.",
        f"Commit `c0ffee`, weights `{trained.facts['weights']}`.",
        "- Classes with fewer than 30 test images: cat (29). Of these little is known.",
    ):
        assert line in text.splitlines(), line
    assert "look almost" not in text
    assert "bf16, a probability" not in text


def test_it_is_kept_with_the_run_and_has_the_last_decision_of_the_gate(project, run):
    trained = train(project)
    run(trained, "cannot tell")
    version = versions.get(project, "toy", 1)
    assert "The gate says: it cannot be told" in packages.read_card(project, version)
    run(trained, "first", intent=COMPARE)
    text = packages.read_card(project, version)
    assert text.startswith("# toy\n")
    assert f"4 classes: {', '.join(LABELS)}." in text
    assert "The gate says: there was no champion" in text
    assert "cannot be told" not in text
    shown = tracking.client(project).get_model_version("toy", "1").description
    assert shown.startswith("**Compared** on ")
    assert shown.count("there was no champion to compare it with") == 1  # not twice
    assert shown.endswith(text.partition("## Training")[2])
    tags = tracking.client(project).get_run(version.run_id).data.tags
    assert tags[tracking.NOTE] == f"toy version 1. {shown.splitlines()[0]}"
    assert not list(packages.download(project, version).rglob("*.md"))
    assert packages.read_card(project, replace(version, package_digest="older")) is None


pytestmark = pytest.mark.usefixtures("not_loaded")


@pytest.fixture
def version(project, one, place_of_commands):
    return versions.champion(project, "toy")


def test_a_version_carries_its_lineage(project, version, images):
    record = lineage.read(project, version)
    assert (record["model"], record["package"]) == ("toy", version.package_digest)
    assert record["weights"] == version.weights
    assert record["data"] == {
        "version": DATA.digest, "tracked": True, "revision": None, "pin": None, "path": "data"
    }  # fmt: skip
    assert record["requirements"] == hashlib.sha256(REQUIREMENTS.encode()).hexdigest()
    assert record["mlflow_run"] == version.run_id
    assert lineage.output_of(record, "train")["digest"] == version.train_digest
    assert lineage.output_of(record, "train")["provenance"]["commit"] == "c0ffee"
    assert record["metrics"] == version.metrics
    listed = images[1].folder / image_table.FILE_NAME
    assert record["images"]["splits"] == lineage.digests_of_images(listed)
    assert record["images"]["splits"]["test"]["rows"] == ROWS


def run_command(capsys, *arguments: str) -> tuple[int, str, str]:
    return (main(["lineage", *arguments]), *capsys.readouterr())


def test_the_command_prints_the_chain(project, version, capsys):
    for reference in ("toy", "toy@1"):
        code, output, _ = run_command(capsys, reference)
        assert code == 0
        assert "toy version 1 (champion, reference), registered" in output
    record = lineage.read(project, version)
    assert f"test rows {ROWS}, sha256 {record['images']['splits']['test']['sha256']}" in output
    assert "machine      not recorded" in output  # the toy's training was in no step
    document = json.loads(run_command(capsys, "toy", "--json")[1])
    assert document["lineage"]["images"]["splits"] == record["images"]["splits"]


@pytest.mark.parametrize(
    ("subject", "message"),
    [
        ("toy@9", "toy has no version '9'. There are: 1, champion, reference."),
        ("tyo", "No workload 'tyo' in params.yaml or run here. Did you mean 'toy'?"),
        ("@1", "'@1' names no version. Write NAME, NAME@ALIAS or NAME@NUMBER."),
    ],
)
def test_what_names_no_version_is_one_line(version, capsys, subject, message):
    assert run_command(capsys, subject) == (2, "", f"retrain: {message}\n")
