"""What a person has decided about a model, as the ledger has it and as commands tell it."""

from dataclasses import dataclass

from retrain.registry.ledger import Action, Entry


@dataclass(frozen=True)
class PersonalDecision:
    """An approval, a rejection or a rollback; it was carried out.

    Attributes:
        workload: The name of the model.
        action: `promoted`, `rejected` or `rolled back`.
        version: The version that waited; or the champion after a rollback.
        previous: The champion before; None if there was none.
        reason: Why.
        who: The person, the deployment, or the user of the machine.
        time: ISO 8601, UTC.
        run: The Prefect flow run that let the version wait; None if there is none.
        says: How fast the version is here; None if it was not measured by this call.
    """

    workload: str
    action: Action
    version: int
    previous: int | None
    reason: str
    who: str
    time: str
    run: str | None
    says: str | None = None

    @property
    def state(self) -> str:
        """It in a word."""
        return "Approved" if self.action == "promoted" else self.action.capitalize()

    @property
    def outcome(self) -> str:
        """It in one sentence."""
        title, previous = f"{self.workload} version {self.version}", self.previous
        if self.action == "rolled back":
            if self.version == previous:
                return f"{title} stays the champion"
            instead = f" instead of version {previous}" if previous else ""
            return f"{title} is the champion again{instead}"
        why = f"({self.who}: {self.reason})"
        if self.action == "promoted":
            over = f"over version {previous}" if previous else "as the first"
            return f"{title} is approved and the champion now, {over} {why}"
        stays = f"; version {previous} stays champion" if previous else ""
        return f"{title} is rejected {why}{stays}"


def decided(name: str, entry: Entry, says: str | None = None) -> PersonalDecision:
    """What a person has decided about a model, from its entry in the ledger."""
    assert entry.reason and entry.who
    return PersonalDecision(
        name,
        entry.action,
        entry.version,
        entry.previous,
        entry.reason,
        entry.who,
        entry.time,
        entry.run,
        says,
    )
