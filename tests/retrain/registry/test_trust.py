"""Ledgers that somebody who may write to MLflow has changed, and what a run does about it."""

import json
import shutil
import sqlite3
from dataclasses import replace

import pytest

from retrain import tracking
from retrain.errors import ChampionChangedError
from retrain.project import Project
from retrain.registry import audit, decisions, ledger, snapshot, trust, versions
from tests import templates
from tests.retrain.registry.helpers import allow, decision, history, key_of, register

needs_ssh = pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="ssh-keygen is missing")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A project with two champions, one after the other, and a third version."""
    root = tmp_path_factory.mktemp("made")
    templates.place_mlflow_database(root)
    project = Project(root)
    made = [register(project, "vit", model, root) for model in "abc"]
    decisions.apply(project, made[0], decision(1, reference=True))
    decisions.apply(project, made[1], decision(2, previous=1, reference=True))
    return project


@pytest.fixture
def project(made, tmp_path, monkeypatch):
    """A copy of it."""
    monkeypatch.delenv(trust.KEY, raising=False)
    templates.copy_project(made.root, tmp_path / "clone")
    return Project(tmp_path / "clone")


@pytest.fixture
def elsewhere(project, tmp_path, monkeypatch):
    """A clone on another machine, with the same MLflow; the file of the head came with git."""
    uri = project.tracking_uri
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    other = Project(tmp_path / "elsewhere")
    shutil.copytree(project.root / "ledger", other.root / "ledger")
    return other


def forge(project: Project, action: str = "promoted", version: int = 3, **more) -> None:
    """Appends an entry through MLflow's client, with right digests."""
    written = decisions.read(project, "vit")
    forged = replace(decision(version, action, previous=2), document=None, who="ada", **more)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trust, "sign", lambda *_: None)
        value = trust.value_of(project, forged, written)
    tracking.client(project).log_param(written.run, f"{written.next:06d}", value)


def say(project: Project, number: int = 3, action: str = "rejected"):
    """Enters a decision, as a run does at its end."""
    version = versions.get(project, "vit", number)
    return decisions.apply(project, version, decision(number, action, previous=2))


def roll_back(project: Project, to: int) -> None:
    current = versions.champion(project, "vit")
    version = versions.get(project, "vit", to)
    given = decision(to, "rolled back", current and current.version, reason="forged", document=None)
    decisions.apply(project, version, given)


def champion(project: Project) -> int:
    return versions.champion(project, "vit").version


def faults(project: Project) -> list[str]:
    return [fault.what for fault in audit.faults(project)]


def test_the_head_of_the_ledger_is_a_file_of_the_project(project, elsewhere):
    last = history(project, "vit")[-1]
    text = (project.root / "ledger" / "vit.json").read_text()
    told = {"ledger": decisions.read(project, "vit").run, "number": 2, "digest": last.digest}
    assert json.loads(text) == told
    say(elsewhere)
    assert trust.read_head(elsewhere, "vit").number == 3
    assert trust.read_head(project, "vit").number == 2  # until git brings it
    assert faults(project) == faults(elsewhere) == []
    (project.root / "ledger" / "vit.json").write_text("<<<<<<< HEAD")
    with pytest.raises(ValueError, match=r"ledger/vit.json cannot be read. After a merge, keep"):
        say(project)


def test_a_ledger_that_was_cut_off_is_refused_and_found(project):
    client = tracking.client(project)
    with sqlite3.connect(project.root / "mlflow.db") as database:
        of_ledger = [decisions.read(project, "vit").run]
        database.execute("DELETE FROM params WHERE run_uuid = ? AND key > '000001'", of_ledger)
    database.close()
    client.set_registered_model_tag("vit", ledger.DONE, f"1 {history(project, 'vit')[0].digest}")
    client.set_registered_model_alias("vit", "champion", "1")
    client.set_registered_model_alias("vit", "reference", "1")
    said = "entry 2, which ledger/vit.json names, was cut off or rewritten"
    assert faults(project) == [said]
    with pytest.raises(ValueError, match=f"The ledger of vit: {said}. Nothing is decided"):
        say(project)
    with pytest.raises(ValueError, match="was cut off"):
        decisions.champion(project, "vit")  # which a run asks before it trains
    assert decisions.fault(project, "vit").startswith(f"The ledger of vit: {said}")


