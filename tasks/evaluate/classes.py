"""Refuses data that lacks a class of the model in production, before a model is trained on it.

The scores of such a model say nothing about the task of the champion: it would answer other names
to the same callers.
"""

from collections.abc import Mapping, Sequence

from retrain.errors import RejectedDataError
from retrain.registry import decisions
from retrain.step import Facts, Workspace, current_run, step
from retrain.store import Artifact
from retrain.workload import Gate
from tasks.data import image_table, package
from tasks.data.champion import Registered

SHOWN = 10  # of a list of classes


def compare_classes(validated: Artifact) -> Registered | None:
    """Finds the champion, and compares its classes with those of the data.

    Args:
        validated: The accepted images.

    Returns:
        The champion; None when there is none.

    Raises:
        RejectedDataError: The data lacks a class of the champion that `gate.may_drop` has not.
    """
    run = current_run()
    champion = decisions.champion(run.project, run.workload.name)
    if champion is None:
        return None
    registered = Registered(run.project, champion)
    if champion.classes != package.classes_digest(validated.facts["classes"]):
        compare(registered, validated)
    return registered


@step(
    name="compare_classes",
    inputs=("registry", "validate"),
    reads=("gate.may_drop",),
    libraries=("pyarrow",),
    hours=1,
    has_stage=False,
)
def compare(
    rules: Gate, registered: Registered, validated: Artifact, workspace: Workspace
) -> Facts:
    """Compares the classes of the data with those of a registered version.

    Returns:
        `dropped`, the classes that only the version has, and `added`, those that only the data has.

    Raises:
        RejectedDataError: The data lacks a class that is not in `rules.may_drop`.
    """
    theirs = package.classes_of(registered.package)
    ours = list(validated.facts["classes"])
    dropped = [name for name in theirs if name not in validated.facts["classes"]]
    gone = [name for name in dropped if name not in rules.may_drop]
    if gone:
        set_aside = image_table.images_per_class(validated.folder, image_table.SET_ASIDE)
        raise RejectedDataError(_refusal(registered, theirs, ours, gone, set_aside))
    return {"dropped": dropped, "added": [name for name in ours if name not in theirs]}


def _refusal(
    registered: Registered,
    theirs: Mapping[str, int | None],
    ours: Sequence[str],
    gone: Sequence[str],
    set_aside: Mapping[str, int],
) -> str:
    """The message with all that is needed to decide what was meant.

    Args:
        registered: The champion.
        theirs: Its classes, with the images that each had.
        ours: The classes of the data.
        gone: The classes that are missing in the data.
        set_aside: The bad images of each class.
    """
    champion = f"{registered.version.name} version {registered.version.version}"

    def images(name: str) -> str:
        then = theirs[name]
        before = "" if then is None else f"{then:,} images then, "
        bad = set_aside.get(name, 0)
        return f"{name} ({before}0 now{f', {bad:,} set aside' if bad else ''})"

    return "\n".join(
        (
            f"The data lacks {len(gone):,} of the {len(theirs):,} classes of {champion}, the "
            "champion, so the two are not compared.",
            f"- missing: {_shortened([images(name) for name in gone])}",
            f"- the champion's classes: {_shortened(list(theirs))}",
            f"- the data's classes: {_shortened(ours)}",
            "If this is meant: name the missing classes in gate.may_drop, or make the data a "
            "workload of its own in params.yaml, or run it under a name of its own with --as NAME.",
        )
    )


def _shortened(names: Sequence[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more:,} more" if more > 0 else "")
