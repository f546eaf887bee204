"""The ledger of a model: every decision about its versions, in order, where nothing is overwritten.

MLflow keeps no history of its aliases. The ledger is an MLflow run whose parameters are the
entries: `000012` and compact JSON. MLflow never gives a parameter another value, and its database
has one row per run and parameter, so of two machines that write the same number at once, one is
refused. Each entry has the SHA-256 of the one before it, and that of the document of its decision,
an artifact of the run. Which run it is, a tag of the registered model says.

Older versions of this project kept the decisions as tags of the registered model. They are read as
the entries before the first.
"""

import getpass
import hashlib
import json
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

from retrain import tracking
from retrain.project import Project
from retrain.registry import signatures
from retrain.registry.sqlite_reader import LEDGER_RUN

if TYPE_CHECKING:
    from mlflow import MlflowClient

RUN = LEDGER_RUN  # a tag of the registered model: the id of the run
DONE = "retrain.ledger_done"  # another: the number and the digest of the last one carried out
MODEL = "retrain.ledger"  # a tag of the run: the name of the model
NAME = "ledger"  # of the run
OLD = "retrain.ledger."  # the tags of the registered model that were the ledger once
DOCUMENTS = "decisions"  # the folder of the run's artifacts
LENGTH = 6000  # characters; the longest parameter that MLflow takes
LONGEST_REASON = 500  # characters, each of which may take six in JSON

Action = Literal["promoted", "rejected", "compared", "waiting", "rolled back", "set aside"]


@dataclass(frozen=True)
class Decision:
    """A decision about a version, before it is entered.

    Attributes:
        action: `promoted` gives the version the alias `champion`; `rejected` was a verdict against
            it; `compared` is of a run that was not to change what is served; `waiting` is of a
            version that passed and that a person has to approve; `rolled back` gives the alias back
            to the version, which had it before; `set aside` was a reference that did not answer,
            with which nothing is compared any more.
        version: The number of the version.
        previous: The champion before the decision.
        verdict: The verdict of the gate; of a rollback, `rolled back`.
        document: All that was considered, as JSON-able values; None for a rollback.
        reason: A person's, for a rollback, an approval or a rejection; or why a version that passed
            was not promoted.
        data: The version of the data.
        commit: The git commit whose code decided.
        run: The Prefect flow run that decided.
        test_images: The identity of the images that were compared on; None for a person's decision.
        reference: Whether the version also gets the alias `reference` if it gets `champion`.
        reviews: The number of the entry that waited, if this is what a person said of it.
        who: Who decides, if it is not the deployment or the user of this process.
        package: The digest of the version's package; None for a version that has none.
        training: The digest of its training.
    """

    action: Action
    version: int
    previous: int | None
    verdict: str
    document: Mapping[str, Any] | None = None
    reason: str | None = None
    data: str | None = None
    commit: str | None = None
    run: str | None = None
    test_images: str | None = None
    reference: bool = False
    reviews: int | None = None
    who: str | None = None
    package: str | None = None
    training: str | None = None


@dataclass(frozen=True)
class Entry:
    """A decision in the ledger.

    Attributes:
        number: Its place, from 1.
        action: As in `Decision`, like the following six.
        version: Of the model.
        previous: The champion before.
        verdict: Of the gate.
        reason: Of a person, or None.
        data: The version of the data.
        commit: The git commit.
        run: The Prefect flow run.
        who: The deployment, or the user on the machine; None in old entries.
        time: ISO 8601, UTC.
        document: SHA-256 (hex) of the document of the decision; None if it has none.
        before: SHA-256 (hex) of the entry before; empty for the first; None for an old one.
        digest: SHA-256 (hex) of this entry.
        test_images: As in `Decision`, like the following; None in old entries.
        reference: Whether it also made the version the reference.
        reviews: As in `Decision`.
        package: As in `Decision`, like the following; None in entries of before.
        training: As in `Decision`.
        signature: Of an SSH key (base64), over all else that the entry says; None without one.
        rules: The rules of the gate, which only old entries hold themselves.
    """

    number: int
    action: Action
    version: int
    previous: int | None
    verdict: str
    reason: str | None
    data: str | None
    commit: str | None
    run: str | None
    who: str | None
    time: str
    document: str | None
    before: str | None
    digest: str
    test_images: str | None = None
    reference: bool = False
    reviews: int | None = None
    package: str | None = None
    training: str | None = None
    signature: str | None = None
    rules: tuple[Mapping[str, Any], ...] | None = None

    @property
    def is_old(self) -> bool:
        """Whether it is a tag of the registered model."""
        return self.before is None

    @property
    def appoints(self) -> bool:
        """Whether it made the version champion."""
        return self.action in ("promoted", "rolled back")

    def is_of(self, decision: Decision) -> bool:
        """Whether it is the same decision for the same reasons, whatever run made it."""
        names = ("action", "version", "previous", "verdict", "reason", "data")
        return self.document == digest_of_document(decision.document) and all(
            getattr(self, name) == getattr(decision, name) for name in names
        )


