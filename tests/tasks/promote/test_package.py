"""What is registered is loaded in a process of its own before it becomes champion, and timed."""

import json
import re
from dataclasses import asdict, replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import models
from retrain.registry import decisions, packages, tracking, versions
from retrain.workload import Gate
from tasks.data.reading import open_images
from tasks.promote import outcome, package as packaging
from tests.tasks.promote.conftest import (
    FAST,
    ROWS,
    approve,
    champion,
    decide,
    history,
    roll_back,
    train,
)
from tests.tasks.toy_model import IMAGES, LABELS, pixels, png, write_model, write_scores

COUNTS = dict.fromkeys(LABELS, 1)


def test_a_version_that_answers_something_else_is_not_promoted(project, run, one):
    before = history(project)
    trained = train(project, seed=1)
    scores = write_scores(project.root / "scores", trained, ROWS)
    other = write_model(project.root / "other", seed=7)
    write_scores(project.root / "scores", other, ROWS)  # the predictions of another network
    with pytest.raises(ValueError) as raised:
        run(trained, "better", 1, scores)
    said = str(raised.value)
    reason = (
        r"toy version 2 cannot be served: it answers '\w+' for \d+\.png, where the evaluation says "
        r"'\w+'; their probabilities differ by up to 0\.\d+ \(0\.001 is allowed\)\."
    )
    assert re.fullmatch(reason, said)
    assert versions.champion(project, "toy").version == 1
    assert history(project) == before
    assert run(trained, "not better", 1, scores)["version"] == 2


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_package_answers_within_the_tolerance_in_either_precision(
    project, images, precision, tmp_path
):
    trained = train(project)
    scores = write_scores(project.root / "scores", trained, ROWS, precision)
    folder = project.root / "package"
    packaging.write_package(trained.folder / "model", precision, COUNTS, folder)
    asked = packaging.sample(open_images(images[0]), images[1].folder)
    assert asked["path"].to_pylist() == [f"{row}.png" for row in range(ROWS)]
    example = packaging.example_of(folder, asked, scores.folder)
    packaging.check_answers(folder, example, tmp_path)
    assert not list(folder.rglob("*.pyc"))