def test_a_ledger_that_was_replaced_or_removed_is_refused_and_found(project, tmp_path):
    client, before = tracking.client(project), decisions.read(project, "vit")
    experiment = client.get_run(before.run).info.experiment_id
    other = client.create_run(experiment, tags={snapshot.MODEL: "vit"}).info.run_id
    client.log_param(other, "000001", before.values["000001"])  # a true one, to begin with
    client.set_registered_model_tag("vit", snapshot.LEDGER_RUN, other)
    client.set_registered_model_tag("vit", ledger.DONE, f"1 {before.entries[0].digest}")
    said = (
        f"ledger/vit.json names another one (MLflow run {before.run}, 2 entries) than this MLflow "
        "has; if that was begun anew on purpose, remove the file"
    )
    assert said in faults(project)
    with pytest.raises(ValueError, match="names another one"):
        say(project)
    client.delete_registered_model("vit")
    assert faults(project) == [said]
    with pytest.raises(ValueError, match="names another one"):
        decisions.champion(project, "vit")
    (project.root / "ledger" / "vit.json").unlink()
    assert decisions.champion(project, "vit") is None


def test_a_new_clone_may_begin_a_ledger_of_its_own_beside_that_of_the_team(made, tmp_path):
    clone = Project(tmp_path)
    shutil.copytree(made.root / "ledger", clone.root / "ledger")
    assert audit.faults(clone) == []
    templates.place_mlflow_database(clone.root)
    assert decisions.champion(clone, "vit") is None
    decisions.apply(clone, register(clone, "vit", "d", tmp_path), decision(1))
    assert audit.faults(clone) == []
    assert decisions.champion(clone, "vit").version == 1
    assert trust.read_head(clone, "vit") == trust.read_head(made, "vit")


def test_a_champion_whose_alias_was_removed_is_named_and_no_run_is_the_first(project):
    tracking.client(project).delete_registered_model_alias("vit", "champion")
    said = "vit has no champion, but its ledger says version 2"
    assert decisions.fault(project, "vit").startswith(said)
    assert faults(project)[0].startswith("no version has the alias champion, but the ledger says")
    first = replace(decision(3), verdict="first")
    for decide in (
        lambda: decisions.champion(project, "vit"),
        lambda: decisions.apply(project, versions.get(project, "vit", 3), first),
    ):
        with pytest.raises(ValueError, match="retrain rollback vit --to VERSION"):
            decide()
    roll_back(project, 2)
    assert (champion(project), faults(project)) == (2, [])
    assert decisions.read(project, "vit").line == (1, 2)
    tracking.client(project).delete_model_version("vit", "2")
    assert decisions.fault(project, "vit").startswith(said)


def test_a_moved_reference_and_another_package_are_found(project):
    client = tracking.client(project)
    client.set_registered_model_alias("vit", "reference", "1")
    [said] = faults(project)
    assert said.startswith("version 1 has the alias reference, but the ledger says version 2")
    client.set_registered_model_alias("vit", "reference", "2")
    third = versions.get(project, "vit", 3)
    decisions.apply(project, third, decision(3, previous=2, package=third.package_digest))
    client.set_model_version_tag("vit", "3", "retrain.package_digest", "other")
    assert faults(project) == ["version 3 has another package than was decided about"]


@pytest.fixture
def signed(project, tmp_path, monkeypatch):
    """The project, whose next entries ada has to sign, and does."""
    key = key_of(tmp_path, "ada")
    allow(project, key)
    monkeypatch.setenv(trust.KEY, str(key))
    return project


