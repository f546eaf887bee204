"""The names of flow runs, and the states in which they end."""

import pytest
from prefect import Flow

from retrain.runs import flow_runs


def ended(body, *arguments):
    """The state of a flow run."""
    return Flow(flow_runs.ending_in_a_state(body), "toy")(*arguments, return_state=True)


@pytest.mark.parametrize(("name", "shown"), [("Rejected", "Rejected"), (None, "Completed")])
def test_a_document_is_the_final_state(prefect_session, name, shown):
    document = {"outcome": "It is what it is.", "state": name}
    state = ended(lambda: document)
    assert (state.type.value, state.name) == ("COMPLETED", shown)
    assert (state.message, state.result()) == ("It is what it is.", document)


def test_an_error_is_one_line_of_the_state_and_raised(prefect_session):
    def body(text: str):
        raise ValueError(text)

    state = ended(body, "no such data:\n  a\n  b")
    assert (state.type.value, state.name) == ("FAILED", "Failed")
    assert state.message == "no such data: a b"
    with pytest.raises(ValueError, match="no such data"):
        state.result()


@pytest.mark.parametrize(
    ("parameters", "name"),
    [
        ({"workload": "vit", "as_name": None}, "toy-vit"),
        ({"workload": "vit", "as_name": "mine"}, "toy-mine"),
        ({"workload": "vit", "version": "champion"}, "toy-vit-champion"),
    ],
)
def test_a_flow_run_is_named_after_what_it_is_about(monkeypatch, parameters, name):
    monkeypatch.setattr("prefect.runtime.flow_run.parameters", parameters, raising=False)
    assert flow_runs.name_of("toy") == name
