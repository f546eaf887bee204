"""Manual approval: what passes waits, what a person says is carried out, and who may not."""

import json
import os

import pytest

from flows.reports import approvals as flow
from retrain import tracking
from retrain.cli.main import main
from retrain.errors import ChampionChangedError
from retrain.project import Project
from retrain.registry import audit, decisions, packages, versions
from retrain.runs import lost
from retrain.step import DataVersion
from tasks.promote.approval import review
from tasks.promote.rollback import roll_back
from tasks.promote.step import Intent
from tests.tasks.promote.conftest import MANUAL, history, train

REASON = "the night images look right"
AGAIN = Intent(promote=True, again=True)


pytestmark = pytest.mark.usefixtures("not_loaded")


def champion(project: Project) -> int | None:
    found = versions.champion(project, "toy")
    return found and found.version


def waiting(project: Project) -> int | None:
    entry = decisions.read(project, "toy").waiting
    return entry and entry.version


def actions(project: Project) -> list[tuple[str, int]]:
    return [(entry.action, entry.version) for entry in history(project)]


def test_what_passes_waits_once_and_nothing_is_served(project, run, look, pair):
    facts = run(pair[1], "better", 1, rules=MANUAL, run_id="next week")
    assert (facts["version"], facts["aliases"], facts["waiting"]) == (2, [], True)
    assert look(pair[1], "better", 1, rules=MANUAL) == facts
    assert actions(project) == [("promoted", 1), ("waiting", 2)]
    assert (champion(project), waiting(project)) == (1, 2)
    client = tracking.client(project)
    assert client.get_model_version("toy", "2").description.startswith("**Waiting**")
    assert look(pair[1], "better", 1) is None  # with automatic approval it is promoted
    assert "waiting" not in run(pair[1], "better", 1)
    assert (champion(project), waiting(project)) == (2, None)


def test_what_is_approved_is_champion_with_the_reason_and_the_document(project, run, look, pair):
    done = review(project, "toy", "approve", f" {REASON} ", who="ada")
    assert (done.action, done.version, done.previous) == ("promoted", 2, 1)
    _, waited, promoted = history(project)
    assert (promoted.action, promoted.reason, promoted.who) == ("promoted", REASON, "ada")
    assert (promoted.verdict, promoted.document, promoted.reviews) == (
        *("better", waited.document, waited.number),
    )
    assert (champion(project), waiting(project)) == (2, None)
    assert versions.reference(project, "toy").version == 2
    assert done.outcome == (
        f"toy version 2 is approved and the champion now, over version 1 (ada: {REASON})"
    )
    assert audit.faults(project) == []
    after = run(pair[1], "champion already", 2, rules=MANUAL)
    assert after["aliases"] == ["champion", "reference"]
    assert look(pair[1], "champion already", 2, rules=MANUAL) == after
    assert roll_back(project, "toy", REASON).version == 1


def test_what_is_rejected_waits_again_only_on_demand(project, run, look, pair):
    done = review(project, "toy", "reject", REASON)
    assert done.outcome.endswith(f": {REASON}); version 1 stays champion")
    assert (champion(project), waiting(project)) == (1, None)
    assert look(pair[1], "better", 1, rules=MANUAL) is None
    facts = run(pair[1], "better", 1, rules=MANUAL)
    assert facts["withheld"] == f"version 2 was rejected on {done.time[:10]}: {REASON}"
    assert "waiting" not in facts
    assert run(pair[1], "better", 1) == look(pair[1], "better", 1, rules=MANUAL) == facts
    assert champion(project) == 1  # nor is it promoted when approval is automatic by now

    assert run(pair[1], "better", 1, rules=MANUAL, intent=AGAIN)["waiting"]
    assert run(pair[1], "better", 1, rules=MANUAL)["waiting"]  # the demand stands
    review(project, "toy", "reject", REASON)
    other = DataVersion("data-2", tracked=True)
    assert "withheld" in run(pair[1], "better", 1, rules=MANUAL, data=other)
    assert audit.faults(project) == []


def test_a_comparison_with_a_champion_of_the_past_is_not_approved(project, run, pair):
    third = train(project, 2)
    run(third, "better", 1)
    with pytest.raises(
        ChampionChangedError, match="compared with version 1, but version 3 is champion by now"
    ):
        review(project, "toy", "approve", REASON)
    assert (champion(project), waiting(project)) == (3, 2)
    run(pair[1], "better", 3, rules=MANUAL)
    assert review(project, "toy", "approve", REASON).version == champion(project) == 2


@pytest.mark.parametrize(
    ("reason", "message"), [("  ", "needs a reason"), ("x" * 501, "may have 500 characters")]
)
def test_a_decision_needs_a_reason_of_some_length(project, pair, reason, message):
    with pytest.raises(ValueError, match=message):
        review(project, "toy", "approve", reason)
    assert (champion(project), waiting(project)) == (1, 2)


