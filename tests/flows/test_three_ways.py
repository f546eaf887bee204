"""Three ways in, one result: the command line, DVC, and a deployment on the project's server."""

import json
import re

import pytest

from tests import templates
from tests.flows.conftest import RETRAIN, draw_photos, make_clone

pytestmark = pytest.mark.slow


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

    better = ("-S", "workloads.vit.train.epochs=8", "-n", "longer")
    said = " ".join(clone.run("dvc", "exp", "run", *better).stdout.split())
    assert "would be the new champion, in place of version 1; dvc exp apply longer && dvc" in said
    assert "longer" in str(json.loads(clone.run("dvc", "exp", "show", "--json").stdout))
    assert clone.json("status", "vit")[0]["champion"]["version"] == 1


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


def test_a_workload_that_init_made_is_one_model_three_ways(clone, servers, tmp_path):
    params = clone.root / "params.yaml"
    before = params.read_text()
    clone.json("init", str(draw_photos(tmp_path / "photos")), "--pretrained", "none")
    own = params.read_text().removeprefix(before)
    params.write_text(before + re.sub(r"epochs: \d+", "epochs: 2", own))
    clone.run(*RETRAIN, "up", **servers)

    clone.run("dvc", "repro", "promote@photos")
    record = json.loads((clone.root / "build/photos/promote/record.json").read_text())
    trained = clone.train("--refresh", workload="photos")

    def watch(*parameters):
        deployment = ("prefect", "deployment", "run", "train/photos", *parameters, "--watch")
        shown = clone.run(*deployment, COLUMNS="500", **servers).stdout
        return shown, clone.json("status", "photos")[0]["last_run"]

    shown, last = watch("--param", "refresh=true")
    assert not any(step["cached"] for step in last["steps"])
    assert last["run"] != trained["run"]
    assert last["model"] == trained["model"] == record["facts"]
    assert f"Unchanged('{last['outcome']}'" in shown
    assert "Flow run finished successfully in 'Unchanged'." in shown
    assert shown.count("Finished in state") == 1  # of the run: a step has one line, ours

    shown, again = watch()
    assert "Flow run finished successfully in 'Skipped'." in shown
    assert f"Nothing changed since run {last['run'][:8]} of " in shown
    assert again == last
