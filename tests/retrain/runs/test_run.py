"""The cache rules on toy steps, with a real Prefect server, store and log."""

import base64
import json
import logging
import multiprocessing
import re
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from time import monotonic, sleep

import pytest
from prefect import flow, runtime

from retrain.caching import is_transient
from retrain.errors import PrunedError, RejectedDataError
from retrain.project import Project
from retrain.runs.run import Run
from retrain.runs.state import RunState
from retrain.step import DataVersion, Step, TrialContext, plan
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

        def body():
            made = data
            for step in steps:
                made = step(made)

        with run.hold_artifacts():
            run.follow(body)
        return run

    def call(
        train=Train(epochs=10),  # noqa: B008
        data=DATA,
        refresh=False,
        steps=(FIRST, SECOND, ASKS),
    ):
        return toy(train, data, refresh, steps)

    return call


def outcomes(run):
    return [(outcome.step, outcome.cached, outcome.why) for outcome in run.state.outcomes]


def test_what_a_later_step_needs_is_started_only_when_an_earlier_one_has_to_run(run_toy):
    called = []
    steps = (
        replace(FIRST, ahead=lambda: called.append(1)),
        SECOND,
        replace(ASKS, ahead=lambda: called.append(2)),
    )
    run_toy(steps=steps)
    run_toy(steps=steps)
    assert called == [1]


def test_a_second_run_takes_everything_from_the_store_and_asks_again(run_toy):
    before = run_toy()
    assert outcomes(before)[:2] == [("first", False, "first run"), ("second", False, "first run")]
    after = run_toy()
    assert [cached for _, cached, _ in outcomes(after)] == [True, True, False]
    assert before.state.context.run[:8] in after.state.outcomes[0].why
    assert after.state.artifacts["asks"].facts == {"asked": True}


def test_a_wait_for_another_run_is_said_and_is_not_time_of_the_step(run_toy, tmp_path, caplog):
    store, slow = Store(tmp_path / "store"), replace(FIRST, hours=1 / 3600)
    now, held = plan(slow, WORKLOAD.model_copy(update={"train": Train(epochs=10)}), [DATA]), Event()

    def other_run():
        with store.lock("first", now.key, run="0123456789"):
            held.set()
            sleep(2)

    other = Thread(target=other_run)
    other.start()
    held.wait()
    with caplog.at_level(logging.INFO, logger="retrain"):
        run = run_toy(steps=[slow])
    other.join()
    assert outcomes(run) == [("first", False, "first run")]
    [said] = [line for line in caplog.messages if "waits" in line]
    assert re.fullmatch(
        r"first waits for run 01234567 since \S+, which has the same to make\.", said
    )


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
    Path(run.state.outcomes[0].path, "out.txt").write_text("damaged", encoding="utf-8")
    after = run_toy()
    assert outcomes(after)[0] == ("first", False, "out.txt has changed its size")
    assert Path(after.state.outcomes[0].path, "out.txt").read_text(encoding="utf-8") == "1"


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


def damage(path, keep_size=True):
    content = path.read_bytes()
    path.write_bytes(bytes([content[0] ^ 1]) + content[1 if keep_size else 0 :])


def test_a_flipped_byte_in_an_input_of_a_step_that_runs_is_found_and_repaired(run_toy, caplog):
    before = run_toy()
    damage(Path(before.state.outcomes[0].path, "out.txt"))
    before.state.store.discard("second", before.state.outcomes[1].key)
    with caplog.at_level(logging.INFO, logger="retrain"):
        after = run_toy()
    assert (
        f"first {before.state.outcomes[0].key[:8]} is damaged (out.txt has changed)" in caplog.text
    )
    assert outcomes(after)[:2] == [
        ("first", False, "out.txt has changed"),
        ("second", False, "its artifact is gone"),
    ]
    assert after.state.artifacts["first"] == replace(
        before.state.artifacts["first"], provenance=after.state.artifacts["first"].provenance
    )
    assert Path(after.state.outcomes[1].path, "out.txt").read_text(encoding="utf-8") == "11"


def test_damage_explains_a_step_that_fails(run_toy):
    def reads_number(above, workspace):
        if int((above.folder / "out.txt").read_text()) != 1:
            raise ValueError("this data is bad")
        return {}

    before = run_toy(steps=[FIRST])
    damage(Path(before.state.outcomes[0].path, "out.txt"))
    after = run_toy(steps=[FIRST, replace(SECOND, function=reads_number)])
    assert [cached for _, cached, _ in outcomes(after)] == [False, False]


def test_a_step_that_is_never_kept_does_not_begin_with_a_damaged_input(run_toy):
    asked = []

    def counts(above, workspace):
        asked.append((above.folder / "out.txt").read_text())
        return {}

    steps = [FIRST, SECOND, replace(ASKS, function=counts)]
    before = run_toy(steps=steps)
    damage(Path(before.state.outcomes[1].path, "out.txt"))
    after = run_toy(steps=steps)
    assert [cached for _, cached, _ in outcomes(after)] == [True, False, False]
    assert asked == ["11", "11"]


def test_edited_facts_are_noticed(run_toy):
    before = run_toy()
    manifest = Path(before.state.outcomes[0].path, "manifest.json")
    manifest.write_text(
        manifest.read_text(encoding="utf-8").replace('"facts": {}', '"facts": {"weights": "x"}'),
        encoding="utf-8",
    )
    after = run_toy()
    assert outcomes(after)[0] == ("first", False, "its manifest.json has changed")
    assert after.state.artifacts["first"].facts == {}


