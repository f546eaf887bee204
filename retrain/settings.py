"""The settings of a project that are of no workload: `store`, `retention` and `schedule`."""

import os
import re
from pathlib import Path
from typing import Any, TypeVar

from pydantic import Field, ValidationError

from retrain.errors import UsageError
from retrain.logins import has_login
from retrain.workload.section import Section

REMOTE = "RETRAIN_STORE_REMOTE"  # wins over `store.remote` in the files; if empty, there is none
SCHEMES = ("s3", "gs", "file")

S = TypeVar("S", bound=Section)


class Retention(Section):
    """What `retrain maintain` keeps."""

    versions: int = Field(
        20,
        ge=1,
        description=(
            "How many of the newest versions of each model keep their package, besides those that "
            "were ever champion, have an alias, wait for approval, or were trained further."
        ),
    )
    days: int = Field(
        90,
        ge=1,
        description=(
            "How many days trials in MLflow, searches, results of drift, and reports are kept."
        ),
    )


class Schedule(Section):
    """What the runs of deployments do that a schedule or an event has started."""

    newest: bool = Field(
        True,
        description=(
            "Whether they take the newest commit of the upstream branch before they begin, if the "
            "clone has no local changes and no other run goes on."
        ),
    )


def store_remote(file: Path) -> str | None:
    """The URL of the object store behind the store; see `Project.store_remote`.

    Args:
        file: The file with the parameters.

    Raises:
        UsageError: It is no such URL, has a login, or the section `store` has another key.
    """
    place, url = REMOTE, os.environ.get(REMOTE)
    if url is None:
        tree = _section("store", file)
        if not isinstance(tree, dict) or tree.keys() - {"remote"}:
            raise UsageError(f"{file.name}: store: it has one key, remote.")
        place, url = f"{file.name}: store.remote", tree.get("remote")
    if not url:
        return None
    scheme, _, rest = str(url).partition("://")
    if scheme not in SCHEMES or not rest or has_login(str(url)):
        raise UsageError(
            f"{place}: write it as s3://bucket/prefix, gs://bucket/prefix or file:///folder, "
            "without a login: credentials belong into the environment (AWS_ACCESS_KEY_ID)."
        )
    return str(url).rstrip("/")


def retention(file: Path) -> Retention:
    """The section `retention`; see `Project.retention`, and `_read`."""
    return _read(Retention, "retention", file)


def schedule(file: Path) -> Schedule:
    """The section `schedule`; see `Project.schedule`, and `_read`."""
    return _read(Schedule, "schedule", file)


def _read(kind: type[S], name: str, file: Path) -> S:
    """Reads a section.

    Args:
        kind: What the section is read as.
        name: Its name.
        file: The file with the parameters.

    Raises:
        UsageError: A key or a value is wrong.
    """
    try:
        return kind.model_validate(_section(name, file))
    except ValidationError as error:
        fault = error.errors()[0]
        place = ".".join([name, *map(str, fault["loc"])])
        raise UsageError(f"{file.name}: {place}: {fault['msg']}.") from None


def _section(name: str, file: Path) -> Any:
    """A section of a file as it is written; without one, an empty mapping."""
    from ruamel.yaml import YAML

    text = file.read_text(encoding="utf-8") if file.exists() else ""
    # Only this section is parsed: it is asked for often, and the workloads are many lines.
    section = re.search(rf"^{name}:.*(?:\n(?:[ \t#].*)?)*", text, re.MULTILINE)
    return (YAML(typ="safe", pure=True).load(section[0])[name] or {}) if section else {}