@dataclass(frozen=True)
class Ledger:
    """The ledger of a model, as it was read.

    Attributes:
        entries: Oldest first.
        seal: The number and the digest of the last entry that was carried out; empty before that.
        run: The id of its run; None if it has none yet.
        location: The URI of the run's artifacts.
        values: The entries as they are written, by their numbers as parameters of the run; without
            old ones.
    """

    entries: tuple[Entry, ...] = ()
    seal: str = ""
    run: str | None = None
    location: str | None = None
    values: Mapping[str, str] = field(default_factory=dict)

    @property
    def done(self) -> int:
        """The number of the last entry that was carried out."""
        return int(self.seal.partition(" ")[0] or 0)

    @property
    def first(self) -> int:
        """The number of the first entry that is not an old one."""
        return 1 + sum(entry.is_old for entry in self.entries)

    @property
    def next(self) -> int:
        """The number of the next entry."""
        return self.entries[-1].number + 1 if self.entries else 1

    @property
    def head(self) -> str:
        """What the next entry has as `before`."""
        return self.entries[-1].digest if self.entries and not self.entries[-1].is_old else ""

    @property
    def unfinished(self) -> tuple[Entry, ...]:
        """The entries that were not carried out; old ones were."""
        return tuple(each for each in self.entries if each.number > self.done and not each.is_old)

    @property
    def appointment(self) -> Entry | None:
        """The entry that made the last champion; None before the first."""
        return next((each for each in reversed(self.entries) if each.appoints), None)

    @property
    def best(self) -> Entry | None:
        """The entry that made the reference, which no rollback took back; None without one."""
        made = (each for each in reversed(self.entries) if each.appoints and each.reference)
        return next((each for each in made if each.version not in self.withdrawn), None)

    def latest(self, decision: Decision) -> Entry | None:
        """A decision's entry, if it is the last on its version and no champion came after it.

        That a version waits may be repeated as long as it does.
        """
        if decision.action == "waiting":
            return self.waiting if self.waiting and self.waiting.is_of(decision) else None
        version = decision.version
        related = [each for each in self.entries if each.version == version or each.appoints]
        return related[-1] if related and related[-1].is_of(decision) else None

    @cached_property
    def waiting(self) -> Entry | None:
        """The entry of the version that waits for a person; None if none does.

        Only the last one waits. It does so until something is decided about it, even if the
        champion is another one by now; to be compared by a trial decides nothing.
        """
        last = next((each for each in reversed(self.entries) if each.action == "waiting"), None)
        if last is None:
            return None
        decided = any(
            each.version == last.version and each.action != "compared"
            for each in self.entries
            if each.number > last.number
        )
        return None if decided else last

    @cached_property
    def line(self) -> tuple[int, ...]:
        """The champion and those before it, the last at the end.

        A rollback leaves out what came after the version that it went back to.
        """
        return self._replayed[0]

    @cached_property
    def withdrawn(self) -> Mapping[int, Entry]:
        """The versions that a person took out of production or rejected, each with that entry.

        One that is promoted again, or waits again, is none of them.
        """
        return self._replayed[1]

    def withdrawn_of(self, training: str, versions: Collection[int]) -> Entry | None:
        """The entry by which a person took a training out of production, or rejected it.

        None if that was only said of one of its packages: another one was champion after it, or
        waited. Then the training itself is not what a person was against.

        Args:
            training: Its digest.
            versions: The versions of the registry that come from it. Those that were deleted are
                known by their entries.
        """
        same = {*versions} | {each.version for each in self.entries if each.training == training}
        against = [entry for version, entry in self.withdrawn.items() if version in same]
        last = max(against, key=lambda entry: entry.number, default=None)
        if last is None:
            return None
        later = [each for each in self.entries if each.number >= last.number]
        approved = any(
            each.version in same and (each.appoints or each.action == "waiting") for each in later
        )
        return None if approved else last

    @cached_property
    def _replayed(self) -> tuple[tuple[int, ...], dict[int, Entry]]:
        line: list[int] = []
        withdrawn: dict[int, Entry] = {}
        for entry in self.entries:
            if entry.action == "waiting":
                withdrawn.pop(entry.version, None)
            elif entry.action == "rejected" and entry.reviews:
                withdrawn[entry.version] = entry
            if not entry.appoints:
                continue
            earlier = line[:-1]
            if entry.action == "rolled back" and entry.version in earlier:
                place = len(earlier) - 1 - earlier[::-1].index(entry.version)
                withdrawn |= dict.fromkeys(line[place + 1 :], entry)
                del line[place + 1 :]
            elif line[-1:] != [entry.version]:  # else it only got its alias back
                line.append(entry.version)
            withdrawn.pop(entry.version, None)
        return tuple(line), withdrawn


