"""Manual approval: what passes waits, what a person says is carried out, and who may not."""

import json
import os
from contextlib import suppress

import pytest

from flows.reports import approvals as flow
from retrain import tracking
from retrain.cli.main import main
from retrain.errors import ChampionChangedError
from retrain.project import Project
from retrain.registry import decisions, packages, versions
from retrain.runs import lost
from retrain.step import DataVersion
from tasks.promote.personal import review, roll_back
from tasks.promote.step import Intent
from tests.tasks.promote.conftest import MANUAL, champion, history, train

REASON = "the night images look right"
AGAIN = Intent(promote=True, again=True)


pytestmark = pytest.mark.usefixtures("not_loaded")


def standing(project: Project) -> tuple[int | None, int | None]:
    """The champion, and the version that waits."""
    entry = decisions.read(project, "toy").waiting
    return champion(project), entry and entry.version


def test_what_passes_waits_once_and_nothing_is_served(project, run, look, pair):
    facts = run(pair[1], "better", 1, rules=MANUAL, run_id="next week")
    assert (facts["version"], facts["aliases"], facts["waiting"]) == (2, [], True)
    assert look(pair[1], "better", 1, rules=MANUAL) == facts
    assert [entry.action for entry in history(project)] == ["promoted", "waiting"]
    assert standing(project) == (1, 2)
    assert look(pair[1], "better", 1) is None  # with automatic approval it is promoted
    assert "waiting" not in run(pair[1], "better", 1)
    assert standing(project) == (2, None)


def test_what_is_approved_is_champion_with_the_reason_and_the_document(project, run, look, pair):
    done = review(project, "toy", "approve", f" {REASON} ", who="ada")
    _, waited, promoted = history(project)
    assert (promoted.action, promoted.reason, promoted.who) == ("promoted", REASON, "ada")
    assert (promoted.document, promoted.reviews) == (waited.document, waited.number)
    assert standing(project) == (2, None)
    assert versions.reference(project, "toy").version == 2
    assert done.outcome == (
        f"toy version 2 is approved and is the new champion, in place of version 1 (ada: {REASON})"
    )
    after = run(pair[1], "champion already", 2, rules=MANUAL)
    assert look(pair[1], "champion already", 2, rules=MANUAL) == after
    assert roll_back(project, "toy", REASON).version == 1


def test_what_is_rejected_waits_again_only_on_demand(project, run, look, pair):
    done = review(project, "toy", "reject", REASON)
    assert done.outcome.endswith(f": {REASON}); version 1 stays the champion")
    assert standing(project) == (1, None)
    facts = run(pair[1], "better", 1, rules=MANUAL)
    assert facts["withheld"] == f"version 2 was rejected on {done.time[:10]}: {REASON}"
    # Nor is it promoted when approval is automatic by now.
    assert run(pair[1], "better", 1) == look(pair[1], "better", 1, rules=MANUAL) == facts
    assert run(pair[1], "better", 1, rules=MANUAL, intent=AGAIN)["waiting"]
    assert run(pair[1], "better", 1, rules=MANUAL)["waiting"]  # the demand stands
    review(project, "toy", "reject", REASON)
    other = DataVersion("data-2", tracked=True)
    assert "withheld" in run(pair[1], "better", 1, rules=MANUAL, data=other)


def test_a_comparison_with_a_champion_of_the_past_is_not_approved(project, run, pair):
    run(train(project, 2), "better", 1)
    with pytest.raises(ChampionChangedError, match="but version 3 is champion by now"):
        review(project, "toy", "approve", REASON)
    assert standing(project) == (3, 2)
    run(pair[1], "better", 3, rules=MANUAL)
    assert review(project, "toy", "approve", REASON).version == champion(project) == 2


