"""Takes the packages of old versions out of the registry, and puts one back that was made again.

The record of such a version stays: its number, metrics and decisions, its card and its lineage. A
tag says when its package was removed. The tag comes first: after a kill, the next call does the
rest.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial

from retrain import artifacts, tracking
from retrain.project import Project
from retrain.registry import decisions, packages, versions
from retrain.registry.versions import REMOVED, ModelVersion
from retrain.remote_gc import Finding, Garbage

YOUNG = timedelta(days=1)  # a run of another machine may be about to promote it


def beyond(project: Project, name: str, newest: int) -> list[ModelVersion]:
    """The versions of a model that need no package any more, with those that have none.

    A version keeps it if it is one of the newest or of the last day, has an alias, was ever
    champion (a rollback may choose it), waits for approval, or has weights that another training
    started from.

    Args:
        project: The clone that the registry belongs to.
        name: The name of the model.
        newest: How many of the newest versions keep theirs.

    Raises:
        ValueError: The ledger cannot be trusted, so nobody knows what was champion.
    """
    if problem := decisions.fault(decisions.read(project, name)):
        raise ValueError(problem)
    ledger, registered = decisions.read(project, name), versions.every_of(project, name)
    kept = {entry.version for entry in ledger.entries if entry.appoints}
    kept |= {ledger.waiting.version} if ledger.waiting else set()
    starts = {version.start for version in registered}
    since = datetime.now(UTC) - YOUNG
    return [
        version
        for version in registered[newest:]
        if version.version not in kept
        and not version.aliases
        and version.weights not in starts
        and datetime.fromisoformat(version.created) < since
    ]


def findings(project: Project, old: Sequence[ModelVersion]) -> Iterator[Finding]:
    """What can go of versions that need no package any more.

    Args:
        project: The clone that the registry belongs to.
        old: The versions, of all models, as `beyond` gives them.
    """
    numbers = {(version.name, version.version) for version in old}
    needed = {  # a model that was trained under two names has one package
        (version.run_id, version.package_digest)
        for version in versions.every(project)
        if not version.removed and (version.name, version.version) not in numbers
    }
    for version in old:
        is_needed = (version.run_id, version.package_digest) in needed
        if is_needed or tracking.find_run(project, version.run_id) is None:
            continue
        places = packages.places(version)
        size = sum(artifacts.size_of(project, version.run_id, place) for place in places)
        if size or not version.removed:
            yield Garbage("version", version.title, size), partial(_remove, project, version)


def _remove(project: Project, version: ModelVersion) -> None:
    if not version.removed:
        client, now = tracking.client(project), datetime.now(UTC).isoformat(timespec="seconds")
        client.set_model_version_tag(version.name, str(version.version), REMOVED, now)
    for place in packages.places(version):
        artifacts.delete(project, version.run_id, place)


def put_back(project: Project, version: ModelVersion, there: Project, made: ModelVersion) -> None:
    """Puts the package of a version back, from another registry where it was made again.

    Args:
        project: The clone that the registry belongs to.
        version: A version whose package was removed.
        there: The clone with the other registry, whose artifacts are on this machine.
        made: The version with the same package there.
    """
    client, (package, example) = tracking.client(project), packages.places(version)
    run = tracking.client(there).get_run(made.run_id)
    folder = tracking.local_path(run.info.artifact_uri)
    assert folder
    client.log_artifacts(version.run_id, str(folder / package), package)
    client.log_artifact(version.run_id, str(folder / example), packages.EXAMPLES)
    client.delete_model_version_tag(version.name, str(version.version), REMOVED)
