"""The cache rules on toy steps, with a real Prefect server, store and log."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest
from prefect import flow, runtime

from retrain.caching import is_transient
from retrain.errors import RejectedDataError
from retrain.project import Project
from retrain.runs.run import Run
from retrain.runs.state import RunState
from retrain.step import DataVersion, Step
from retrain.store import RunContext, Store
from retrain.workload import Data, Model, Train, Workload

DATA = DataVersion("abc", tracked=True)
WORKLOAD = Workload(name="toy", data=Data(path="x"), model=Model(family="vit"))


def first(definition, data, workspace):
    (workspace.folder / "out.txt").write_text(str(definition.epochs // 10))
    return {}


def second(above, workspace):
    (workspace.folder / "out.txt").write_text((above.folder / "out.txt").read_text() * 2)
    return {}


def asks(above, workspace):
    return {"asked": True}


FIRST = Step("first", first, reads=("train.epochs",), inputs=("data",))
SECOND = Step("second", second, reads=(), inputs=("first",))
ASKS = Step("asks", asks, reads=(), inputs=("second",), cached=False)


@pytest.fixture
def run_toy(prefect_session, tmp_path):
    """Runs the three steps as a flow; returns the run."""

    @flow
    def toy(train, data, refresh, steps):
        context = RunContext(str(runtime.flow_run.id), Project(tmp_path))
        workload = WORKLOAD.model_copy(update={"train": train})
        state = RunState("toy", workload, data, Store(tmp_path / "store"), context)
        run = Run(state, refresh)
        made = data
        for step in steps:
            made = run(step, made)
        return run

    def call(train=Train(epochs=10), data=DATA, refresh=False, steps=(FIRST, SECOND, ASKS)):  # noqa: B008
        return toy(train, data, refresh, steps)

    return call


def outcomes(run):
    return [(outcome.step, outcome.cached, outcome.why) for outcome in run.state.outcomes]


def test_a_second_run_takes_everything_from_the_store_and_asks_again(run_toy):
    before = run_toy()
    assert outcomes(before)[:2] == [("first", False, "first run"), ("second", False, "first run")]
    after = run_toy()
    assert [cached for _, cached, _ in outcomes(after)] == [True, True, False]
    assert before.context.run[:8] in after.state.outcomes[0].why
    assert after.state.artifacts["asks"].facts == {"asked": True}


def test_a_changed_parameter_runs_the_step_and_is_named(run_toy):
    run_toy()
    after = run_toy(Train(epochs=20))
    assert outcomes(after)[:2] == [
        ("first", False, "train.epochs 10 -> 20"),
        ("second", False, "first has a new output"),
    ]


def test_an_unchanged_output_stops_the_chain(run_toy):
    run_toy()
    after = run_toy(Train(epochs=11))  # read, but the same output
    assert [cached for _, cached, _ in outcomes(after)] == [False, True, False]


def test_a_parameter_that_is_not_read_changes_nothing(run_toy):
    run_toy()
    assert run_toy(Train(epochs=10, lr=9.0)).state.outcomes[0].cached


def test_a_deleted_artifact_is_made_again_and_nothing_after_it_runs(run_toy):
    run = run_toy()
    run.state.store.discard("first", run.state.outcomes[0].key)
    after = run_toy()
    assert outcomes(after)[0] == ("first", False, "its artifact is gone")
    assert after.state.outcomes[1].cached


def test_a_damaged_artifact_is_made_again(run_toy):
    run = run_toy()
    Path(run.state.outcomes[0].path, "out.txt").write_text("damaged")
    after = run_toy()
    assert outcomes(after)[0] == ("first", False, "out.txt has changed its size")
    assert Path(after.state.outcomes[0].path, "out.txt").read_text() == "1"


def test_new_data_runs_what_reads_it(run_toy):
    run_toy()
    after = run_toy(data=replace(DATA, digest="def"))
    assert outcomes(after)[0] == ("first", False, "the data changed")
    assert after.state.outcomes[1].cached  # the output is the same


def test_refresh_takes_nothing_from_the_store(run_toy):
    run_toy()
    after = run_toy(refresh=True)
    assert [cached for _, cached, _ in outcomes(after)] == [False, False, False]
    assert run_toy().state.outcomes[0].cached


def test_prefect_holds_its_record_in_the_artifact(run_toy):
    run = run_toy()
    assert (Path(run.state.outcomes[0].path) / "result.json").is_file()


def test_what_may_pass_is_tried_again_and_a_verdict_is_not(run_toy, monkeypatch):
    monkeypatch.setattr("retrain.caching.BACKOFF_SECONDS", 0.01)
    tries = []

    def fails(error):
        def step(definition, data, workspace):
            tries.append(1)
            if len(tries) < 3:
                raise error
            return {}

        return replace(FIRST, function=step)

    run_toy(steps=[fails(ConnectionError("away"))])
    assert len(tries) == 3
    tries.clear()
    with pytest.raises(RejectedDataError):
        run_toy(Train(epochs=30), steps=[fails(RejectedDataError("bad"))])
    assert len(tries) == 1


def test_the_cause_of_an_error_decides_whether_it_may_pass():
    def caused(outer, inner):
        try:
            try:
                raise inner
            except Exception as error:
                raise outer from error
        except Exception as error:
            return error

    assert is_transient(caused(RuntimeError("x"), TimeoutError("y")))
    assert not is_transient(caused(OSError("x"), ValueError("y")))
    assert not is_transient(RuntimeError("shapes"))


def test_each_step_is_a_line_of_the_log(run_toy, caplog):
    with caplog.at_level(logging.INFO, logger="retrain"):
        run_toy()
    lines = [record.getMessage() for record in caplog.records if record.name == "retrain"]
    assert [line.split()[:2] for line in lines] == [
        ["first", "ran"], ["second", "ran"], ["asks", "ran"]
    ]  # fmt: skip