def test_what_was_changed_since_is_not_approved(project, pair):
    version = versions.get(project, "toy", 2)
    file = packages.fetch(project, version, project.root) / "requirements.txt"
    file.write_text(f"{file.read_text()}\n")
    with pytest.raises(ValueError, match=r"requirements\.txt in .* has changed since"):
        review(project, "toy", "approve", REASON)
    assert (champion(project), waiting(project)) == (1, 2)
    assert versions.get(project, "toy", 2).broken
    assert review(project, "toy", "reject", REASON).version == 2


@pytest.mark.parametrize("how", ["changed", "gone"])
def test_without_the_document_of_the_comparison_it_is_only_rejected(project, run, pair, how):
    digest = history(project)[-1].document
    [file] = project.root.glob(f"mlruns/**/decisions/{digest}.json")
    file.unlink() if how == "gone" else file.write_text('{"passed": true}')
    with pytest.raises(ValueError, match="is gone or was changed"):
        review(project, "toy", "approve", REASON)
    review(project, "toy", "reject", REASON)
    assert run(pair[1], "better", 1, rules=MANUAL, intent=AGAIN)["waiting"]
    assert review(project, "toy", "approve", REASON).version == champion(project) == 2
    assert audit.faults(project) == []


def test_a_version_that_was_deleted_is_registered_again_by_a_run(project, run, pair):
    tracking.client(project).delete_model_version("toy", "2")
    with pytest.raises(ValueError, match="toy version 2 waits, but was deleted"):
        review(project, "toy", "reject", REASON)
    assert run(pair[1], "better", 1, rules=MANUAL)["version"] == 3
    assert review(project, "toy", "approve", REASON).version == champion(project) == 3


@pytest.fixture
def clone(project, pair, monkeypatch):
    """The project as a place where commands run, without a Prefect server."""
    text = "workloads: {toy: {data: {path: data/toy}, model: {family: vit}}}\n"
    (project.root / "params.yaml").write_text(text)
    monkeypatch.chdir(project.root)
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    return project


