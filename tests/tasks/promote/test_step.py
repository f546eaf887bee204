import json
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

import models
from retrain import tracking
from retrain.code import source_of
from retrain.project import Project
from retrain.registry import versions
from retrain.step import DataVersion, Workspace
from retrain.store import Artifact
from retrain.workload import Data
from tasks.data import package
from tasks.data.raw_dataset import open_raw_dataset
from tasks.promote import check, package as packaging
from tasks.promote.step import Intent, promote, promoted
from tests import templates
from tests.tasks.toy_model import (
    HISTORY,
    workspace,
    write_data,
    write_model,
    write_report,
    write_scores,
)

pytestmark = pytest.mark.usefixtures("warm")

COLUMNS = Data(path="data")
DATA = DataVersion("data-1", tracked=True)
PASSED = {"rule": "accuracy >= 0.9", "value": 0.95, "bound": 0.9, "passed": True}
ROWS = 20
PROMOTE, COMPARE = Intent(promote=True), Intent(promote=False)


@pytest.fixture
def project(tmp_path):
    templates.place_mlflow_database(tmp_path)
    return Project(tmp_path)


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """The data, pulled and validated."""
    return write_data(tmp_path_factory.mktemp("data"), ROWS)


@pytest.fixture
def run(project, images):
    """Promotes a model with the verdict that it is given."""

    def call(
        trained: Artifact, verdict: str, champion: int | None = None, scores=None, intent=PROMOTE
    ):
        scores = scores or write_scores(trained.folder.parent / "scores", trained, ROWS)
        decision = decide(verdict, champion)
        with TemporaryDirectory() as folder:
            place = workspace(Path(folder) / "promote", project.root)
            facts = promote(COLUMNS, DATA, *images, trained, scores, decision, intent, place)
            assert list(place.folder.iterdir()) == []
        return facts

    return call


def train(project: Project, seed: int = 0) -> Artifact:
    """A model as `train` leaves it, with its MLflow run."""
    trained = write_model(project.root / f"trained-{seed}" / "train", seed=seed)
    write_report(trained, project)
    return replace(trained, provenance={"commit": "c0ffee"})


def decide(verdict: str, champion: int | None) -> Artifact:
    """The gate's decision."""
    facts = {
        "passed": verdict in ("first", "better", "repackaged", "champion already"),
        "verdict": verdict,
        "rules": [PASSED],
        "test_images": "test images",
        "reference": False,
        "champion": champion and {"version": champion, "metrics": {"accuracy": 0.95}},
    }
    return Artifact("gate", "k", "d", Path(), facts, {"run": "run-1"})


def state(project: Project):
    """All that the registry says, with its times."""
    client = tracking.client(project)
    return (
        [(dict(each), each.aliases) for each in client.search_model_versions("name = 'toy'")],
        dict(client.get_registered_model("toy").tags),
        client.get_registered_model("toy").aliases,
        [dict(each) for each in client.search_logged_models(["1"])],
    )


def test_the_first_model_that_passes_becomes_champion(project, run):
    trained = train(project)
    facts = run(trained, "first")
    assert facts == {
        "name": "toy",
        "version": 1,
        "aliases": ["champion"],
        "digest": trained.facts["weights"],
    }
    champion = versions.champion(project, "toy")
    assert champion.train_digest == trained.digest
    assert champion.metrics == {"accuracy": 0.95, "log_loss": 0.2}
    assert (champion.images["resize"], champion.images["mean"]) == ("crop", [0.5])
    assert (champion.data, champion.commit) == ("data-1", "c0ffee")
    [event] = versions.history(project, "toy")
    assert (event.action, event.version, event.previous) == ("promoted", 1, None)
    assert (event.run, event.data, event.rules) == ("run-1", "data-1", (PASSED,))


def test_a_model_that_failed_is_registered_as_rejected_and_the_champion_stays(project, run):
    run(train(project), "first")
    facts = run(train(project, seed=1), "cannot tell", champion=1)
    assert (facts["version"], facts["aliases"]) == (2, [])
    assert versions.champion(project, "toy").version == 1
    assert [event.action for event in versions.history(project, "toy")] == ["promoted", "rejected"]