def read(
    name: str, tags: Mapping[str, str], params: Mapping[str, str], location: str | None
) -> Ledger:
    """Reads a ledger.

    Args:
        name: The name of the model.
        tags: Of the registered model.
        params: Of the ledger's run.
        location: The URI of that run's artifacts.

    Raises:
        ValueError: An entry is none any more.
    """
    old = [
        (int(key.removeprefix(OLD).partition("-")[0]), value)
        for key, value in sorted(tags.items())
        if key.startswith(OLD)
    ]
    try:
        entries = [_entry(number, value) for number, value in old]
        entries += [_entry(int(key), params[key]) for key in sorted(params)]
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"The ledger of {name} was changed, so that it cannot be read. See: retrain verify"
        ) from error
    return Ledger(tuple(entries), tags.get(DONE, ""), tags.get(RUN), location, dict(params))


def _entry(number: int, value: str) -> Entry:
    fields = dict.fromkeys(("reason", "who", "document", "before")) | json.loads(value)
    if "rules" in fields:
        fields["rules"] = tuple(fields["rules"])
    return Entry(number=number, digest=sha256_of(value), **fields)


def value_of(project: Project, decision: Decision, name: str, written: Ledger) -> str:
    """The next entry of a ledger, as it is written.

    Raises:
        ValueError: It is too long; or it cannot be signed, and has to be.
    """
    reason = decision.reason or ""
    fields = asdict(replace(decision, document=None)) | {
        "document": digest_of_document(decision.document),
        "before": written.head,
        "time": now(),
        "who": decision.who or who(),
    }
    text = signed_text(name, written.next, _compact(fields))
    if signature := signatures.sign(project, text, fields["time"]):
        fields["signature"] = signature
    value = _compact(fields)
    if len(reason) > LONGEST_REASON or len(value) > LENGTH:
        raise ValueError(
            f"The decision on {name} is too long for its ledger: a reason may have "
            f"{LONGEST_REASON} characters."
        )
    return value


def signed_text(name: str, number: int, value: str) -> str:
    """What the signature of an entry is over: all that it says, in which place of which ledger.

    Args:
        name: The name of the model.
        number: Of the entry.
        value: The entry as it is written, with its signature or without.
    """
    fields = json.loads(value) | {"model": name, "number": number}
    fields.pop("signature", None)
    return _compact(fields)


def broken_chain(values: Mapping[str, str], first: int, done: str) -> Iterator[str]:
    """Where the entries do not follow each other.

    Args:
        values: The parameters of the ledger's run.
        first: The number of its first entry.
        done: The number and the digest of an entry, as the registered model's tag has them.
    """
    entries = {}
    for key, value in sorted(values.items()):
        try:
            assert key == f"{int(key):06d}"
            entries[int(key)] = json.loads(value)["before"]
        except (AssertionError, ValueError, TypeError, KeyError):
            yield f"entry {key} was changed, or it is none"
    digest = {number: sha256_of(values[f"{number:06d}"]) for number in entries}
    last = max(entries, default=first - 1)
    place, _, seal = done.partition(" ")
    sealed = int(place) if place.isdecimal() else first - 1
    for number in range(first, max(last, sealed) + 1):
        if f"{number:06d}" not in values:
            yield f"entry {number} is gone"
    for number in entries:
        if number < first:
            yield f"entry {number} was put in"
        elif number == first and entries[number] != "":
            yield f"entry {number} was changed: it follows another one, and should be the first"
        elif number > first and entries[number] != digest.get(number - 1, entries[number]):
            yield f"entry {number - 1} or {number} was changed: the one does not follow the other"
    if sealed in digest and digest[sealed] != seal:
        yield f"entry {sealed} was changed since it was carried out"


