"""Scores the champion and the reference on the challenger's test split, as they are served.

The champion is the model in production, and the reference is the best model so far. A model's own
package classifies the images, with its own code, image size and precision. It gets the encoded
images that a caller would send, and its predictions are counted like the challenger's.

Before that, data that lacks a class of the champion is refused: a model that is trained on such
data has another task than the champion, and would give other answers to the same callers.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from rich.markup import escape

from retrain.errors import RejectedDataError
from retrain.project import Project
from retrain.registry import decisions, packages, versions
from retrain.registry.ledger import LONGEST_REASON, Decision
from retrain.registry.versions import ModelVersion
from retrain.runs import console
from retrain.runs.run import current_run
from retrain.step import Facts, Input, Step, Workspace, json_digest, step
from retrain.store import Artifact, Store, refuse_damaged
from retrain.workload import Gate
from tasks.compute.scoring_client import as_matrix, classify
from tasks.data import image_table, package as packaged, predictions
from tasks.data.champion import RegisteredVersion, ScoredVersion
from tasks.data.image_facts import image_id
from tasks.data.metrics import summarise
from tasks.data.raw_images import open_images, places_of

SPLIT = "test"
SHOWN = 10  # of a list of classes


def compare_classes(validated: Artifact) -> RegisteredVersion | None:
    """Finds the champion, and compares its classes with those of the data; tells what differs.

    Args:
        validated: The accepted images.

    Returns:
        The champion; None when there is none.

    Raises:
        RejectedDataError: The data lacks a class of the champion that `gate.may_drop` has not.
    """
    run = current_run()
    champion = versions.champion(run.project, run.workload.name)
    if champion is None:
        return None
    registered, classes = RegisteredVersion(run.project, champion), validated.facts["classes"]
    if champion.classes != packaged.classes_digest(classes):
        known = packaged.classes_of(registered.package)
        gone = refuse_missing(run.workload.gate, champion.title, known, classes)
        changes = {"new": [name for name in classes if name not in known], "gone": gone}
        sentences = [
            f"{_shortened(names)} {'is' if len(names) == 1 else 'are'} {what}"
            for what, names in changes.items()
            if names
        ]
        differ = f"The classes are not those of {champion.title}, the champion"
        run.warn(f"{differ}: {', and '.join(sentences)}.")
    return registered


def refuse_missing(
    rules: Gate, champion: str, known: Mapping[str, int], classes: Mapping[str, int]
) -> list[str]:
    """Refuses data that lacks a class of the champion which it may not lack.

    Args:
        rules: Has the classes that may go.
        champion: The name of the champion for people.
        known: Its classes, with the images that each had.
        classes: Those of the data.

    Returns:
        The classes that only the champion has.

    Raises:
        RejectedDataError: One of them is not in `rules.may_drop`.
    """
    gone = [name for name in known if name not in classes]
    if missing := [name for name in gone if name not in rules.may_drop]:
        images = [f"{name} ({known[name]:,})" for name in missing]
        raise RejectedDataError(
            f"The data lacks {len(missing):,} of the {len(known):,} classes of {champion}, the "
            "champion, so the two are not compared.\n"
            f"- missing, with the images then: {_shortened(images)}\n"
            f"- the champion's classes: {_shortened(list(known))}\n"
            f"- the data's classes: {_shortened(list(classes))}\n"
            "If this is meant: name the missing classes in gate.may_drop, or make the data a "
            "workload of its own in params.yaml, or run it under a name of its own with --as NAME."
        )
    return gone


def _shortened(names: Sequence[str]) -> str:
    hidden = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {hidden:,} more" if hidden > 0 else "")


def learnt_test_images(validated: Artifact) -> str | None:
    """A sentence if the champion has learnt some of the test images; None if none, or unknown.

    Args:
        validated: The output of `validate`.
    """
    run = current_run()
    champion = versions.champion(run.project, run.workload.name)
    file = champion and predictions.learnt_images(run.project, champion)
    if not (champion and file):
        return None
    refuse_damaged(run.store, validated)
    test = image_table.read_split(validated.folder, SPLIT, columns=["pixels", "tie"])
    images = np.array([image_id(each) for each in test["pixels"].to_pylist()], "<u8")
    learnt = np.load(file, allow_pickle=False)
    count = int(predictions.are_learnt(images, test["tie"].to_numpy(), learnt).sum())
    if not count:
        return None
    starts = run.workload.train.init == "champion"
    why = " The model starts from it: its own metrics on these are too good." if starts else ""
    return (
        f"{champion.title}, the champion, was trained on {count:,} of the {len(test):,} test "
        "images, or on images of their groups: these have changed their split since. The "
        f"comparison leaves them out.{why}"
    )


def score_ahead(pulled: Artifact, validated: Artifact, training: str) -> None:
    """Scores the champion and the reference before a training, as `score_opponents` does after it.

    So a model that does not answer is found before the training costs anything, and the scores are
    in the store when the challenger has been evaluated. If the training would make the champion
    again, nothing is scored.

    Args:
        pulled: The data, as pulled.
        validated: The output of `validate`: the images that are used, and their splits.
        training: The key of the training.

    Raises:
        ValueError: The champion does not answer, or the data lacks a class of it.
    """
    run = current_run()
    champion = versions.champion(run.project, run.workload.name)
    if champion and champion.train_key != training:
        score_opponents(pulled, validated, None)


def score_opponents(
    pulled: Artifact, validated: Artifact, scores: Artifact | None
) -> tuple[ScoredVersion | None, ScoredVersion | None]:
    """Finds the champion and the reference, and scores them on the challenger's test split.

    A reference that does not answer is set aside.

    Args:
        pulled: The data, as pulled.
        validated: The output of `validate`: the images that are used, and their splits.
        scores: The challenger's evaluation; None before there is one.

    Returns:
        The champion, None when there is none; and the reference, None when there is none, or it is
        the champion, or it was set aside.

    Raises:
        RejectedDataError: The data lacks a class of the champion.
        ValueError: The champion does not answer, or is not there.
    """
    champion = compare_classes(validated)
    if champion is None:
        return None, None
    project, name = current_run().project, current_run().workload.name
    if fault := packages.fault(project, champion.version):
        raise ValueError(fault)
    reference = None
    try:
        reference = versions.reference(project, name)
    except ValueError as error:
        current_run().warn(
            f"{name} {error}. That is the reference, the best version so far; models are compared "
            "with the champion alone. To have another one, move the alias in MLflow."
        )
    try:
        of_champion = _scored(evaluate_champion, champion, pulled, validated, scores)
    except ValueError as error:
        raise ValueError(
            f"{error}\nThat is the champion, and a model is promoted only after a comparison with "
            f"it. Make an earlier version champion: retrain rollback {name} --reason '...'"
        ) from error
    if reference is None or reference.broken or reference.version == champion.version.version:
        return of_champion, None
    try:
        registered = RegisteredVersion(project, reference)
        return of_champion, _scored(evaluate_reference, registered, pulled, validated, scores)
    except ValueError as error:
        _set_aside(project, reference, champion.version.version, str(error))
        return of_champion, None


def _scored(
    evaluation: Step,
    registered: RegisteredVersion,
    pulled: Artifact,
    validated: Artifact,
    scores: Artifact | None,
) -> ScoredVersion:
    """The scores of a registered version; the challenger's if both have the same package."""
    if scores and registered.version.package_digest == scores.facts["package"]:
        return ScoredVersion(registered, scores)
    return ScoredVersion(registered, evaluation(registered.as_input, pulled, validated))


