"""Three ways in, one result: the command line, DVC, and a deployment on the project's server."""

import json
import os
import re
import subprocess
import urllib.request
from pathlib import Path
from time import monotonic, sleep, time
from urllib.error import HTTPError

import pytest

from retrain.project import Project
from retrain.registry import tracking
from tests import templates
from tests.flows.conftest import RETRAIN, draw_photos, make_clone

pytestmark = pytest.mark.slow

# Out of reach, so that the champion stays.
REJECTED = ("--set", "gate.min={accuracy: 0.999}")


def test_dvc_takes_from_the_store_what_a_run_has_made_and_registers_nothing_twice(clone, first):
    folder = Path(first["steps"][3]["path"])
    before = {path.name for path in folder.parent.iterdir()}
    done = clone.run("dvc", "repro", "promote@vit")
    assert re.search(rf"accuracy +{first['metrics']['accuracy']:.4f} ", done.stdout)
    assert "This model is already the champion, vit version 1." in done.stdout
    build = clone.root / "build" / "vit"
    records = {
        step: json.loads((build / step / "record.json").read_text())
        for step in ("pull", "validate", "preprocess", "train", "evaluate", "gate", "promote")
    }
    for step in first["steps"][:5]:
        assert records[step["step"]]["digest"] == step["digest"], step["step"]
    assert records["train"]["facts"]["weights"] == first["model"]["digest"]
    assert records["gate"]["facts"]["verdict"] == "champion already"
    assert records["promote"]["facts"] == first["model"]

    assert re.search(rf"train +cached .* from run {first['run'][:8]}", done.stdout)
    assert {path.name for path in folder.parent.iterdir()} == before
    assert not (build / "train" / "manifest.json").exists()
    for name in ("model/model.safetensors", "report/mlflow.json"):  # not merely one like it
        assert (build / "train" / name).read_bytes() == (folder / name).read_bytes()
        assert (build / "train" / name).stat().st_ino != (folder / name).stat().st_ino

    shown = json.loads(clone.run("dvc", "metrics", "show", "--json").stdout)
    metrics = shown[""]["data"]["build/vit/evaluate/metrics.json"]["data"]
    assert metrics["accuracy"] == first["metrics"]["accuracy"]
    clone.run("dvc", "plots", "show", "-q")
    assert (clone.root / "dvc_plots" / "index.html").is_file()
    diff = json.loads(clone.run("dvc", "params", "diff", "--json", "--all").stdout)
    assert diff["params.yaml"]["workloads.vit.train.epochs"]["new"] == 2

    # Again, only what asks something outside runs.
    done = clone.run("dvc", "repro", "promote@vit")
    assert "Stage 'train@vit' didn't change, skipping" in done.stdout
    assert "Stage 'evaluate@vit' didn't change, skipping" in done.stdout
    assert "Running stage 'gate@vit'" in done.stdout


def test_dvc_alone_does_all_of_it_in_a_fresh_clone(first, prefect_api, tmp_path):
    clone = make_clone(tmp_path / "clone", prefect_api)
    said = clone.run("dvc", "repro").stdout
    assert "vit version 1 is the first champion." in said
    record = json.loads((clone.root / "build/vit/promote/record.json").read_text())
    assert record["facts"]["digest"] == first["model"]["digest"]
    assert "accuracy" in clone.run("dvc", "metrics", "show").stdout
    clone.run("dvc", "plots", "show", "-q")
    assert (clone.root / "dvc_plots" / "index.html").is_file()
    diff = json.loads(clone.run("dvc", "params", "diff", "--json").stdout)
    assert diff["params.yaml"]["workloads.vit.train.epochs"] == {"old": 40, "new": 2, "diff": -38}

    said = clone.run("dvc", "repro").stdout  # what asks something outside, and nothing else
    assert re.findall("Running stage '(.*)'", said) == ["pull@vit", "gate@vit", "promote@vit"]

    said = clone.run("dvc", "exp", "run", "-S", "workloads.vit.train.epochs=1", "-n", "one").stdout
    assert "Version 1 stays the champion" in " ".join(said.split())
    shown = json.loads(clone.run("dvc", "exp", "show", "--json").stdout)
    assert "one" in str(shown)


def test_an_experiment_of_dvc_promotes_nothing(clone, first):
    params, lock = clone.root / "params.yaml", clone.root / "dvc.lock"
    before = params.read_text(), lock.read_text()
    better = ("-S", "workloads.vit.train.epochs=8", "-n", "longer", "promote@vit")
    said = clone.run("dvc", "exp", "run", *better).stdout
    assert (
        "would be the new champion, in place of version 1; dvc exp apply longer && dvc repro"
        in said
    )
    assert clone.json("status", "vit")[0]["champion"]["version"] == 1
    last = clone.json("history", "vit")[-1]
    assert (last["action"], last["verdict"]) == ("compared", "better")
    params.write_text(before[0])
    lock.write_text(before[1])


