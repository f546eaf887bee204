"""The plans of toy steps whose module is this one; the files of an output."""

import json
from dataclasses import replace
from importlib.metadata import version

import pytest

from retrain.outputs import Plan, difference, digest_of_output, parse_manifest, write_manifest
from retrain.step import Chosen, DataVersion, Step, plan
from retrain.workload import Data, Model, Train, Workload

DATA = DataVersion("abc", tracked=True).as_input
WORKLOAD = Workload(name="toy", data=Data(path="x"), model=Model(family="vit"))


def step(data, workspace):
    return {}


def choose(workload, data):
    if workload.train.batch_size < 64:
        return Chosen()
    return Chosen(("tasks.data.listing",), libraries=("pillow",))


STEP = Step("toy", step, reads=(), inputs=("data",), libraries=("numpy",), chosen=choose)
SMALL = WORKLOAD.model_copy(update={"train": WORKLOAD.train.model_copy(update={"batch_size": 8})})


def test_what_the_configuration_chooses_is_in_the_key_with_its_libraries_and_named():
    more, less = plan(STEP, WORKLOAD, [DATA]), plan(STEP, SMALL, [DATA])
    assert set(more.code) == {__name__, "tasks.data.listing"}
    assert set(more.libraries) == {"numpy", "pillow"}
    assert (set(less.code), set(less.libraries)) == ({__name__}, {"numpy"})
    assert more.key != less.key
    pillow = version("pillow")
    assert difference(less, more) == f"code of tasks.data.listing, pillow unset -> {pillow}"
    assert difference(more, less) == f"code of tasks.data.listing, pillow {pillow} -> unset"


def test_what_a_step_only_looks_up_is_not_in_the_key():
    other = DataVersion("def", tracked=True).as_input
    looking = replace(STEP, not_in_key=("data",))
    assert plan(STEP, WORKLOAD, [DATA]).key != plan(STEP, WORKLOAD, [other]).key
    assert plan(looking, WORKLOAD, [DATA]).key == plan(looking, WORKLOAD, [other]).key


def planned(config=(), data="a", code=(), libraries=()):
    return Plan("toy", dict(config), {"data": data}, dict(code), dict(libraries))


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        (planned(), planned(data="b"), "the data changed"),
        (planned(), replace(planned(), inputs={"first": "a"}), "first has a new output"),
        (planned({"lr": 0.1}), planned({"lr": 0.5}), "lr 0.1 -> 0.5"),
        (planned(), planned({"lr": 3}), "lr unset -> 3"),
        (planned(), planned({"lr": None}), "lr unset -> unset"),  # its key changed
        (planned({"lr": 3}), planned(), "lr 3 -> unset"),
        (planned(code={"a": "1"}), planned(code={"a": "2", "b": "1"}), "code of a and b"),
        (planned(libraries={"numpy": "8"}), planned(libraries={"numpy": "9"}), "numpy 8 -> 9"),
        (
            planned({"a": 1, "b": 2}, "a", {"m": "1", "n": "1"}, {"x": "1"}),
            planned({"a": 1, "b": 3}, "b", {"m": "2", "n": "1"}, {"y": "1"}),
            "b 2 -> 3, the data changed, code of m, x 1 -> unset, y unset -> 1",
        ),
    ],
)
def test_what_changes_the_key_is_said_in_words(before, now, said):
    assert difference(before, now) == said
    assert difference(now, now) == ""
    assert now.key != before.key
    assert (now.definition == before.definition) == (replace(now, inputs=before.inputs) == before)


@pytest.mark.parametrize(
    ("path", "is_one"),
    [("a..b/c", True), ("../outside", False), ("/tmp/outside", False), ("a/../../b", False)],
)
def test_a_manifest_that_leads_out_of_its_folder_is_none(tmp_path, path, is_one):
    manifest = write_manifest(tmp_path, planned(), {}, {"run": "1"})
    manifest["files"] = [{"path": path, "sha256": "ab", "bytes": 0}]
    manifest["digest"] = digest_of_output({}, manifest["files"])
    found = parse_manifest(json.dumps(manifest).encode(), planned().key)
    assert found == (manifest if is_one else None)


def test_a_default_that_is_written_down_is_the_same_training():
    reading = replace(STEP, reads=("train",))
    written = WORKLOAD.model_copy(update={"train": Train(epochs=WORKLOAD.train.epochs)})
    assert plan(reading, written, [DATA]).key == plan(reading, WORKLOAD, [DATA]).key
