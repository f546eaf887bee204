"""What is said of a model: the verdict of its run, its card, and its lineage."""

import hashlib
import json
import sys
from dataclasses import replace

import pytest

from retrain.cli.main import main
from retrain.registry import lineage, packages, tracking, versions
from retrain.runs import console
from retrain.step import DataVersion
from retrain.store import Artifact
from tasks.data import image_table
from tasks.promote import outcome
from tests.tasks.promote.conftest import COMPARE, DATA, REQUIREMENTS, ROWS, WORKLOAD, train
from tests.tasks.toy_model import write_model

RULE = {"rule": "accuracy >= 0.9", "value": 0.87654, "bound": 0.9, "passed": False}
FOUND = {"metrics": {"accuracy": {"difference": 0.0125, "low": -0.003, "high": 0.028}}}


ANT = {"label": "ant", "rows": 12, "recall": 0.5}


def document(verdict, *, first=False, passed=True, promote=True, rules=(), new=(), **model):
    found = {"champion": FOUND} if verdict == "not worse" else {}
    decision = {"verdict": verdict, "passed": passed, "rules": rules, "comparisons": found}
    return {
        "decision": decision | {"new_classes": new},
        "champion": None if first else {"version": 3, "metrics": {}},
        "model": {"name": "toy", "version": 4, **model},
        "promote": promote,
    }


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
        (
            document("first", first=True, changed_rules="gate.margin 0.02 -> 0.5", new=[ANT]),
            "Promoted",
            "toy version 4 is the first champion. Rules of the gate were not those of params.yaml: "
            "gate.margin 0.02 -> 0.5. New classes: ant (12 test images, recall 0.50).",
        ),
    ],
)  # fmt: skip
def test_a_run_ends_in_one_state_with_a_plain_sentence(run, state, sentence):
    assert outcome.verdict(run) == (state, sentence)


KNOWN = {
    "ant": (40, 0.95), "bee": (30, 0.9), "cat": (29, 0.5), "dog": (30, 1.0), "elk": (40, 0.96),
    "fox": (30, 0.97),
}  # fmt: skip
NEVER_SEEN = {f"n{number}": (0, 0.0) for number in range(20)}
FACTS = {
    "metrics": {"accuracy": 0.9, "log_loss": 0.25, "rows": 199}, "precision": "bf16",
    "package": "p" * 64, "package_bytes": 12_345_678,
}  # fmt: skip
VALIDATED = {
    "rows": {"train": 1700, "val": 100, "test": 199}, "quarantined": 3, "near_duplicates": 7,
    "classes": {"bee": 250, "ant": 400, "cat": 150, "dog": 200},
}  # fmt: skip
NUMERICS = {"precision": "fp32", "told_precision": "fp16"}
TRAINED = {"parameters": 5432, "numerics": NUMERICS, "batch_size": 64, "best_epoch": 3}
FEW = {"column": "site", "value": "a|b", "images": 9, "accuracy": 0.5, "low": 0.2, "high": 0.8}
THIRD = FEW | {"column": "side", "value": "lowest", "images": 91, "from": 8.0, "to": 16.0}


def test_the_card_says_what_is_known(tmp_path):
    made = write_model(tmp_path)
    trained = replace(made, facts=made.facts | TRAINED, provenance={"commit": "c0ffee"})
    table = [
        {"label": label, "precision": 0.5, "recall": recall, "rows": rows}
        for label, (rows, recall) in (KNOWN | NEVER_SEEN).items()
    ]
    (tmp_path / "classes.json").write_text(json.dumps({"classes": table}))
    slices = [FEW | {"judged": False}, THIRD | {"judged": True}]
    decision = {"verdict": "better", "says": ["Accuracy is better.", "So it is."], "slices": slices}
    scores = Artifact("evaluate", "k", "d", tmp_path, FACTS)
    data = DataVersion("data-1", True)
    text = outcome.card_of("toy", data, VALIDATED, trained, scores, decision)
    rare = ", ".join(f"{label} (0)" for label in [*NEVER_SEEN][:19])
    found = iter(text.splitlines())
    for line in (  # in this order
        "An image classifier with 4 classes: ant, bee, cat, dog. It takes images of 8 x 8 pixels, "
        "grey (resize crop, bicubic).",
        "Version `data-1`: 1,700 train, 100 val, 199 test images. 3 were set aside.",
        "The classes have from 150 images (cat) to 400 (ant).",
        "7 images look almost like one of a later split.",
        "199 images that the model was not trained on. It answers in bf16.",
        "| accuracy | 0.9000 | 0.850 to 0.934 |",  # Wilson's interval of 179 of 199
        "| log_loss | 0.2500 |  |",
        "| cat | 29 | 0.5000 | 0.314 to 0.656 | 0.5000 |",
        "| bee | 30 | 0.9000 | 0.744 to 0.965 | 0.5000 |",
        "| fox | 30 | 0.9700 | 0.833 to 0.994 | 0.5000 |",  # the last of five
        "| site: a\\|b | 9 (too few to judge) | 0.5000 | 0.2000 to 0.8000 |",
        "| side: lowest (8 to 16) | 91 | 0.5000 | 0.2000 to 0.8000 |",
        "The gate says: it is better than the champion.",
        "So it is.",
        "Family vit, 5,432 parameters, best epoch 3, batches of 64, precision fp16 (as told).",
        f"Commit `c0ffee`, weights `{trained.facts['weights']}`.",
        f"- Classes with fewer than 30 test images: cat (29), {rare} and 1 more. Of these little "
        "is known.",
        "- In bf16, a probability differs from that in fp32 by up to 0.02.",
    ):
        assert line in found, line
    assert "They were measured by class, site, side, and by nothing else" in text
    assert "| dog |" not in text
    assert (text[:6], text[-1]) == ("# toy\n", "\n")