@pytest.mark.parametrize("verdict", ["below bounds", "cannot tell"])
def test_the_same_decision_on_the_same_model_changes_nothing(project, verdict, run):
    champion, challenger = train(project), train(project, seed=1)
    run(champion, "first")
    first = run(challenger, verdict, champion=1)
    before = state(project)
    assert run(challenger, verdict, champion=1) == first
    assert state(project) == before


def test_a_model_that_is_only_compared_is_registered_and_promoted_later(project, images, run):
    first = run(train(project), "first")
    challenger = train(project, seed=1)
    compared = run(challenger, "better", champion=1, intent=COMPARE)
    assert (compared["version"], compared["aliases"]) == (2, [])
    assert versions.champion(project, "toy").version == first["version"]
    before = state(project)
    assert run(challenger, "better", champion=1, intent=COMPARE) == compared
    assert state(project) == before
    facts = run(challenger, "better", champion=1)
    assert (facts["version"], facts["aliases"]) == (2, ["champion"])
    events = versions.history(project, "toy")
    assert [event.action for event in events] == ["promoted", "compared", "promoted"]
    description = tracking.client(project).get_model_version("toy", "2").description
    assert description.startswith("**Promoted**")


def test_not_even_the_first_model_is_promoted_by_a_comparison(project, run):
    facts = run(train(project), "first", intent=COMPARE)
    assert (facts["version"], facts["aliases"]) == (1, [])
    assert versions.champion(project, "toy") is None


def test_a_package_has_the_number_of_images_of_each_class(project, images, run):
    run(train(project), "first")
    champion = versions.champion(project, "toy")
    counts = images[1].facts["classes"]
    assert package.classes_of(versions.download(project, champion)) == counts
    assert champion.classes == package.classes_digest(counts)


def test_the_champion_itself_is_left_alone(project, run):
    trained = train(project)
    first = run(trained, "first")
    before = state(project)
    assert run(trained, "champion already", champion=1) == first
    assert state(project) == before


def test_looking_tells_what_there_is_left_to_do_and_does_nothing(project, images, run):
    def look(trained, verdict, champion, intent=PROMOTE):
        scores = write_scores(trained.folder.parent / "scores", trained, ROWS)
        place = Workspace(Path(), Path(), "key", "toy", project)
        decision = decide(verdict, champion)
        return promoted(COLUMNS, DATA, *images, trained, scores, decision, intent, place)

    champion, challenger = train(project), train(project, seed=1)
    assert look(champion, "first", None) is None
    first = run(champion, "first")
    assert look(champion, "champion already", 1) == first
    assert look(champion, "first", None) is None  # there is a champion by now
    assert look(challenger, "cannot tell", 1) is None
    second = run(challenger, "cannot tell", champion=1)
    before = state(project)
    assert look(challenger, "cannot tell", 1) == second
    assert look(challenger, "below bounds", 1) is None
    assert look(challenger, "better", 1) is None
    assert look(challenger, "cannot tell", 1, COMPARE) is None
    assert state(project) == before


def test_a_rejected_model_that_passes_later_keeps_its_version(project, run):
    trained = train(project)
    run(trained, "below bounds")
    facts = run(trained, "first")
    assert (facts["version"], facts["aliases"]) == (1, ["champion"])
    said = [(event.action, event.verdict) for event in versions.history(project, "toy")]
    assert said == [("rejected", "below bounds"), ("promoted", "first")]