def _set_aside(project: Project, reference: ModelVersion, champion: int, why: str) -> None:
    """Marks a reference that does not answer, so that no model is compared with it any more."""
    reason = why[:LONGEST_REASON]
    decision = Decision("set aside", reference.version, champion, "does not answer", reason=reason)
    decisions.apply(project, reference, decision)
    versions.mark_broken(project, reference, why)
    console.say(
        escape(
            f"{why}\nThat is the reference, the best version so far. It is set aside: the next "
            "version that is better than the champion takes its place. To have it back, delete the "
            f"tag retrain.broken of {reference.name} version {reference.version} in MLflow."
        )
    )


def digest_of_input(source: Artifact | Input) -> str:
    """The digest of an input; of `validate` that of the test images and of the classes alone."""
    if isinstance(source, Input):
        return source.digest
    return json_digest([source.facts["test_rows"], sorted(source.facts["classes"])])


@step(
    inputs=("registry", "pull", "validate"),
    not_in_key=("pull",),
    digest_of_input=digest_of_input,
    # The champion runs with those installed here, whatever it was registered with.
    libraries=("mlflow", "numpy", "pandas", "pillow", "pyarrow", "torch", "transformers"),
)
def evaluate_champion(
    registered: RegisteredVersion,
    pulled: Artifact,
    validated: Artifact,
    workspace: Workspace,
) -> Facts:
    """Predicts the test split with a registered version and measures the predictions.

    Writes `predictions.parquet`. A run that was killed goes on with the missing answers, which are
    in the scratch folder.

    Returns:
        `metrics`, by name; `package`, the identity of the package.

    Raises:
        DamagedArtifactError: The test images are not those that were checked.
        ValueError: The version's files were changed; it does not load or answer, or refuses an
            image; or an image has changed since it was checked.
    """
    try:
        _classify(registered, pulled, validated, workspace)
    except Exception as error:
        # Not all of them is in the key, so nobody else may have checked them.
        for source in (pulled, validated):
            refuse_damaged(Store.of(workspace.project), source)
        if isinstance(error, ValueError):
            title = registered.version.title
            raise ValueError(f"{title} cannot be compared with: {error}") from error
        raise
    tally = predictions.read(workspace.folder).tally(image_table.class_names(validated.folder))
    return {"metrics": summarise(tally), "package": registered.version.package_digest}


def _classify(
    registered: RegisteredVersion, pulled: Artifact, validated: Artifact, workspace: Workspace
) -> None:
    """Classifies the test split with a package, and writes the predictions."""
    if image_table.digest_of_split(validated.folder, SPLIT) != validated.facts["test_rows"]:
        raise ValueError("The list of the test images has changed since it was made.")
    images = image_table.read_split(validated.folder, SPLIT)
    package, files, places = registered.package, open_images(pulled), places_of(images)
    with console.counted(registered.version.title, len(images)) as show:
        answered = classify(package, files, places, workspace.scratch, show)
        labels, file = [*packaged.classes_of(package)], workspace.folder / predictions.FILE
        predictions.write(images, _checked(images, answered), labels, file)


def _checked(images: pa.Table, answered: Iterable[pa.Table]) -> Iterator[NDArray[np.float32]]:
    """The probabilities, if each answer is for the image that was checked."""
    first = 0
    for answers in answered:
        expected = images.slice(first, len(answers)).select(["path", "sha256"]).to_pylist()
        first += len(answers)
        read = answers.select(["sha256", "error"]).to_pylist()
        for image, answer in zip(expected, read, strict=True):
            if answer["sha256"] not in (None, image["sha256"]):
                raise ValueError(f"{image['path']} has changed since it was checked.")
            if answer["error"] is not None:
                raise ValueError(f"{image['path']}: {answer['error']}")
        yield as_matrix(answers, "probabilities")


evaluate_reference = replace(evaluate_champion, name="evaluate_reference")
