"""What a version has among the artifacts of its training: its package and its card.

The package has the files that are served. The card and the last decision stand in the description
on MLflow's page of the version.
"""

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from retrain.file_io import replacing, sha256_of
from retrain.project import Project
from retrain.registry import tracking, versions
from retrain.registry.ledger import Entry
from retrain.registry.versions import ModelVersion

MODEL = "artifacts/model"  # the folder in a package with the files that `models.save` wrote
WEIGHTS = "model.safetensors"
EXAMPLES = "examples"  # the folder of the run's artifacts with what each package has to answer
REMEDY = (
    "Restore its files from a backup, or take another version: retrain rollback {name} --reason WHY"
)

LONGEST_DESCRIPTION = 5000  # characters, of MLflow's column
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


def download(project: Project, version: ModelVersion) -> Path:
    """Downloads a version's package to this machine, if it is not here yet.

    Returns:
        The package's folder, as `versions.register` received it.

    Raises:
        ValueError: The weights are missing, or are not those that were registered.
    """
    package = project.state / "champions" / version.package_digest
    if not _has_weights(package, version):
        shutil.rmtree(package, ignore_errors=True)  # a damaged copy
        package.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=package.parent) as place:
            fetched = fetch(project, version, Path(place))
            if not fetched.is_relative_to(place):
                package = fetched
            else:
                with replacing(package) as aside:
                    fetched.rename(aside)
    if not _has_weights(package, version):
        is_gone = not (package / MODEL / WEIGHTS).exists()
        fault = "are gone" if is_gone else "are not those that were registered"
        raise ValueError(
            f"The weights of {version.title} {fault}: {package}.\n"
            f"{REMEDY.format(name=version.name)}"
        )
    return package


def fetch(project: Project, version: ModelVersion, folder: Path) -> Path:
    """Takes a version's package from the registry, as it is there now.

    Args:
        project: The clone that the registry belongs to.
        version: The version of the model.
        folder: Where to download it to, if it is not on this machine.

    Returns:
        The package's folder; its files may be missing or changed.
    """
    client = tracking.client(project)
    uri = client.get_model_version_download_uri(version.name, str(version.version))
    if local := tracking.local_path(uri):
        return local
    from mlflow.artifacts import download_artifacts

    return Path(download_artifacts(uri, dst_path=str(folder), tracking_uri=project.tracking_uri))


def fault(project: Project, version: ModelVersion) -> str | None:
    """What a package lacks, and how to mend it; None if its files are there, with their sizes.

    They are not read, and only those on this machine are looked at.
    """
    source = tracking.read_model(project, version.name).versions[version.version].source
    if (folder := tracking.local_path(source)) is None:
        return None
    for name, size in versions.read_record(project, version)["files"].items():
        file = folder / name
        if file.is_file() and file.stat().st_size == size:
            continue
        what = "has another size than it was registered with" if file.is_file() else "is gone"
        remedy = REMEDY.format(name=version.name)
        return f"{version.title} cannot be served: {file} {what}. {remedy}"
    return None


def _has_weights(package: Path, version: ModelVersion) -> bool:
    file = package / MODEL / WEIGHTS
    return file.is_file() and sha256_of(file) == version.weights


def read_card(project: Project, version: ModelVersion) -> str | None:
    """The card of a version (Markdown); None if the run of its training is gone."""
    content = tracking.read_artifact(project, version.run_id, card_place(version.package_digest))
    return None if content is None else content.decode()


def card_place(package_digest: str) -> str:
    """The path of a card among the artifacts of the run that trained the model."""
    return f"card/{package_digest}.md"


def sentence(entry: Entry) -> str:
    """A decision in a sentence (Markdown), for MLflow's pages of the version and its run."""
    reason = entry.reason or VERDICTS.get(entry.verdict, entry.verdict)
    why = replace(entry, reason=reason).why
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
        found = rule.get("says") or f"is {rule['value']:.4f}"
        lines.append(f"- {rule['rule']}: {found}, {MARKS[rule['passed']]}")
    # The card's own section about that would say it a second time.
    before, _, rest = (card or "").partition("## Decision of the gate")
    lines += ["", *considered.get("says", ()), "", before + rest[rest.find("\n## ") + 1 :]]
    text = "\n".join(lines)
    if len(text) <= LONGEST_DESCRIPTION:
        return text
    rest = f"\n\n(The rest is in the run's artifacts: `{card_place(version.package_digest)}`)"
    return text[: text.rindex("\n", 0, LONGEST_DESCRIPTION - len(rest))] + rest