def test_what_a_run_has_made_itself_is_not_read_again(run_toy, monkeypatch):
    read = []
    monkeypatch.setattr("retrain.verify.sha256_of", lambda path, stop: read.append(path.name))
    run_toy()
    assert read == []


@pytest.mark.parametrize("persist", ["true", "false"])
def test_prefect_keeps_nothing_and_a_pickle_in_the_store_is_not_opened(
    run_toy, tmp_path, monkeypatch, persist
):
    monkeypatch.setenv("PREFECT_RESULTS_PERSIST_BY_DEFAULT", persist)
    monkeypatch.setenv("PREFECT_LOCAL_STORAGE_PATH", str(tmp_path / "prefect"))
    before = run_toy()
    bomb = b"cos\nmkdir\n(V" + str(tmp_path / "ran").encode() + b"\ntR."
    record = {
        "metadata": {"serializer": {"type": "pickle"}, "storage_key": "result.json"},
        "result": base64.b64encode(bomb).decode(),
    }
    for outcome in before.state.outcomes[:2]:
        folder = Path(outcome.path)
        assert {path.name for path in folder.iterdir()} == {"out.txt", "manifest.json"}
        (folder / "result.json").write_text(json.dumps(record))
    assert [cached for _, cached, _ in outcomes(run_toy())] == [True, True, False]
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "prefect").exists()


def test_prefect_shows_what_was_cached(run_toy):
    from prefect.client.orchestration import get_client

    run_toy()
    again = run_toy()
    with get_client(sync_client=True) as client:
        tasks = until(
            lambda: [
                task
                for task in client.read_task_runs(flow_run_filter=only(again.state.context.run))
                if task.state.is_final()
            ],
            3,
        )
    assert {task.name: task.state.name for task in tasks} == {
        "first": "Cached", "second": "Cached", "asks": "Completed"
    }  # fmt: skip


def only(run):
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId

    return FlowRunFilter(id=FlowRunFilterId(any_=[run]))


def until(call, count):
    deadline = monotonic() + 30
    while len(found := call()) < count:
        assert monotonic() < deadline
        sleep(0.1)
    return found


def test_refresh_starts_from_nothing(run_toy):
    found = []

    def resumes(definition, data, workspace):
        checkpoint = workspace.scratch / "checkpoint"
        found.append(checkpoint.exists())
        checkpoint.touch()
        if len(found) == 1:
            raise ValueError("stopped")
        return {}

    step = replace(FIRST, function=resumes)
    with pytest.raises(ValueError, match="stopped"):
        run_toy(steps=[step])
    run_toy(steps=[step], refresh=True)
    assert found == [False, False]


def test_another_try_in_a_refresh_goes_on_from_the_first(run_toy, monkeypatch):
    monkeypatch.setattr("retrain.caching.BACKOFF_SECONDS", 0.01)
    found = []

    def resumes(definition, data, workspace):
        checkpoint = workspace.scratch / "checkpoint"
        found.append(checkpoint.exists())
        checkpoint.touch()
        if len(found) == 1:
            raise ConnectionError("away")
        return {}

    run_toy(steps=[replace(FIRST, function=resumes)], refresh=True)
    assert found == [False, True]


def test_processes_that_a_step_forks_end_without_an_error(run_toy):
    from torch.utils.data import DataLoader

    exit_codes = []

    def loads(definition, data, workspace):
        fork = multiprocessing.get_context("fork").Process(target=int)
        fork.start()
        fork.join()
        exit_codes.append(fork.exitcode)
        for _ in range(2):  # the loader's processes end with an epoch
            assert len(list(DataLoader(range(4), num_workers=2))) == 4
        return {}

    run_toy(steps=[replace(FIRST, function=loads)])
    assert exit_codes == [0]


def test_a_trial_runs_beside_the_steps_and_a_pruned_one_is_no_failure(prefect_session, tmp_path):
    from prefect.client.orchestration import get_client

    def trains(definition, data, workspace):
        (workspace.scratch / "checkpoint").touch()
        assert workspace.trial
        if workspace.trial.bounds:
            raise PrunedError([{"epoch": 1}])
        (workspace.folder / "out.txt").write_text(str(definition.epochs))
        return {}

    step = replace(FIRST, function=trains)

    @flow
    def search():
        context = RunContext(str(runtime.flow_run.id), Project(tmp_path))
        run = Run(RunState("search", WORKLOAD, DATA, Store(tmp_path / "store"), context), True)
        with run.hold_artifacts():
            other = WORKLOAD.model_copy(update={"train": Train(epochs=7)})
            made, cached = run.run_trial(step, other, TrialContext("trial 1", "parent", {}), DATA)
            assert (made.folder / "out.txt").read_text() == "7"
            assert not cached
            with pytest.raises(PrunedError) as error:
                run.run_trial(step, WORKLOAD, TrialContext("trial 2", "parent", {1: 0.5}), DATA)
            assert error.value.history == [{"epoch": 1}]
            assert run.state.outcomes == []
            assert run(step, DATA, workload=other) == made
        return run

    run = search()
    assert [(each.step, each.cached) for each in run.state.outcomes] == [("first", True)]
    assert len(list(run.state.store.entries())) == 1
    assert len(list((tmp_path / "store").glob("scratch/*/*/checkpoint"))) == 1
    assert not run.state.last_plan("first").exists()  # a trial explains no later run

    def tasks():
        with get_client(sync_client=True) as client:
            found = client.read_task_runs(flow_run_filter=only(run.state.context.run))
        return [task for task in found if task.state.is_final()]

    states = {task.name: task.state.name for task in until(tasks, 3)}
    assert states == {
        "first, trial 1": "Completed", "first, trial 2": "Pruned", "first": "Cached",
    }  # fmt: skip


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