@pytest.mark.parametrize(
    "call",
    [
        "create_logged_model",
        "log_outputs",
        "log_model_artifacts",
        "finalize_logged_model",
        "create_registered_model",
        "create_model_version",
        "set_logged_model_tags",
        "set_registered_model_tag",
        "set_model_version_tag",
        "update_model_version",
        "set_registered_model_alias",
    ],
)
@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
def test_a_promotion_that_was_killed_is_completed_by_the_next_run(
    project, monkeypatch, call, done, run
):
    from mlflow import MlflowClient

    trained = train(project)
    original = getattr(MlflowClient, call)

    def killed(self, *args, **kwargs):
        if done:
            original(self, *args, **kwargs)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(MlflowClient, call, killed)
        with pytest.raises(KeyboardInterrupt):
            run(trained, "first")
    appointed = versions.champion(project, "toy") is not None
    assert appointed == (done and call == "set_registered_model_alias")
    if appointed:
        run(trained, "champion already", champion=1)
    else:
        run(trained, "first")
    registered, _, aliases, logged = state(project)
    assert len(registered) == len(versions.history(project, "toy")) == 1
    assert [model["status"] for model in logged] == ["READY"]
    assert {name: int(version) for name, version in aliases.items()} == {"champion": 1}
    assert versions.champion(project, "toy").verdict == "first"
    assert versions.download(project, versions.champion(project, "toy"))


def test_a_decision_against_a_champion_of_the_past_is_not_carried_out(project, run):
    run(train(project), "first")
    with pytest.raises(ValueError, match="champion version None, but champion is version 1"):
        run(train(project, seed=1), "first")
    assert len(versions.history(project, "toy")) == 1


def test_weights_that_changed_since_the_training_are_not_registered(project, run):
    trained = train(project)
    weights = trained.folder / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    with pytest.raises(ValueError, match=re.escape("model.safetensors has changed")):
        run(trained, "first")
    assert versions.champion(project, "toy") is None


def test_nothing_of_the_model_is_pickled(project, run):
    run(train(project), "first")
    package = versions.download(project, versions.champion(project, "toy"))
    kinds = {path.suffix for path in package.rglob("*") if path.is_file()}
    assert kinds <= {".safetensors", ".json", ".py", ".txt", ".yaml", ""}
    lines = (package / "requirements.txt").read_text().split()
    assert "torch==2.13.0" in lines
    assert not [line for line in lines if "+" in line]


def test_a_run_that_was_deleted_is_made_again_from_the_artifact(project, run):
    trained = train(project)
    client = tracking.client(project)
    deleted = json.loads((trained.folder / "report" / "mlflow.json").read_text())["run_id"]
    client.delete_run(deleted)
    plan = {"config": {"train.lr": 0.1}, "inputs": {"preprocess": "digest"}}
    (trained.folder / "manifest.json").write_text(json.dumps({"plan": plan}))
    run(trained, "first")
    run_id = versions.champion(project, "toy").run_id
    assert run_id != deleted
    made = client.get_run(run_id)
    assert made.info.status == "FINISHED"
    assert made.data.params == {"train.lr": "0.1"}
    assert made.data.metrics["test_accuracy"] == 0.95
    assert made.data.metrics["val_accuracy"] == HISTORY[-1]["val_accuracy"]


def test_the_package_has_the_code_that_it_runs_and_no_other(project, run):
    run(train(project), "first")
    champion = versions.champion(project, "toy")
    folder = versions.download(project, champion)
    code = {path.relative_to(folder / "code").as_posix() for path in folder.glob("code/**/*.*")}
    own = ("cost", "fine_tuned", "vit")
    modules = ("__init__", "image", "network", "pretrained", "serving", "user_code", *own)
    assert code == {f"models/{name}.py" for name in modules}
    assert package.digest_of_folder(folder) == champion.package_digest


def test_mended_code_makes_a_new_version_of_the_same_training(project, run, monkeypatch):
    trained = train(project)
    run(trained, "first")
    before = versions.champion(project, "toy")
    mended = project.root / "mended" / "models"
    ours = Path(models.__file__).parent
    shutil.copytree(ours, mended, ignore=shutil.ignore_patterns("__pycache__"))
    source = (mended / "image.py").read_text()
    (mended / "image.py").write_text(f"# A comment.\n{source}")
    monkeypatch.setattr(
        packaging, "source_of", lambda name: source_of(name, project.root / "mended")
    )
    folder = project.root / "scores"
    scores = write_scores(folder, trained, ROWS)
    assert run(trained, "champion already", 1, scores)["version"] == 1
    (mended / "image.py").write_text(f"MENDED = True\n{source}")
    digest = package.package_digest(
        trained.folder / "model",
        "fp32",
        package.code_of(trained.folder / "model", project.root / "mended"),
    )
    mended_scores = replace(scores, facts=scores.facts | {"package": digest})
    facts = run(trained, "repackaged", 1, mended_scores)
    assert (facts["version"], facts["aliases"]) == (2, ["champion"])
    after = versions.champion(project, "toy")
    assert after.package_digest == digest != before.package_digest
    assert (after.train_digest, after.weights) == (before.train_digest, before.weights)
    code = versions.download(project, after) / "code" / "models" / "image.py"
    assert code.read_text().startswith("MENDED")