def write_custom(folder, factory):
    """The package of a network that a function makes; gives its requirements, by name."""
    settings = {"factory": factory, "arguments": {}}
    network = models.build("custom", settings, (8, 8, 1), len(LABELS))
    made = {"settings": settings, "labels": LABELS, "images": IMAGES}
    models.save(network, folder / "model", family="custom", **made)
    packaging.write_package(folder / "model", "fp32", COUNTS, folder / "package")
    lines = (folder / "package" / "requirements.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines)


NETWORK = "tests.tasks.promote.network_with_scipy:build_model"


def test_the_requirements_of_a_package_are_what_its_modules_import(tmp_path):
    ours = {"mlflow", "numpy", "pandas", "pi-heif", "pillow", "safetensors", "torch"}
    assert write_custom(tmp_path / "1", "examples.network:build_model").keys() == ours
    assert write_custom(tmp_path / "2", NETWORK).keys() == ours | {"scipy"}


def example_of(folder):
    """An image, and what the network of a package answers for it."""
    image = pixels(1)[0]
    loaded = models.load(folder / "model")
    probabilities = loaded.module.probabilities(torch.from_numpy(image[None]), "fp32").tolist()
    columns = {"path": ["0.png"], "image": [png(image)], "probabilities": probabilities}
    return pa.table(columns).replace_schema_metadata({"labels": json.dumps(LABELS)})


def test_a_package_finds_only_what_its_requirements_bring(tmp_path):
    factories = (NETWORK, "tests.tasks.promote.network_with_optuna:build_model")
    with_scipy, with_optuna = (tmp_path / name for name in ("1", "2"))
    for folder, factory in zip((with_scipy, with_optuna), factories, strict=True):
        assert "optuna" not in write_custom(folder, factory)
    example = example_of(with_scipy)
    assert packaging.check_answers(with_scipy / "package", example, tmp_path).calls
    with pytest.raises(ValueError, match="No module named 'optuna': the requirements of the pack"):
        packaging.check_answers(with_optuna / "package", example, tmp_path)


def test_before_a_rollback_a_version_is_loaded_and_asked_without_the_data(project, three, tmp_path):
    assert roll_back(project, "wrong labels")["version"] == 2
    kept = versions.get(project, "toy", 1)
    example = packaging.example_for(project, kept)
    others = [each[::-1] for each in example["probabilities"].to_pylist()]
    changed = example.drop_columns(["probabilities"]).append_column("probabilities", [others])
    changed = changed.replace_schema_metadata(example.schema.metadata)
    file = tmp_path / f"{kept.package_digest}.parquet"
    pq.write_table(changed, file)
    tracking.client(project).log_artifact(kept.run_id, str(file), packages.EXAMPLES)
    with pytest.raises(ValueError, match="toy version 1 cannot be served: it answers"):
        roll_back(project, "wrong labels")
    assert versions.champion(project, "toy").version == 2


BOUND = Gate(max_latency_ms=50)
MANUAL_BOUND = Gate(max_latency_ms=50, approval="manual")
SLOW = "p95 of a single image <= 50 ms fails with 80"


@pytest.fixture
def takes(monkeypatch):
    """Sets what the check measures, without the seconds to load a version."""

    def measured(p95: float) -> None:
        monkeypatch.setattr(packaging, "check_answers", lambda *_: replace(FAST, p95=p95))

    measured(2.0)
    return measured


def test_a_slow_package_is_measured_in_a_process_of_its_own_and_rejected(
    project, run, one, in_another_package
):
    trained = train(project, seed=1)
    first = '        if "image" not in model_input:\n'
    sleeps = f"        __import__('time').sleep(0.02)\n{first}"
    scores = in_another_package(trained, "serving.py", first, sleeps)
    facts = run(trained, "better", 1, scores, rules=Gate(max_latency_ms=20))
    found = versions.get(project, "toy", 2).latency
    assert asdict(found) == facts["latency"]
    assert 20 <= found.p50 <= found.p95
    assert (found.calls, found.device) == (20, "cpu")
    assert (facts["aliases"], champion(project)) == ([], 1)


def test_a_package_above_the_bound_is_measured_once_more_and_the_better_one_counts(monkeypatch):
    measured = [replace(FAST, p95=80.0), replace(FAST, p95=60.0), replace(FAST, p95=9.0)]
    monkeypatch.setattr(packaging, "_asked", lambda *_: measured.pop(0))
    assert packaging.check_answers(None, None, None, 50).p95 == 60.0
    assert packaging.check_answers(None, None, None, 50).p95 == 9.0


def test_what_is_too_slow_is_rejected_with_a_sentence_and_nothing_moves(
    project, run, one, look, takes, monkeypatch, caplog
):
    slow = train(project, 1)
    takes(80)
    before = versions.champion(project, "toy")
    facts = run(slow, "better", 1, rules=BOUND)
    assert (facts["version"], facts["aliases"]) == (2, [])
    assert "withheld" not in facts
    assert versions.champion(project, "toy") == versions.reference(project, "toy") == before
    rejected = versions.get(project, "toy", 2)
    assert rejected.broken is None
    assert f"{rejected.latency}." in packages.read_card(project, rejected).splitlines()
    written = decisions.read(project, "toy")
    entry = written.entries[-1]
    assert (entry.action, entry.verdict, entry.reason) == ("rejected", "better", SLOW)
    *_, rule = decisions.document_of(project, written, entry)["rules"]
    assert (rule["rule"], rule["value"]) == ("p95 of a single image <= 50 ms", 80)
    assert not rule["passed"]

    decision = decide("better", 1).facts
    told = {"champion": decision["champion"], "decision": decision, "model": facts}
    told |= {"promote": True, "metrics": {}}
    assert outcome.verdict(told) == (
        "Rejected",
        f"toy version 2 is rejected: {SLOW}. Version 1 stays the champion.",
    )
    outcome.show(told)
    assert "p95 of a single image: 80.0 ms" in caplog.text

    with monkeypatch.context() as patched:  # the same run again loads and enters nothing
        patched.setattr(packaging, "check_answers", None)
        assert run(slow, "better", 1, rules=BOUND) == facts
        assert look(slow, "better", 1, rules=BOUND) == facts
    assert [entry.action for entry in history(project)] == ["promoted", "rejected"]
    raised = Gate(max_latency_ms=100)
    assert look(slow, "better", 1, rules=raised) is None
    assert run(slow, "better", 1, rules=raised)["aliases"] == ["champion", "reference"]


def test_what_is_too_slow_by_the_time_of_its_approval_still_waits(project, run, takes):
    run(train(project), "first", rules=MANUAL_BOUND)
    takes(80)
    with pytest.raises(ValueError, match=f"still waits: {SLOW}"):
        approve(project, "it looks right")
    assert champion(project) is None
    assert versions.get(project, "toy", 1).broken is None
    takes(40)
    assert approve(project, "it looks right")["version"] == champion(project) == 1
