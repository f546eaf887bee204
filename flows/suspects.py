"""The flow `suspects`: pull > validate > embed_with_champion > find_suspects.

retrain suspects vit

It finds what may be wrong in the data, and changes nothing: the report has the images, and
`retrain labels` takes corrections.
"""

import json

from rich.markup import escape

from flows.pages import publish
from flows.reports import documents
from flows.reports.training import DataReport
from flows.train import train
from retrain.errors import UsageError
from retrain.flow import steps_flow
from retrain.project import Project
from retrain.registry import versions
from retrain.runs import console
from retrain.runs.records import Document
from retrain.runs.run import Run, current_run
from retrain.step import Facts, Input
from tasks.data import review_list
from tasks.data.champion import RegisteredVersion, champion_ties
from tasks.pull.step import data_version, pull
from tasks.suspects.embeddings import embed_with_champion
from tasks.suspects.step import ENOUGH, FILE, find_suspects
from tasks.validate.step import validate


class SuspectsReport(DataReport):
    """The report of the flow `suspects`; `retrain.flow.Report` describes each method."""

    def document(self, run: Run) -> Document:
        """A run as JSON-able values; the parts of steps that did not run are None."""
        document: documents.Suspects = {**documents.of_run(run), "suspects": None, "model": None}
        if find_suspects.name not in run.artifacts:
            return dict(document)
        name, found = run.workload.name, run.artifacts[find_suspects.name]
        champion = versions.champion(run.project, name)
        file = f"suspects-{found.digest[:8]}.csv"  # another list has another name
        document["look"]["csv"] = f"{documents.REPORTS}/{name}/{file}"
        document["suspects"] = facts = dict(found.facts)
        document["model"] = champion.identity() if champion else None
        document["outcome"] = sentence(name, facts)
        return dict(document)

    def show(self, document: Document) -> None:
        """Shows the counts, and where the images are."""
        console.say(f"\n[bold]{escape(document['outcome'])}[/]")
        console.say_places(document)

    def write_page(self, project: Project, document: Document) -> None:
        """Writes the list for people who correct labels, and the page."""
        if document["suspects"] is not None:
            found = publish.outputs(project, document)[find_suspects.name]
            rows = json.loads((found.folder / FILE).read_bytes())
            review_list.write(rows, project.root / document["look"]["csv"])
        super().write_page(project, document)


@steps_flow(
    steps=(pull, validate, embed_with_champion, find_suspects),
    report=SuspectsReport(),
    version=data_version,
    other_steps=train.steps,
)
def suspects(version: Input) -> None:
    """Finds labels that are probably wrong, contradictions and outliers in a workload's data.

    Raises:
        UsageError: There is no champion.
        ValueError: It does not tell the embeddings of images; or the data cannot be read, or fails
            its checks.
    """
    run = current_run()
    name = run.workload.name
    champion = versions.champion(run.project, name)
    if champion is None:
        raise UsageError(
            f"{name} has no champion yet, by whose embeddings images are compared: retrain train "
            f"{name}"
        )
    data = pull(version)
    checked = validate(data, champion_ties())
    embedded = embed_with_champion(RegisteredVersion(run.project, champion).as_input, data, checked)
    find_suspects(checked, embedded)


def sentence(name: str, facts: Facts) -> str:
    """What was found in a workload's images, and how much would be.

    Args:
        name: The name of the workload.
        facts: Those of `find_suspects`.
    """
    said = (
        f"{name}: probably wrong labels {facts['wrong_labels']:,}, contradictory near-duplicates "
        f"{facts['contradictions']:,}, outliers {facts['outliers']:,}, of {facts['rows']:,} "
        f"images. The classifier is right about {facts['accuracy']:.1%} of images that it has not "
        f"seen, and would find about {facts['findable']:.0%} of the wrong labels."
    )
    if facts["can_tell"]:
        return said
    return f"{said} Below {ENOUGH:.0%} it cannot tell whether labels are wrong."