def test_code_that_changed_after_the_evaluation_is_not_registered(project, run):
    trained = train(project)
    scores = write_scores(project.root / "scores", trained, ROWS)
    older = replace(scores, facts=scores.facts | {"package": "that of other code"})
    with pytest.raises(ValueError, match="models/ has changed since the model was evaluated"):
        run(trained, "first", None, older)
    assert versions.champion(project, "toy") is None
    assert versions.history(project, "toy") == []


def test_a_package_that_answers_something_else_is_not_registered(project, run):
    trained = train(project)
    scores = write_scores(project.root / "scores", trained, ROWS)
    other = write_model(project.root / "other", seed=7)
    write_scores(project.root / "scores", other, ROWS)  # the predictions of another network
    modules, path = dict(sys.modules), list(sys.path)
    with pytest.raises(ValueError) as raised:
        run(trained, "first", None, scores)
    said = str(raised.value)
    assert re.fullmatch(
        r"The package answers '\w+' for \d+\.png, where the evaluation says '\w+'; their "
        r"probabilities differ by up to 0\.\d+ \(0\.001 is allowed\)\. Nothing is registered\.",
        said,
    )
    assert versions.champion(project, "toy") is None
    # Nothing of the package is left in this process.
    assert sys.path == path
    ours = {name for name in modules if name.startswith("models")}
    assert {name for name in sys.modules if name.startswith("models")} == ours
    assert all(sys.modules[name] is modules[name] for name in ours)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_package_answers_within_the_tolerance_in_either_precision(project, images, precision):
    trained = train(project)
    scores = write_scores(project.root / "scores", trained, ROWS, precision)
    folder = project.root / "package"
    packaging.write_package(trained.folder / "model", precision, {}, folder)
    asked = list(check.sample(open_raw_dataset(COLUMNS, images[0]), images[1].folder))
    assert [image.path for image in asked] == [f"{row}.png" for row in range(ROWS)]
    check.check(folder, precision, asked, scores.folder)
    assert not list(folder.rglob("*.pyc"))


def test_a_tie_within_the_tolerance_is_no_difference():
    before = {"ant": 0.40001, "bee": 0.4, "cat": 0.19999}
    now = {"ant": 0.4, "bee": 0.40001, "cat": 0.19999}
    assert check.difference(before, now, "bee", 1e-4) is None
    assert check.difference(before, now, "cat", 1e-4) is not None
    assert check.difference(before, now | {"cat": 0.2002}, "bee", 1e-4) is not None


def test_the_sample_is_from_all_over_the_split_and_from_few_parts_of_large_data(tmp_path):
    pulled, validated = write_data(tmp_path, 200)
    source = open_raw_dataset(COLUMNS, pulled)
    paths = [image.path for image in check.sample(source, validated.folder)]
    assert paths == [f"{place * 200 // 64}.png" for place in range(64)]


def test_the_check_runs_the_code_of_the_package_and_not_the_projects(project, images):
    trained = train(project)
    scores = write_scores(project.root / "scores", trained, ROWS)
    folder = project.root / "package"
    packaging.write_package(trained.folder / "model", "fp32", {}, folder)
    decoder = folder / "code" / "models" / "image.py"
    text = decoder.read_text()
    kept = "return np.asarray(image)"
    assert kept in text
    decoder.write_text(text.replace(kept, "return 255 - np.asarray(image)"))
    asked = check.sample(open_raw_dataset(COLUMNS, images[0]), images[1].folder)
    with pytest.raises(ValueError, match="Nothing is registered"):
        check.check(folder, "fp32", asked, scores.folder)