def test_the_commands_show_what_waits_and_decide(clone, run, capsys):
    assert main(["status"]) == 0
    shown = capsys.readouterr().out
    assert "toy version 2 waits for approval since " in shown
    assert "retrain approve toy --reason WHY, or retrain reject toy --reason WHY." in shown
    assert main(["status", "--json"]) == 0
    [told] = json.loads(capsys.readouterr().out)
    assert (told["champion"]["version"], told["waiting"]["version"]) == (1, 2)

    assert main(["approve", "toy", "--reason", REASON, "--version", "3"]) == 2
    assert main(["approve", "toy"]) == 2
    assert main(["approve", "tyo", "--reason", REASON]) == 2
    assert "Did you mean 'toy'?" in capsys.readouterr().err
    assert main(["reject", "toy", "--reason", "too few night images", "--json"]) == 0
    done = json.loads(capsys.readouterr().out)
    assert (done["action"], done["version"], done["previous"]) == ("rejected", 2, 1)
    assert main(["status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["waiting"] is None
    assert main(["approve", "toy", "--reason", REASON]) == 1
    assert "No version of toy waits for approval." in capsys.readouterr().err

    run(train(clone, 2), "better", 1, rules=MANUAL)
    assert main(["approve", "toy", "--reason", REASON, "--version", "3"]) == 0
    assert f": {REASON})." in capsys.readouterr().out
    assert main(["history", "toy"]) == 0
    shown = capsys.readouterr().out
    assert "1, not yet 3" in shown
    assert "1 -> 3" in shown


class Deployment:
    """A deployment of a flow that only promotes, as `train` does; its runs are in this process."""

    def __init__(self, project, promote):
        from prefect import Flow, runtime
        from prefect.client.orchestration import get_client

        def train_toy(workload: str):
            run_id = str(runtime.flow_run.id)
            if ended := flow.resume(project, workload, run_id):
                return ended
            promote(run_id)
            flow.wait(project, {"workload": workload, "run": run_id, "outcome": "it waits"})
            return "done"

        self.flow = Flow(train_toy, "train-toy")
        with get_client(sync_client=True) as client:
            made = client.create_flow(self.flow)
            self.id = client.create_deployment(made, name="toy")
            self.run = client.create_flow_run_from_deployment(
                self.id, parameters={"workload": "toy"}
            )

    def begin(self) -> str:
        """Runs the flow run, as a worker does; gives the name of its state."""
        from prefect.exceptions import Pause
        from prefect.flow_engine import run_flow

        os.environ["PREFECT__FLOW_RUN_ID"] = str(self.run.id)
        try:
            run_flow(self.flow, self._read(), {"workload": "toy"}, return_type="state")
        except Pause:
            pass
        finally:
            del os.environ["PREFECT__FLOW_RUN_ID"]
        return self.state.name

    @property
    def state(self):
        return self._read().state

    def question(self) -> str:
        """What the form says."""
        from prefect.client.orchestration import get_client

        key = self.state.state_details.run_input_keyset["description"]
        with get_client(sync_client=True) as client:
            return json.loads(client.read_flow_run_input(self.run.id, key))

    def resume(self, **form):
        from prefect.flow_runs import resume_flow_run

        resume_flow_run(self.run.id, run_input=form)

    def _read(self):
        from prefect.client.orchestration import get_client

        with get_client(sync_client=True) as client:
            return client.read_flow_run(self.run.id)


@pytest.fixture
def deployment(project, run, one, prefect_session):
    """A deployment that lets version 2 wait; with what the runs have promoted."""
    second = train(project, 1)

    def promote(run_id):
        run(second, "better", champion(project), rules=MANUAL, run_id=run_id)

    return Deployment(project, promote)


def test_a_run_of_a_deployment_is_suspended_until_a_person_fills_in_the_form(
    project, deployment, webhook
):
    assert deployment.begin() == "Suspended"
    assert deployment.state.state_details.pause_timeout is None
    [told] = webhook
    assert told["text"].startswith("toy: it waits (http")
    assert deployment.question().startswith("# Is toy version 2 to be the champion?\n\n**Waiting**")
    lost.end_lost_runs(project)
    for form in ({}, {"decision": "yes", "reason": "x"}, {"decision": "approve", "reason": ""}):
        with pytest.raises(RuntimeError, match="Cannot resume"):
            deployment.resume(**form)
    assert deployment.state.name == "Suspended"
    deployment.resume(decision="approve", reason=REASON, name="ada")
    assert deployment.begin() == "Approved"
    assert len(webhook) == 1
    assert champion(project) == 2
    entry = history(project)[-1]
    assert (entry.reason, entry.who) == (REASON, "ada (train-toy/toy)")
    assert deployment.state.message == (
        "toy version 2 is approved and the champion now, over version 1 "
        f"(ada (train-toy/toy): {REASON})."
    )


def test_a_run_whose_champion_has_changed_compares_again_and_asks_again(project, run, deployment):
    assert deployment.begin() == "Suspended"
    run(train(project, 2), "better", 1)
    deployment.resume(decision="approve", reason=REASON)
    assert deployment.begin() == "Suspended"
    assert (champion(project), waiting(project)) == (3, 2)
    deployment.resume(decision="reject", reason="too late")
    assert deployment.begin() == "Rejected"
    assert champion(project) == 3
    last = history(project)[-1]
    assert (last.action, last.reason, last.who) == ("rejected", "too late", "train-toy/toy")


def test_a_command_ends_the_run_that_is_suspended(project, clone_of_deployment, capsys):
    deployment = clone_of_deployment
    assert deployment.begin() == "Suspended"
    assert main(["approve", "toy", "--reason", REASON]) == 0
    assert "could not be ended" not in capsys.readouterr().err
    assert (deployment.state.type.value, deployment.state.name) == ("COMPLETED", "Approved")
    assert deployment.state.message.endswith(f": {REASON}).")
    assert champion(project) == 2


def test_a_command_does_without_a_server_that_is_gone(
    project, clone_of_deployment, capsys, monkeypatch
):
    deployment = clone_of_deployment
    assert deployment.begin() == "Suspended"
    with monkeypatch.context() as gone:
        gone.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
        assert main(["reject", "toy", "--reason", REASON]) == 0
    assert f"The flow run {deployment.run.id} could not be ended" in capsys.readouterr().err
    deployment.resume(decision="approve", reason="no idea that it was rejected")
    assert deployment.begin() == "Rejected"
    assert champion(project) == 1


@pytest.fixture
def clone_of_deployment(project, deployment, monkeypatch):
    """The deployment, and its project as a place where commands run, with the same server."""
    from prefect.settings import PREFECT_API_URL

    text = "workloads: {toy: {data: {path: data/toy}, model: {family: vit}}}\n"
    (project.root / "params.yaml").write_text(text)
    monkeypatch.chdir(project.root)
    monkeypatch.setenv("PREFECT_API_URL", str(PREFECT_API_URL.value()))
    return deployment


def test_a_run_that_waits_for_nothing_any_more_is_ended_by_the_next(project, run, deployment):
    assert deployment.begin() == "Suspended"
    run(train(project, 2), "better", 1, rules=MANUAL)
    flow.wait(project, {"workload": "toy", "run": "another", "outcome": ""})
    assert (deployment.state.type.value, deployment.state.name) == ("COMPLETED", "Superseded")
    assert deployment.state.message == (
        "Another comparison waits for approval by now: toy version 3."
    )