def test_a_run_shows_what_it_was_decided_by(capsys):
    others = [
        {"rule": "a [new] rule", "says": "cannot be told", "passed": None},
        {"rule": "log_loss <= 1", "value": 0.25, "passed": True},
    ]
    run = document("below bounds", passed=False, rules=[RULE, *others])
    run |= {
        "metrics": {"accuracy": 0.87654},
        "champion": {"version": 3, "metrics": {"accuracy": 0.9}},
    }
    run["decision"] |= {"slices": [FEW | {"judged": True}], "says": ["So it is."]}
    with console.shown_on(sys.stdout):
        outcome.show(run)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    for line in (
        "metric this model champion (version 3)",
        "accuracy 0.8765 0.9000",
        "site: a|b 9 0.5000 0.2000 to 0.8000",
        "failed accuracy >= 0.9 (is 0.8765)",
        "cannot tell a [new] rule (cannot be told)",
        "passed log_loss <= 1 (is 0.2500)",
        "So it is.",
        outcome.verdict(run).sentence,
    ):
        assert line in lines, line
    outcome.show(run | {"champion": None})  # which it takes, too


def test_it_is_kept_with_the_run_and_has_the_last_decision_of_the_gate(project, run):
    trained = train(project)
    run(trained, "cannot tell")
    version = versions.get(project, "toy", 1)
    assert "The gate says: it cannot be told" in packages.read_card(project, version)
    run(trained, "first", intent=COMPARE)
    text = packages.read_card(project, version)
    assert "The gate says: there was no champion" in text
    assert "cannot be told" not in text
    shown = tracking.client(project).get_model_version("toy", "1").description
    assert shown.startswith("**Compared** on ")
    assert shown.count("there was no champion to compare it with") == 1  # not twice
    assert shown.endswith(text.partition("## Training")[2])
    assert packages.read_card(project, replace(version, package_digest="older")) is None


pytestmark = pytest.mark.usefixtures("not_loaded")


def test_a_version_carries_its_lineage_and_the_command_prints_it(
    project, one, images, place_of_commands, capsys
):
    version = versions.champion(project, "toy")
    record = lineage.read(project, version)
    splits = lineage.digests_of_images(images[1].folder / image_table.FILE_NAME)
    expected = {
        "model": "toy",
        "package": version.package_digest,
        "weights": version.weights,
        "data": {
            "version": DATA.digest, "tracked": True, "revision": None, "pin": None, "path": "data"
        },
        "requirements": hashlib.sha256(REQUIREMENTS.encode()).hexdigest(),
        "mlflow_run": version.run_id,
        "metrics": version.metrics,
        "parameters": WORKLOAD.model_dump(mode="json", exclude={"name"}),  # as in the file
        "validation": images[1].facts,
        "uncommitted": None,
    }  # fmt: skip
    assert {name: record[name] for name in expected} == expected
    assert record["images"]["splits"] == splits
    made = lineage.output_of(record, "train")
    assert (made["digest"], made["provenance"]["commit"]) == (version.train_digest, "c0ffee")

    assert main(["lineage", "toy"]) == 0
    shown = capsys.readouterr().out
    assert "toy version 1 (champion, reference), registered" in shown
    assert f"test rows {ROWS}, sha256 {splits['test']['sha256']}" in shown
    assert "machine      not recorded" in shown  # the toy's training was in no step
    assert main(["lineage", "toy@1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["lineage"] == record
