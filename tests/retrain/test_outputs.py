"""The plans of toy steps whose module is this one; the files of an output."""

from dataclasses import replace
from importlib.metadata import version

from retrain.outputs import Plan, difference
from retrain.step import Chosen, DataVersion, Step, plan
from retrain.workload import Data, Model, Workload

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


def test_the_difference_between_two_plans_is_described_in_words():
    before = Plan("toy", {"train.lr": 0.001}, {"data": "a"}, {"tests.toy": "1"}, {"numpy": "8"})
    now = Plan("toy", {"train.lr": 0.0005}, {"data": "b"}, {"tests.toy": "2"}, {"numpy": "9"})
    assert difference(before, now) == (
        "train.lr 0.001 -> 0.0005, the data changed, code of tests.toy, numpy 8 -> 9"
    )


def test_what_a_step_only_looks_up_is_not_in_the_key():
    other = DataVersion("def", tracked=True).as_input
    looking = replace(STEP, not_in_key=("data",))
    assert plan(STEP, WORKLOAD, [DATA]).key != plan(STEP, WORKLOAD, [other]).key
    assert plan(looking, WORKLOAD, [DATA]).key == plan(looking, WORKLOAD, [other]).key


def planned(**config):
    return Plan("toy", config, {}, {}, {})


def test_a_parameter_that_is_new_changes_the_key_and_the_definition():
    before, new = planned(**{"train.lr": 0.5}), planned(**{"train.lr": 0.5, "train.new": 3})
    assert new.key != before.key
    assert new.definition != before.definition
    assert difference(before, new) == "train.new unset -> 3"
    assert difference(before, planned(**{"train.lr": 0.5, "train.new": None}))  # its key changed


def test_a_default_that_is_written_down_is_the_same_training():
    sections = {"data": {"path": "x"}, "model": {"family": "vit"}}
    reading = replace(STEP, reads=("train",))
    implicit = Workload(name="toy", **sections)
    explicit = Workload(name="toy", **sections, train={"epochs": implicit.train.epochs})
    keys = {plan(reading, workload, [DATA]).key for workload in (implicit, explicit)}
    assert len(keys) == 1
