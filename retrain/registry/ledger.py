"""The ledger of a model: every decision about its versions, in order, where nothing is overwritten.

MLflow keeps no history of its aliases. The entries of the ledger are the parameters of an MLflow
run, which a tag of the registered model names: `000012` and compact JSON. Each entry has the
SHA-256 of the document of its decision, an artifact of the run. The entries say which version is
champion, and the alias follows them. Whoever administers MLflow can rewrite all of it: the ledger
tells what happened, and proves nothing.
"""

import getpass
import json
import os
from collections.abc import Mapping
from dataclasses import KW_ONLY, asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Literal

from retrain.file_io import json_digest

CHAMPION = "champion"  # the alias of the version in production
REFERENCE = "reference"  # the best so far: what is promoted must not be worse than that either
LONGEST_REASON = 500  # characters, each of which may take six in JSON
LONGEST_ENTRY = 6000  # characters; the longest parameter that MLflow takes

Action = Literal["promoted", "rejected", "compared", "waiting", "rolled back", "set aside"]


@dataclass(frozen=True)
class Decision:
    """A decision about a version, before it is entered.

    Attributes:
        action: `promoted` makes the version champion; `rejected` was a verdict against it;
            `compared` is of a run that was not to change what is served; `waiting` is of a version
            that passed and that a person has to approve; `rolled back` makes the version champion
            again; `set aside` was a reference that did not answer, with which nothing is compared
            any more.
        version: The number of the version.
        previous: The champion before the decision.
        verdict: The verdict of the gate; of a rollback, `rolled back`.
        reason: Why a person decided on a rollback, an approval or a rejection; or why a version
            that passed was not promoted.
        data: The version of the data.
        commit: The git commit whose code decided.
        run: The Prefect flow run that decided.
        test_images: The identity of the images that were compared on; None for a person's decision.
        reference: Whether the version also gets the alias `reference` if it gets `champion`.
        changed_rules: The rules of the gate that were not those of `params.yaml`, in words; None if
            all were.
        reviews: The number of the entry that waited, if this is what a person said of it.
        package: The digest of the version's package.
        training: The digest of its training.
        document: All that was considered, as JSON-able values; None for a rollback. An entry has
            the SHA-256 (hex) of it.
    """

    action: Action
    version: int
    previous: int | None
    verdict: str
    _: KW_ONLY
    reason: str | None = None
    data: str | None = None
    commit: str | None = None
    run: str | None = None
    test_images: str | None = None
    reference: bool = False
    changed_rules: str | None = None
    reviews: int | None = None
    package: str | None = None
    training: str | None = None
    document: Any = None

    @property
    def why(self) -> str:
        """The reason, and the rules that were changed; empty if there is neither."""
        changed = self.changed_rules and f"by changed rules: {self.changed_rules}"
        return "; ".join(filter(None, (self.reason, changed)))


@dataclass(frozen=True, kw_only=True)
class Entry(Decision):
    """A decision in the ledger.

    Attributes:
        number: The place of the entry in the ledger, from 1.
        time: ISO 8601, UTC.
        who: Who decided: a deployment, or the user of a machine.
    """

    number: int
    time: str
    who: str | None = None

    @property
    def appoints(self) -> bool:
        """Whether it made the version champion."""
        return self.action in ("promoted", "rolled back")

    @property
    def mark(self) -> str:
        """The tag of the version once this is carried out: `better (promoted, decision 12)`."""
        return f"{self.verdict} ({self.action}, decision {self.number})"

    def is_of(self, decision: Decision) -> bool:
        """Whether it is the same decision for the same reasons, whatever run made it."""
        names = ("action", "version", "previous", "verdict", "reason", "data")
        return self.document == digest_of_document(decision.document) and all(
            getattr(self, name) == getattr(decision, name) for name in names
        )


@dataclass(frozen=True)
class Row:
    """A version, as MLflow has it.

    Attributes:
        run_id: The run of its training.
        source: The URI of its package.
        created: When it was registered, in milliseconds since 1970.
        tags: Its tags.
    """

    run_id: str
    source: str
    created: int
    tags: Mapping[str, str]


