"""The decorator of flows."""

import pytest
from prefect import Flow
from prefect.flows import load_flow_from_entrypoint

from retrain.flow import flow, may_change

SOURCE = '''
from retrain.flow import flow

@flow
def greet(workload: str, times: int = 1) -> str:
    """Greets a workload.

    More.
    """
    return workload * times
'''


@pytest.fixture
def prefect_flow(tmp_path):
    """What Prefect finds at the entrypoint of a deployment."""
    file = tmp_path / "greet.py"
    file.write_text(SOURCE)
    return load_flow_from_entrypoint(f"{file}:greet")


def test_prefect_finds_its_own_flow_in_the_file(prefect_flow):
    assert isinstance(prefect_flow, Flow)
    assert (prefect_flow.name, prefect_flow.description) == ("greet", "Greets a workload.")
    assert prefect_flow.parameters.required == ["workload"]


def test_a_flow_can_be_run_with_prefect_and_without(prefect_session):
    @flow
    def greet(workload: str, times: int = 1) -> str:
        """Greets a workload."""
        return workload * times

    assert greet("vit", times=2) == "vitvit"


@pytest.mark.parametrize(
    ("promote", "overrides", "revision", "as_name", "may"),
    [
        (None, None, None, None, None),
        (None, {"train.epochs": 500}, None, None, False),  # it only tries, on the server too
        (None, None, "HEAD~1", None, False),
        (None, {"train.epochs": 500}, None, "longer", None),  # it has a champion of its own
        (True, {"train.epochs": 500}, None, None, True),
        (False, None, None, None, False),
    ],
)
def test_a_run_that_only_tries_something_changes_nothing_that_is_served(
    promote, overrides, revision, as_name, may
):
    assert may_change(promote, overrides, revision, as_name) is may
