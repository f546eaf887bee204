"""The card of a version, and the description on MLflow's page that shows it."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from retrain import tracking
from retrain.project import Project
from retrain.registry.ledger import Entry
from retrain.registry.versions import ModelVersion

FOLDER = "card"  # of a run's artifacts, with the cards of the models that it trained
LONGEST_DESCRIPTION = 5000  # characters, of MLflow's column


def read(project: Project, version: ModelVersion) -> str | None:
    """The card of a version (Markdown); None for one that has none, because it is old.

    How fast it is comes last: that is measured after the card is written.
    """
    name = f"{FOLDER}/{version.package_digest}.md"
    with TemporaryDirectory() as folder:
        file = tracking.download_artifact(project, version.run_id, name, Path(folder))
        text = file.read_text(encoding="utf-8") if file else None
    if text is None or version.latency is None:
        return text
    return f"{text}\n## Speed\n\n{version.latency}.\n"


MARKS = {True: "passed", False: "**failed**", None: "cannot tell"}  # of a rule


def description(
    version: ModelVersion,
    entry: Entry,
    rules: Iterable[Mapping[str, Any]],
    card: str | None,
) -> str:
    """The description on MLflow's page of a version (Markdown), as long as it may be.

    Args:
        version: Of the model.
        entry: The last decision about it.
        rules: Those of the gate.
        card: Of the version; None if it has none.
    """
    why = f" ({entry.reason})" if entry.reason else ""
    lines = [f"**{entry.action.capitalize()}** on {entry.time[:10]}: {entry.verdict}{why}.", ""]
    for rule in rules:
        lines.append(f"- {rule['rule']}: is {rule['value']:.4f}, {MARKS[rule['passed']]}")
    if card is None:
        lines += ["", "| metric | test split |", "|---|---|"]
        values = sorted(version.metrics.items())
        lines += [f"| {metric} | {value:.4f} |" for metric, value in values]
        return "\n".join(lines)
    text = "\n".join([*lines, "", card])
    if len(text) <= LONGEST_DESCRIPTION:
        return text
    rest = f"\n\n(The rest is in the run's artifacts: `{FOLDER}/{version.package_digest}.md`)"
    return text[: text.rindex("\n", 0, LONGEST_DESCRIPTION - len(rest))] + rest
