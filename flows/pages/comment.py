"""The comment of a run on a pull request, in the Markdown of GitHub and GitLab: one screen."""

from collections.abc import Mapping

from flows.pages import publish, training
from retrain.project import Project
from retrain.runs.records import Document
from retrain.store import Artifact

# The class, its images in the champion's data and in the run's, its recall by both models.
ClassRow = tuple[str, int | None, int | None, float | None, float | None]


def render(project: Project, document: Document) -> str:
    """The comment of a run, which may have failed at any step.

    What the store or the registry no longer has is left out.

    Args:
        project: The clone.
        document: Of a run of a flow with steps.
    """
    made = publish.outputs(project, document)
    before = training.champion_record(project, document).get("validation", {})
    return publish.render(
        "comment.md",
        {
            "document": document,
            "before": before,
            "classes": changed_classes(made, before.get("classes", {})),
        },
    )


def changed_classes(made: Mapping[str, Artifact], before: Mapping[str, int]) -> list[ClassRow]:
    """The classes whose images or recall are not the champion's; those that lose most come first.

    Args:
        made: The outputs of the run's steps.
        before: The number of images by class in the champion's data; empty without a champion.
    """
    if not before or "validate" not in made:
        return []
    now = made["validate"].facts["classes"]
    old, new = (_recalls(made.get(step)) for step in ("evaluate_champion", "evaluate"))
    rows: list[ClassRow] = [
        (label, before.get(label), now.get(label), old.get(label), new.get(label))
        for label in {**before, **now}
        if (before.get(label), old.get(label)) != (now.get(label), new.get(label))
    ]
    return sorted(rows, key=lambda row: (row[4] or 0.0) - (row[3] or 0.0))


def _recalls(scores: Artifact | None) -> dict[str, float]:
    """The recall of each class with test images; empty if the model was not evaluated."""
    if scores is None:
        return {}
    answers = training.read_answers(scores)
    is_right = answers.prediction == answers.label
    return dict(is_right.groupby(answers.label).mean())