@dataclass(frozen=True)
class Ledger:
    """A registered model, as it was read: the decisions about it, and its versions.

    Attributes:
        name: The name of the model.
        entries: Oldest first.
        run: The id of the run with the entries; None if it has none yet.
        is_named: Whether the registered model names that run.
        aliases: The number of a version, by alias, as MLflow has them.
        versions: The versions, by number.
    """

    name: str
    entries: tuple[Entry, ...] = ()
    run: str | None = None
    is_named: bool = False
    aliases: Mapping[str, int] = field(default_factory=dict)
    versions: Mapping[int, Row] = field(default_factory=dict)

    @property
    def next(self) -> int:
        """The number of the next entry."""
        return self.entries[-1].number + 1 if self.entries else 1

    @property
    def appointment(self) -> Entry | None:
        """The entry that made the last champion; None before the first."""
        return next((entry for entry in reversed(self.entries) if entry.appoints), None)

    @property
    def champion(self) -> int | None:
        """The version that is champion, wherever the alias is; None before the first."""
        return self.appointment.version if self.appointment else None

    @property
    def selectors(self) -> dict[str, int]:
        """The number of a version, by alias; that of the champion is the ledger's."""
        return {**self.aliases, CHAMPION: self.champion} if self.champion else {**self.aliases}

    @property
    def untold(self) -> Entry | None:
        """The last entry, if MLflow's page of its version does not tell it yet."""
        last = self.entries[-1] if self.entries else None
        row = self.versions.get(last.version) if last else None
        return last if last and row and row.tags.get("retrain.verdict") != last.mark else None

    @property
    def is_settled(self) -> bool:
        """Whether the last decision was carried out, and the alias is where the ledger says."""
        is_away = self.champion in self.versions and self.aliases.get(CHAMPION) != self.champion
        return not (is_away or self.untold)

    @property
    def lost(self) -> str | None:
        """That there are decisions without their registered model, for a person; None if not.

        The numbers of a new one would begin at 1, where those of the decisions did.
        """
        if self.is_named or not self.entries:
            return None
        return (
            f"The registered model of {self.name} is gone, or lacks its tag retrain.ledger_run; "
            f"MLflow's run {self.run} still has {len(self.entries)} decisions about it. Bring "
            "MLflow's database back from a backup. Or begin without these decisions: mlflow runs "
            f"delete --run-id {self.run}"
        )

    @property
    def fault(self) -> str | None:
        """What is wrong with the champion, for a person; None if nothing is."""
        if self.lost:
            return self.lost
        alias, champion = self.aliases.get(CHAMPION), self.champion
        if champion is None:
            if not alias:
                return None
            return (
                f"{self.name} has no champion in its ledger, but somebody has given the alias "
                f"{CHAMPION} to version {alias}. Remove it in MLflow before anything is decided"
            )
        if champion not in self.versions:
            return (
                f"{self.name} has no champion, but its ledger says version {champion}: that was "
                f"deleted. Go back to another version: retrain rollback {self.name} --to VERSION "
                "--reason WHY"
            )
        if alias == champion:
            return None
        has = f"Version {alias} has" if alias else "No version has"
        return (
            f"{has} the alias {CHAMPION} of {self.name}, but its ledger says version {champion}: "
            f"somebody has moved it. The next decision sets it right: retrain train {self.name}"
        )

    def latest(self, decision: Decision) -> Entry | None:
        """A decision's entry, if it is the last on its version and no champion came after it.

        That a version waits may be repeated as long as it does.
        """
        if decision.action == "waiting":
            return self.waiting if self.waiting and self.waiting.is_of(decision) else None
        version = decision.version
        related = [entry for entry in self.entries if entry.version == version or entry.appoints]
        return related[-1] if related and related[-1].is_of(decision) else None

    @cached_property
    def waiting(self) -> Entry | None:
        """The entry of the version that waits for a person; None if none does.

        Only the last one waits. It does so until something is decided about it, even if the
        champion is another one by now; to be compared by a trial decides nothing.
        """
        waiting = None
        for entry in self.entries:
            if entry.action == "waiting":
                waiting = entry
            elif waiting and entry.version == waiting.version and entry.action != "compared":
                waiting = None
        return waiting

    @property
    def line(self) -> tuple[int, ...]:
        """The champion and those before it, the last at the end.

        A rollback leaves out what came after the version that it went back to.
        """
        return self._replayed[0]

    @property
    def withdrawn(self) -> Mapping[int | str, Entry]:
        """The versions that a person took out of production or rejected, each with that entry.

        Their trainings are among them, by their digests: in another package, too, such a model is
        not what a person wants. A version that is promoted again, or waits again, is none of them,
        nor is its training, in whatever package it does so.
        """
        return self._replayed[1]

    @cached_property
    def _replayed(self) -> tuple[tuple[int, ...], dict[int | str, Entry]]:
        line: list[int] = []
        withdrawn: dict[int | str, Entry] = {}
        training = {entry.version: entry.training for entry in self.entries if entry.training}
        for entry in self.entries:
            against: list[int] = []
            if entry.action == "rejected" and entry.reviews:
                against = [entry.version]
            if entry.action == "rolled back" and entry.version in line:
                length = line.index(entry.version) + 1
                line, against = line[:length], line[length:]
            elif entry.appoints and line[-1:] != [entry.version]:  # else it is champion already
                line.append(entry.version)
            for version in against:
                withdrawn[version] = withdrawn[training[version]] = entry
            if entry.appoints or entry.action == "waiting":
                withdrawn.pop(entry.version, None)
                withdrawn.pop(training[entry.version], None)
        return tuple(line), withdrawn


def parse(name: str, written: Mapping[str, str]) -> tuple[Entry, ...]:
    """The entries of a model's ledger, from the parameters of its run.

    Raises:
        ValueError: The text of an entry cannot be read as one any more.
    """
    entries = []
    for key in sorted(written):
        try:
            entries.append(Entry(number=int(key), **json.loads(written[key])))
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"The ledger of {name}: entry {key} was changed, so that it cannot be read. "
                "Nothing is decided until that is mended."
            ) from error
    return tuple(entries)


def text_of(decision: Decision, name: str) -> str:
    """A decision about a model as its ledger has it.

    Raises:
        ValueError: The entry is too long.
    """
    values = asdict(replace(decision, document=None)) | {
        "document": digest_of_document(decision.document),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "who": who(),
    }
    text = compact(values)
    if len(decision.reason or "") > LONGEST_REASON or len(text) > LONGEST_ENTRY:
        raise ValueError(
            f"The decision on {name} is too long for its ledger: a reason may have "
            f"{LONGEST_REASON} characters."
        )
    return text


def digest_of_document(document: Mapping[str, Any] | None) -> str | None:
    """SHA-256 (hex) of a document as it is written: its canonical JSON."""
    return None if document is None else json_digest(document)


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


def compact(value: Any) -> str:
    """A value as canonical JSON, which is what is hashed."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
