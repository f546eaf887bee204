"""What decides a step's output, on toy steps whose module is this one."""

from dataclasses import replace
from importlib.metadata import version

from retrain.step import Chosen, DataVersion, Step, difference, plan
from retrain.workload import Data, Model, Workload

DATA = DataVersion("abc", tracked=True)
WORKLOAD = Workload(name="toy", data=Data(path="x"), model=Model(family="vit"))


def step(data, workspace):
    return {}


def choose(workload, data):
    if workload.train.batch_size < 64:
        return Chosen()
    return Chosen(("tasks.compute.prefetch",), libraries=("pillow",))


STEP = Step("toy", step, reads=(), inputs=("data",), libraries=("numpy",), chosen=choose)
SMALL = WORKLOAD.model_copy(update={"train": WORKLOAD.train.model_copy(update={"batch_size": 8})})


def test_what_the_configuration_chooses_is_in_the_key_with_its_libraries():
    more, less = plan(STEP, WORKLOAD, [DATA]), plan(STEP, SMALL, [DATA])
    assert set(more.code) == {__name__, "tasks.compute.prefetch"}
    assert set(more.libraries) == {"numpy", "pillow"}
    assert set(less.code) == {__name__}
    assert set(less.libraries) == {"numpy"}
    assert more.key != less.key


def test_a_choice_that_changed_is_named():
    more, less = plan(STEP, WORKLOAD, [DATA]), plan(STEP, SMALL, [DATA])
    pillow = version("pillow")
    assert difference(less, more) == f"code of tasks.compute.prefetch, pillow unset -> {pillow}"
    assert difference(more, less) == f"code of tasks.compute.prefetch, pillow {pillow} -> unset"


def test_what_a_step_only_looks_up_is_not_in_the_key():
    other = DataVersion("def", tracked=True)
    looking = replace(STEP, looked_up=("data",))
    assert plan(STEP, WORKLOAD, [DATA]).key != plan(STEP, WORKLOAD, [other]).key
    assert plan(looking, WORKLOAD, [DATA]).key == plan(looking, WORKLOAD, [other]).key


def test_what_a_step_only_reports_with_is_not_in_the_key():
    reporting = replace(STEP, reports_with=("tasks.compute.prefetch",))
    assert set(plan(reporting, WORKLOAD, [DATA]).code) == {__name__}