def open_run(client: "MlflowClient", project: Project, name: str) -> str:
    """Finds the run of a model's ledger; the first time, creates it and the registered model.

    The registered model is created with the tag that names the run. Only one of several machines
    can do that; the others take its run.

    Returns:
        The id of the run.
    """
    from mlflow.exceptions import MlflowException

    try:
        tags = client.get_registered_model(name).tags
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        run = _create_run(client, project, name)
        try:
            client.create_registered_model(name, {RUN: run})
            return run
        except MlflowException as later:
            if later.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        tags = client.get_registered_model(name).tags
        if tags.get(RUN, run) != run:
            client.delete_run(run)
    if RUN not in tags:  # made by an older version of this project, or by a person
        client.set_registered_model_tag(name, RUN, _create_run(client, project, name))
        tags = client.get_registered_model(name).tags
    return str(tags[RUN])


def _create_run(client: "MlflowClient", project: Project, name: str) -> str:
    """Creates the run of a ledger, or takes one that a process left when it was killed here."""
    experiment = tracking.experiment(client, project, name)
    found = client.search_runs(
        [experiment], f"tags.`{MODEL}` = '{name}'", order_by=["attributes.start_time ASC"]
    )
    empty = [run for run in found if not run.data.params]
    run = empty[0] if empty else client.create_run(experiment, tags={MODEL: name}, run_name=NAME)
    client.update_run(run.info.run_id, "FINISHED")  # else it would seem to go on
    return str(run.info.run_id)


def write(client: "MlflowClient", run: str, number: int, value: str) -> bool:
    """Enters a decision, unless the number is taken.

    Args:
        client: A client of the registry.
        run: The ledger's run.
        number: One more than the number of the last entry.
        value: As `value_of` gives it.

    Returns:
        Whether the entry has this number now. If not, another machine was faster.

    Raises:
        ValueError: The run was deleted.
    """
    from mlflow.exceptions import MlflowException

    key = f"{number:06d}"
    try:
        client.log_param(run, key, value)
    except MlflowException:
        found = client.get_run(run)
        if found.info.lifecycle_stage == "deleted":
            raise ValueError(deleted(run)) from None
        if key not in found.data.params:
            raise
        return bool(found.data.params[key] == value)
    return True


def deleted(run: str) -> str:
    """What is said when the run was deleted, but not for good."""
    return f"the ledger was deleted; bring it back with: mlflow runs restore --run-id {run}"


def upload(client: "MlflowClient", run: str, document: Mapping[str, Any] | None) -> None:
    """Puts the document of a decision below the ledger's run, under its digest."""
    if document is None:
        return
    with TemporaryDirectory() as folder:
        file = Path(folder, f"{digest_of_document(document)}.json")
        file.write_text(_compact(document), encoding="utf-8")
        client.log_artifact(run, str(file), DOCUMENTS)


def digest_of_document(document: Mapping[str, Any] | None) -> str | None:
    """SHA-256 (hex) of a document as it is written: its canonical JSON."""
    return None if document is None else sha256_of(_compact(document))


def sha256_of(text: str) -> str:
    """SHA-256 (hex) of a text in UTF-8."""
    return hashlib.sha256(text.encode()).hexdigest()


def now() -> str:
    """The time for an entry: ISO 8601, UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def who() -> str:
    """Who decides: the deployment that runs this process, or else the user of the machine."""
    if os.environ.get("PREFECT__FLOW_RUN_ID"):  # set by Prefect for the run of a deployment
        from prefect import runtime

        if runtime.deployment.name:
            return f"{runtime.flow_run.flow_name}/{runtime.deployment.name}"
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return f"user {os.getuid()}"


def _compact(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