def test_an_experiment_in_a_copy_of_the_clone_is_compared_as_one_in_it(clone, first):
    before = {path.name for path in clone.root.iterdir()}
    arguments = ("-S", "workloads.vit.train.epochs=7", "-n", "apart", "--temp", "promote@vit")
    said = " ".join(clone.run("dvc", "exp", "run", *arguments).stdout.split())
    assert "in place of version 1; dvc exp apply apart && dvc repro" in said
    last = clone.json("history", "vit")[-1]
    assert (last["action"], last["verdict"], last["previous"]) == ("compared", "better", 1)
    assert {path.name for path in clone.root.iterdir()} == before
    stored = {path.name for path in (clone.root / ".retrain/store/train").iterdir()}
    assert len(stored) > 1


def test_dvc_and_a_run_at_the_same_time_do_each_step_once(clone, first, tmp_path):
    params = clone.root / "params.yaml"
    before = params.read_text()
    clone.edit("params.yaml", "lr: 0.003", "lr: 0.0033")
    store = tmp_path / "store"
    shared, output = {"RETRAIN_STORE": str(store)}, tmp_path / "output"
    with output.open("wb") as stream:
        repro = subprocess.Popen(
            ["dvc", "repro", "--force", "evaluate@vit"],
            cwd=clone.root, env=clone.environment | shared, stdout=stream, stderr=stream,
        )  # fmt: skip
    document = clone.json("train", "vit", *REJECTED, **shared)
    assert repro.wait() == 0, output.read_text()
    steps = {step["step"]: step for step in document["steps"]}
    for name in ("pull", "validate", "preprocess", "train", "evaluate"):
        step = steps[name]
        record = clone.root / "build" / "vit" / step["step"] / "record.json"
        assert json.loads(record.read_text())["digest"] == step["digest"], name
        made = {path.name for path in (store / name).iterdir() if path.is_dir()}
        assert made == {step["key"]}
    assert not list((store / "scratch").glob("*/*"))
    client = tracking.client(Project(clone.root))
    [experiment] = (each for each in client.search_experiments() if each.name == "vit")
    mine = "tags.`retrain.key` = '" + steps["train"]["key"] + "'"
    trainings = client.search_runs([experiment.experiment_id], mine)
    assert len(trainings) == 1
    params.write_text(before)


@pytest.fixture(scope="module")
def servers(clone):
    """Those of `make up`; the variables that name them."""
    templates.place_prefect_database(clone.root)
    try:
        shown = clone.run(*RETRAIN, "up", PREFECT_API_URL="").stdout
        api = (clone.root / ".env").read_text().partition("=")[2].split()[0]
        assert re.search(rf"prefect +started +{api.removesuffix('/api')}\n", shown)
        assert re.search(r"mlflow +started +http://127\.0\.0\.1:\d+\n", shown)
        yield {"PREFECT_API_URL": api}
    finally:
        clone.run(*RETRAIN, "down")


def ask(url, body=None):
    content = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, content, {"Content-Type": "application/json"})
    deadline = monotonic() + 10
    while True:
        try:
            with urllib.request.urlopen(request) as answer:
                return json.load(answer)
        except HTTPError as error:  # 503: its database is locked; Prefect's client asks again, too
            if error.code != 503 or monotonic() > deadline:
                raise
        sleep(1)


def last_flow_run(api):
    ended = {"state": {"type": {"any_": ["COMPLETED", "FAILED", "CRASHED"]}}}
    query = {"sort": "START_TIME_DESC", "limit": 1, "flow_runs": ended}
    return ask(f"{api}/flow_runs/filter", query)[0]


def last_run(clone):
    return clone.json("status", "vit")[0]["last_run"]


def test_a_deployment_trains_the_same_model_and_skips_what_has_not_changed(clone, first, servers):
    deployment = ("prefect", "deployment", "run", "train/vit")
    watched = clone.run(*deployment, "--param", "refresh=true", "--watch", COLUMNS="500", **servers)
    last = last_run(clone)
    assert last["run"] != first["run"]
    assert not any(step["cached"] for step in last["steps"])
    assert last["model"] == first["model"]
    assert last["decision"]["verdict"] == "champion already"
    assert f"Unchanged('{last['outcome']}'" in watched.stdout
    assert "Flow run finished successfully in 'Unchanged'." in watched.stdout
    assert watched.stdout.count("Finished in state") == 1  # of the run: a step has one line, ours

    watched = clone.run(*deployment, "--watch", COLUMNS="500", **servers)
    state = last_flow_run(servers["PREFECT_API_URL"])["state"]
    assert (state["type"], state["name"]) == ("COMPLETED", "Skipped")
    assert state["message"] in watched.stdout
    assert state["message"].startswith(f"Nothing changed since run {last['run'][:8]} of ")
    assert last_run(clone) == last