@pytest.mark.parametrize(
    ("reason", "message"), [("  ", "needs a reason"), ("x" * 501, "may have 500 characters")]
)
def test_a_decision_needs_a_reason_of_some_length(project, pair, reason, message):
    with pytest.raises(ValueError, match=message):
        review(project, "toy", "approve", reason)
    assert standing(project) == (1, 2)


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("packages/*/requirements.txt", r"requirements\.txt in .* has changed since"),
        ("decisions/{}.json", "the document of entry 2, .*, was changed"),
    ],
)
def test_what_was_changed_since_is_only_rejected(project, run, pair, place, message):
    waiting = history(project)[-1]
    found = project.root.glob(f"mlruns/**/{place.format(waiting.document)}")
    known = packages.fetch(project, versions.get(project, "toy", 2), project.root)
    [file] = [each for each in found if "decisions" in place or each.is_relative_to(known)]
    file.write_text(f"{file.read_text()}\n")
    with pytest.raises(ValueError, match=message):
        review(project, "toy", "approve", REASON)
    assert standing(project) == (1, 2)
    assert review(project, "toy", "reject", REASON).version == 2
    if "decisions" in place:
        assert run(pair[1], "better", 1, rules=MANUAL, intent=AGAIN)["waiting"]
        assert review(project, "toy", "approve", REASON).version == champion(project) == 2


def test_a_version_that_was_deleted_is_registered_again_by_a_run(project, run, pair):
    tracking.client(project).delete_model_version("toy", "2")
    with pytest.raises(ValueError, match="toy version 2 waits, but was deleted"):
        review(project, "toy", "reject", REASON)
    assert run(pair[1], "better", 1, rules=MANUAL)["version"] == 3
    assert review(project, "toy", "approve", REASON).version == champion(project) == 3


@pytest.fixture
def clone(project, pair, place_of_commands, monkeypatch):
    """The project as a place where commands run, without a Prefect server."""
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    return project


def test_the_commands_show_what_waits_and_decide(clone, run, capsys):
    assert main(["status"]) == 0
    shown = capsys.readouterr().out
    assert "toy version 2 waits for approval since " in shown
    assert "retrain approve toy --reason WHY, or retrain reject toy --reason WHY." in shown
    assert main(["approve", "toy", "--reason", REASON, "--version", "3"]) == 2
    assert main(["approve", "tyo", "--reason", REASON]) == 2
    assert "Did you mean 'toy'?" in capsys.readouterr().err
    assert main(["reject", "toy", "--reason", "too few night images", "--json"]) == 0
    done = json.loads(capsys.readouterr().out)
    assert (done["action"], done["version"], done["previous"]) == ("rejected", 2, 1)
    assert main(["status", "--json"]) == 0
    [told] = json.loads(capsys.readouterr().out)
    assert (told["champion"]["version"], told["waiting"]) == (1, None)
    assert main(["approve", "toy", "--reason", REASON]) == 1
    assert "No version of toy waits for approval." in capsys.readouterr().err

    run(train(clone, 2), "better", 1, rules=MANUAL)
    assert main(["approve", "toy", "--reason", REASON, "--version", "3"]) == 0
    assert main(["history", "toy"]) == 0
    shown = capsys.readouterr().out
    assert "1, not yet 3" in shown
    assert "1 -> 3" in shown


class Deployment:
    """A deployment of a flow that only promotes, as `train` does; its runs are in this process."""

    def __init__(self, client, project, promote):
        from prefect import Flow, runtime

        def train_toy(workload: str):
            run_id = str(runtime.flow_run.id)
            if ended := flow.resume(project, workload, run_id):
                return ended
            promote(run_id)
            flow.wait(project, {"workload": workload, "run": run_id, "outcome": "it waits"})
            return "done"

        self.client = client
        self.flow = Flow(train_toy, "train-toy")
        made = client.create_deployment(client.create_flow(self.flow), name="toy")
        self.run = client.create_flow_run_from_deployment(made, parameters={"workload": "toy"})

    def begin(self) -> str:
        """Runs the flow run, as a worker does; gives the name of its state."""
        from prefect.exceptions import Pause
        from prefect.flow_engine import run_flow

        found = self.client.read_flow_run(self.run.id)
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(os.environ, "PREFECT__FLOW_RUN_ID", str(self.run.id))
            with suppress(Pause):
                run_flow(self.flow, found, {"workload": "toy"}, return_type="state")
        return self.state.name

    @property
    def state(self):
        return self.client.read_flow_run(self.run.id).state

    def question(self) -> str:
        """What the form says."""
        key = self.state.state_details.run_input_keyset["description"]
        return json.loads(self.client.read_flow_run_input(self.run.id, key))

    def resume(self, **form):
        from prefect.flow_runs import resume_flow_run

        resume_flow_run(self.run.id, run_input=form)


