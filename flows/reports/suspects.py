"""What the flow `suspects` tells of a run: how much is suspect, and where it is listed."""

import json

from rich.markup import escape

from flows.pages import publish
from flows.reports.training import DataReport
from retrain.project import Project
from retrain.registry import versions
from retrain.runs import console
from retrain.runs.records import Document
from retrain.runs.run import Run
from retrain.step import Facts
from retrain.store import Store
from tasks.data import review_list
from tasks.suspects.step import ENOUGH, FILE

STEP = "find_suspects"


class SuspectsReport(DataReport):
    """The report of the flow `suspects`; `retrain.flow.Report` describes each method."""

    def document(self, run: Run) -> Document:
        """A run as JSON-able values; the parts of steps that did not run are None."""
        base = self.base_document(run) | {"suspects": None, "model": None}
        if STEP not in run.artifacts:
            return base
        name = run.workload.name
        champion = versions.champion(run.project, name)
        file = f"suspects-{run.artifacts[STEP].digest[:8]}.csv"  # another list has another name
        base["look"] |= {"csv": f"{publish.FOLDER}/{name}/{file}"}
        facts = dict(run.artifacts[STEP].facts)
        document = base | {"suspects": facts, "model": champion and champion.identity()}
        return document | {"outcome": sentence(name, facts)}

    def show(self, document: Document) -> None:
        """Shows the counts, and where the images are."""
        console.say(f"\n[bold]{escape(document['outcome'])}[/]")
        console.say_places(document)

    def write_page(self, project: Project, document: Document) -> None:
        """Writes the list for people who correct labels, and the page."""
        if document["suspects"] is not None:
            steps = {step["step"]: step["key"] for step in document["steps"]}
            listed = Store.of(project).find(STEP, steps[STEP])
            assert listed
            rows = json.loads((listed.folder / FILE).read_bytes())
            review_list.write(rows, project.root / document["look"]["csv"])
        super().write_page(project, document)


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
