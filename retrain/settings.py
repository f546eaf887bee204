"""The setting of a project that is of no workload: `store.remote`."""

import os
import re
from pathlib import Path
from typing import Any

from retrain.errors import UsageError
from retrain.logins import has_login

REMOTE = "RETRAIN_STORE_REMOTE"  # wins over `store.remote` in the files; if empty, there is none
SCHEMES = ("s3", "gs", "file")


def store_remote(file: Path) -> str | None:
    """The URL of the object store behind the store; see `Project.store_remote`.

    Args:
        file: The file with the parameters.

    Raises:
        UsageError: It is no such URL, has a login, or the section `store` has another key.
    """
    place, url = REMOTE, os.environ.get(REMOTE)
    if url is None:
        tree = _store(file)
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


def _store(file: Path) -> Any:
    """The section `store` as it is written; without one, an empty mapping."""
    from ruamel.yaml import YAML

    text = file.read_text(encoding="utf-8") if file.exists() else ""
    # Only this section is parsed: it is asked for often, and the workloads are many lines.
    section = re.search(r"^store:.*(?:\n(?:[ \t#].*)?)*", text, re.MULTILINE)
    return (YAML(typ="safe", pure=True).load(section[0])["store"] or {}) if section else {}