@pytest.fixture
def deployment(project, run, one, prefect_session):
    """A deployment whose run has let version 2 wait."""
    from prefect.client.orchestration import get_client

    second = train(project, 1)

    def promote(run_id):
        run(second, "better", champion(project), rules=MANUAL, run_id=run_id)

    with get_client(sync_client=True) as client:
        made = Deployment(client, project, promote)
        assert made.begin() == "Suspended"
        yield made


@pytest.mark.slow
def test_a_run_of_a_deployment_is_suspended_until_a_person_fills_in_the_form(
    project, webhook, deployment
):
    assert deployment.state.state_details.pause_timeout is None
    [told] = webhook
    assert told["text"].startswith("toy: it waits\nrun: http")
    assert deployment.question().startswith("# Is toy version 2 to be the champion?\n\n**Waiting**")
    lost.end_lost_runs(project)
    for form in ({}, {"decision": "yes", "reason": "x"}, {"decision": "approve", "reason": ""}):
        with pytest.raises(RuntimeError, match="Cannot resume"):
            deployment.resume(**form)
    deployment.resume(decision="approve", reason=REASON, name="ada")
    assert deployment.begin() == "Approved"
    assert len(webhook) == 1
    assert standing(project) == (2, None)
    entry = history(project)[-1]
    assert (entry.reason, entry.who) == (REASON, "ada (train-toy/toy)")
    assert deployment.state.message.endswith(f"place of version 1 (ada (train-toy/toy): {REASON}).")


@pytest.mark.slow
def test_a_run_whose_champion_has_changed_compares_again_and_asks_again(project, run, deployment):
    run(train(project, 2), "better", 1)
    deployment.resume(decision="approve", reason=REASON)
    assert deployment.begin() == "Suspended"
    assert standing(project) == (3, 2)
    deployment.resume(decision="reject", reason="too late")
    assert deployment.begin() == "Rejected"
    assert standing(project) == (3, None)
    last = history(project)[-1]
    assert (last.action, last.reason, last.who) == ("rejected", "too late", "train-toy/toy")


@pytest.mark.slow
@pytest.mark.parametrize("is_there", [True, False])
def test_a_command_ends_the_run_that_is_suspended_if_there_is_its_server(
    project, deployment, place_of_commands, capsys, monkeypatch, is_there
):
    from prefect.settings import PREFECT_API_URL

    url = str(PREFECT_API_URL.value()) if is_there else "http://127.0.0.1:9/api"
    with monkeypatch.context() as patched:
        patched.setenv("PREFECT_API_URL", url)
        assert main(["reject", "toy", "--reason", REASON]) == 0
    said = f"The flow run {deployment.run.id} could not be ended"
    assert (said in capsys.readouterr().err) != is_there
    if not is_there:
        deployment.resume(decision="approve", reason="no idea that it was rejected")
        deployment.begin()
    assert (deployment.state.type.value, deployment.state.name) == ("COMPLETED", "Rejected")
    assert standing(project) == (1, None)


@pytest.mark.slow
def test_a_run_that_waits_for_nothing_any_more_is_ended_by_the_next(project, run, deployment):
    run(train(project, 2), "better", 1, rules=MANUAL)
    flow.wait(project, {"workload": "toy", "run": "another", "outcome": ""})
    assert (deployment.state.type.value, deployment.state.name) == ("COMPLETED", "Superseded")
    assert deployment.state.message.endswith("waits for approval by now: toy version 3.")