@needs_ssh
@pytest.mark.parametrize("is_signed", [False, True])
def test_what_a_clone_left_undone_is_done_by_any(
    project, elsewhere, monkeypatch, request, is_signed
):
    if is_signed:
        request.getfixturevalue("signed")
        shutil.copy(project.root / trust.SIGNERS, elsewhere.root)
    with monkeypatch.context() as patched:
        patched.setattr(decisions, "settle", lambda *_: None)  # as if it were killed there
        say(project, action="promoted")
    assert bool(history(project, "vit")[-1].signature) == is_signed
    assert [entry.number for entry in decisions.read(project, "vit").unfinished] == [3]
    assert (champion(project), faults(elsewhere)) == (2, [])
    with pytest.raises(ChampionChangedError, match="champion is version 3 by now"):
        say(elsewhere, 1)
    assert champion(project) == champion(elsewhere) == 3
    assert not decisions.read(elsewhere, "vit").unfinished
    decisions.settle(elsewhere, "vit")
    assert trust.read_head(elsewhere, "vit").number == 3


@needs_ssh
@pytest.mark.parametrize("action", ["promoted", "compared"])
def test_an_entry_without_a_signature_stops_runs_until_a_person_has_decided(signed, action):
    forge(signed, action)
    said = rf"The ledger of vit: entry 3 \({action} version 3, by ada, .*\) carries no signature"
    for attempt in (say, lambda each: decisions.champion(each, "vit")):
        with pytest.raises(ValueError, match=said):
            attempt(signed)
    assert "carries no signature of an allowed signer" in faults(signed)[0]
    assert trust.look(signed, "vit").unsigned.number == 3
    roll_back(signed, 2)
    assert (champion(signed), faults(signed), trust.look(signed, "vit").unsigned) == (2, [], None)
    say(signed)


@needs_ssh
def test_a_signature_of_another_key_text_or_purpose_does_not_count(signed, tmp_path, monkeypatch):
    entry = history(signed, "vit")[-1]
    value = decisions.read(signed, "vit").values["000002"]
    text = trust.signed_text("vit", 2, value)
    good = trust.sign(signed, text, entry.time)
    assert text != trust.signed_text("vit", 3, value)
    with monkeypatch.context() as patched:
        patched.setattr(trust, "NAMESPACE", "git")
        of_a_commit = trust.sign(replace(signed, root=tmp_path), text, entry.time)
    monkeypatch.setenv(trust.KEY, str(key_of(tmp_path, "mallory")))
    theirs = trust.sign(replace(signed, root=tmp_path), text, entry.time)
    assert trust.is_valid(signed, text, good, entry.time)
    for other, signature in (
        (text + " ", good), (text, "nonsense"), (text, of_a_commit), (text, theirs)
    ):  # fmt: skip
        assert not trust.is_valid(signed, other, signature, entry.time)


@needs_ssh
def test_a_key_that_is_retired_still_stands_for_what_it_signed(signed, tmp_path):
    say(signed)
    (signed.root / "ledger" / "vit.json").unlink()  # else it would stand for the entries
    for until, said in (("22000101", []), ("20200101", ["carries no signature"])):
        (signed.root / trust.SIGNERS).write_text("")
        allow(signed, tmp_path / "ada", f'valid-before="{until}"')
        found = faults(signed)
        assert [text in fault for text, fault in zip(said, found, strict=True)] == [True] * len(
            said
        )


@needs_ssh
@pytest.mark.parametrize(
    ("key", "message"),
    [
        (None, r"allowed_signers demands that .* set RETRAIN_SIGNING_KEY"),
        ("nowhere", r"RETRAIN_SIGNING_KEY: .*nowhere cannot sign the ledger: "),
        ("mallory", r"mallory is no key of an allowed signer"),
    ],
)
def test_who_cannot_sign_is_told_and_enters_nothing(signed, tmp_path, monkeypatch, key, message):
    if key == "mallory":
        key_of(tmp_path, key)
    monkeypatch.delenv(trust.KEY)
    if key:
        monkeypatch.setenv(trust.KEY, str(tmp_path / key))
    for attempt in (trust.check_signing, say):
        with pytest.raises(ValueError, match=message):
            attempt(signed)
    assert len(history(signed, "vit")) == 2


def test_without_ssh_keygen_it_says_what_to_install(project, monkeypatch):
    monkeypatch.setenv(trust.KEY, "key")
    monkeypatch.setenv("PATH", str(project.root))
    with pytest.raises(ValueError, match=r"ssh-keygen is not installed here, .* OpenSSH's client"):
        trust.check_signing(project)
