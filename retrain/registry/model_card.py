"""The card of a version, and the description on MLflow's page that shows it."""

from collections.abc import Mapping
from typing import Any

from retrain.project import Project
from retrain.registry import tracking
from retrain.registry.ledger import Entry
from retrain.registry.versions import ModelVersion

LONGEST_DESCRIPTION = 5000  # characters, of MLflow's column


def read(project: Project, version: ModelVersion) -> str | None:
    """The card of a version (Markdown); None if the run of its training is gone.

    How fast it is comes last: that is measured after the card is written.
    """
    content = tracking.read_artifact(project, version.run_id, place(version.package_digest))
    if content is None:
        return None
    speed = f"\n## Speed\n\n{version.latency}.\n" if version.latency else ""
    return content.decode() + speed


def place(package_digest: str) -> str:
    """The path of a card among the artifacts of the run that trained the model."""
    return f"card/{package_digest}.md"


MARKS = {True: "passed", False: "**failed**", None: "cannot tell"}  # of a rule


VERDICTS = {  # of the gate, as clauses
    "first": "there was no champion to compare it with",
    "better": "it is better than the champion",
    "not worse": "it is not worse than the champion, except by less than the margin",
    "worse": "it is worse than the champion",
    "cannot tell": "it cannot be told whether it is better than the champion",
    "not comparable": "it cannot be compared with the champion",
    "repackaged": "it is the training of the champion in a new package",
    "below bounds": "it is outside the bounds of the gate",
}


def sentence(entry: Entry) -> str:
    """A decision in a sentence (Markdown), for MLflow's pages of the version and its run."""
    why = entry.reason or VERDICTS.get(entry.verdict, entry.verdict)
    return f"**{entry.action.capitalize()}** on {entry.time[:10]}: {why}."


def description(
    version: ModelVersion, decided: str, considered: Mapping[str, Any], card: str | None
) -> str:
    """The description on MLflow's page of a version (Markdown), as long as it may be.

    Args:
        version: The version of the model.
        decided: The last decision about it, in a sentence.
        considered: What was considered for it: the facts of the gate; empty if that is gone.
        card: The card of the version; None if it has none.
    """
    lines = [decided, ""]
    for rule in considered.get("rules", ()):
        lines.append(f"- {rule['rule']}: is {rule['value']:.4f}, {MARKS[rule['passed']]}")
    # The card's own section about that would say it a second time.
    before, _, rest = (card or "").partition("## Decision of the gate")
    lines += ["", *considered.get("says", ()), "", before + rest[rest.find("\n## ") + 1 :]]
    text = "\n".join(lines)
    if len(text) <= LONGEST_DESCRIPTION:
        return text
    rest = f"\n\n(The rest is in the run's artifacts: `{place(version.package_digest)}`)"
    return text[: text.rindex("\n", 0, LONGEST_DESCRIPTION - len(rest))] + rest
