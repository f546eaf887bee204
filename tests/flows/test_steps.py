"""The flows that call steps, and the lists of these steps."""

import pytest

from flows import suspects, train, tune, validate
from retrain.step import Task


@pytest.mark.parametrize("module", [suspects, train, tune, validate])
def test_a_flow_lists_the_steps_that_its_module_names(module):
    flow = getattr(module, module.__name__.rpartition(".")[2])
    named = {each.name for each in vars(module).values() if isinstance(each, Task)}
    assert {step.name for step in flow.steps} == named