def test_a_wrong_parameter_of_a_deployment_is_one_sentence(clone, servers):
    command = ("prefect", "deployment", "run", "train/vit", "--watch", "--param")
    wrong = 'overrides={"train.epoch": 5}'
    watched = clone.run(*command, wrong, code=1, COLUMNS="500", **servers).stdout
    sentence = "workload vit: train.epoch: no such key. Did you mean 'train.epochs'?"
    assert last_flow_run(servers["PREFECT_API_URL"])["state"]["message"] == sentence
    assert sentence in watched
    assert "Traceback" not in watched


def test_a_workload_that_init_made_is_one_model_three_ways(clone, servers, tmp_path):
    params, deployments = clone.root / "params.yaml", clone.root / "prefect.yaml"
    before = params.read_text(), deployments.read_text()
    clone.json("init", str(draw_photos(tmp_path / "photos")), "--pretrained", "none")
    assert params.read_text().startswith(before[0])
    own = re.sub(r"epochs: \d+", "epochs: 2", params.read_text().removeprefix(before[0]))
    params.write_text(before[0] + own)
    clone.run(*RETRAIN, "up", **servers)

    clone.run("dvc", "repro", "promote@photos")
    record = json.loads((clone.root / "build/photos/promote/record.json").read_text())
    trained = clone.train("--refresh", workload="photos")
    deployment = ("prefect", "deployment", "run", "train/photos")
    clone.run(*deployment, "--param", "refresh=true", "--watch", **servers)
    [status] = clone.json("status", "photos")
    assert not any(step["cached"] for step in status["last_run"]["steps"])
    assert status["last_run"]["run"] != trained["run"]
    assert status["last_run"]["model"] == trained["model"] == record["facts"]
    params.write_text(before[0])
    deployments.write_text(before[1])


def test_the_deployment_gc_removes_what_nothing_needs(clone, first, servers):
    old = clone.root / "reports" / "vit" / "old.html"
    old.write_text("12345")
    os.utime(old, (time() - 91 * 86400,) * 2)
    gc = ("prefect", "deployment", "run", "gc/weekly", "--watch")
    assert "Removed: 1, 5 bytes." in clone.run(*gc, COLUMNS="500", **servers).stdout
    assert not old.exists()


# Any model passes the gate, and waits then.
MANUAL = "metric: accuracy\n      margin: 0.9\n      approval: manual"


def test_a_deployment_whose_model_waits_ends_and_says_what_to_do(clone, servers):
    params = clone.root / "params.yaml"
    before = params.read_text()
    clone.edit("params.yaml", "metric: accuracy", MANUAL)
    clone.edit("params.yaml", "epochs: 2", "epochs: 8")
    deployment = ("prefect", "deployment", "run", "train/vit", "--watch")
    watched = clone.run(*deployment, COLUMNS="500", **servers)
    state = last_flow_run(servers["PREFECT_API_URL"])["state"]
    assert (state["type"], state["name"]) == ("COMPLETED", "Waiting")
    [told] = clone.json("status", "vit")
    assert told["champion"]["version"] == told["waiting"]["previous"] == 1
    assert told["waiting"]["run"] == told["last_run"]["run"]
    version = told["waiting"]["version"]
    assert f"version {version} passes the gate and waits for approval: " in state["message"]
    assert "retrain approve vit --reason WHY" in watched.stdout

    clone.retrain("approve", "vit", "--reason", "looks right")
    history = clone.json("history", "vit")
    assert [(entry["action"], entry["version"], entry["previous"]) for entry in history[-2:]] == [
        ("waiting", version, 1),
        ("promoted", version, 1),
    ]
    params.write_text(before)


def test_what_waits_because_of_dvc_and_was_approved_is_compared_with_by_the_next_run(clone):
    params = clone.root / "params.yaml"
    before = params.read_text()
    clone.edit("params.yaml", "metric: accuracy", MANUAL)
    clone.edit("params.yaml", "epochs: 2", "epochs: 6")
    clone.run("dvc", "repro", "promote@vit")
    [told] = clone.json("status", "vit")
    version = told["waiting"]["version"]
    clone.retrain("approve", "vit", "--reason", "looks right")
    clone.edit("params.yaml", "epochs: 6", "epochs: 7")
    document = clone.train()
    assert (document["state"], document["champion"]["version"]) == ("Waiting", version)
    params.write_text(before)
