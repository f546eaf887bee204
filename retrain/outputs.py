"""The output of a step, its digests, and its plan, which has everything that it depends on."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from retrain.file_io import json_digest, sha256_of, write_json
from retrain.runs import console

Facts = dict[str, Any]

# The files below this folder of an output are for people. They may differ from run to run (times,
# pages) and are not part of the output's digest.
REPORT = "report"
MISSING = object()  # the value of a parameter that a plan does not have
MANIFEST = "manifest.json"  # of an output in the store; see `retrain/store.py`


@dataclass(frozen=True)
class Plan:
    """Everything that the output of a step depends on, known before it runs.

    Attributes:
        step: The step's name.
        config: The parameters that it reads, those with their default too, by dotted name.
        inputs: The digests of its inputs, or of what it reads of them, by the step they come from.
        code: The digests of the modules that it runs, by dotted name.
        libraries: The versions of the libraries that change the output.
    """

    step: str
    config: Mapping[str, Any]
    inputs: Mapping[str, str]
    code: Mapping[str, str]
    libraries: Mapping[str, str]

    @property
    def key(self) -> str:
        """SHA-256 (hex) over the attributes; no time, path, host or environment."""
        return json_digest(asdict(self))

    @property
    def definition(self) -> str:
        """SHA-256 (hex) over the same values as the key, but without the inputs."""
        return json_digest(asdict(self) | {"inputs": {}})


def read_plan(path: Path) -> Plan | None:
    """The plan that a file holds; None if there is none, or the file is damaged."""
    try:
        return Plan(**json.loads(path.read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def difference(previous: Plan, current: Plan) -> str:
    """Describes what changed between two plans of a step: `train.lr 0.001 -> 0.0005`."""
    changes = [
        f"{name} {_show(previous.config.get(name))} -> {_show(current.config.get(name))}"
        for name in sorted({*previous.config, *current.config})
        if previous.config.get(name, MISSING) != current.config.get(name, MISSING)
    ]
    changes += [
        f"{name} has a new output" if name != "data" else "the data changed"
        for name in current.inputs
        if previous.inputs.get(name) != current.inputs[name]
    ]
    code = [
        name
        for name in sorted({*previous.code, *current.code})
        if previous.code.get(name) != current.code.get(name)
    ]
    if code:
        changes.append(f"code of {' and '.join(code)}")
    changes += [
        f"{name} {_show(previous.libraries.get(name))} -> {_show(current.libraries.get(name))}"
        for name in sorted({*previous.libraries, *current.libraries})
        if previous.libraries.get(name) != current.libraries.get(name)
    ]
    return ", ".join(changes)


def _show(value: Any) -> str:
    return "unset" if value is None else str(value)


@dataclass(frozen=True)
class Artifact:
    """A finished output of a step.

    Attributes:
        step: The step's name.
        key: The key of the plan that made it.
        digest: SHA-256 (hex) over its files, without those in `report/`, and its facts.
        folder: The folder of its files; the empty path for a task, which leaves none.
        facts: A few values that later steps need; the same for the same key.
        provenance: How it was made: `run` (Prefect flow run, or `dvc`), `time` (ISO 8601, UTC),
            `seconds`, `commit`, what was `uncommitted` (`Project.uncommitted`), `workload`, and on
            which `machine` (`retrain.hardware.machine`).
    """

    step: str
    key: str
    digest: str
    folder: Path
    facts: Mapping[str, Any]
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, step: str, key: str, folder: Path, manifest: Mapping[str, Any]) -> "Artifact":
        """Makes the record of an output from its manifest."""
        return cls(step, key, manifest["digest"], folder, manifest["facts"], manifest["provenance"])


def digest_of_output(facts: Mapping[str, Any], files: Sequence[Mapping[str, Any]]) -> str:
    """SHA-256 (hex) over an output's facts and its files, as `list_files` gives them.

    Files in `report/` do not count.
    """
    contents = {
        file["path"]: file["sha256"] for file in files if not file["path"].startswith(f"{REPORT}/")
    }
    return json_digest({"facts": facts, "files": contents})


def parse_manifest(content: bytes, key: str) -> dict[str, Any] | None:
    """Reads a manifest; None if it is not that of the key, or was changed.

    Raises:
        ValueError, KeyError, TypeError: It is no manifest.
    """
    manifest: dict[str, Any] = json.loads(content)
    del content  # of a million files, 170 MB
    paths = [file["path"] for file in manifest["files"]]
    is_consistent = (
        manifest["digest"] == digest_of_output(manifest["facts"], manifest["files"])
        and Plan(**manifest["plan"]).key == key
        and "run" in manifest["provenance"]
        # What others can write to must not decide where files are written here.
        and not any(path.startswith("/") or ".." in path.split("/") for path in paths)
    )
    return manifest if is_consistent else None


def write_manifest(
    folder: Path, plan: Plan, facts: Facts, provenance: Mapping[str, Any]
) -> dict[str, Any]:
    """Writes the manifest of an output, which is the last of its files; returns it.

    Args:
        folder: The output.
        plan: The plan of the step.
        facts: What the step has returned.
        provenance: Where the output comes from, as `Artifact` has it, without the time.
    """
    files = list_files(folder)
    facts = json.loads(json.dumps(facts))  # as later runs see them
    now = datetime.now(UTC).isoformat(timespec="seconds")
    manifest = {
        "digest": digest_of_output(facts, files),
        "facts": facts,
        "provenance": {**provenance, "time": now},
        "plan": asdict(plan),
        "files": files,
    }
    write_json(folder / MANIFEST, manifest)
    return manifest


def list_files(folder: Path) -> list[dict[str, Any]]:
    """Every file below a folder: path (relative, `/`), bytes and sha256 (hex), in order."""
    paths = (f"{place}/{name}" for place, _, names in os.walk(folder) for name in names)
    sizes = {path: os.stat(path).st_size for path in sorted(paths)}  # noqa: PTH116  millions
    with console.counted("hashing", sum(sizes.values()), "bytes") as show:
        return [
            {
                "path": path.removeprefix(f"{folder}/"),
                "bytes": size,
                "sha256": sha256_of(path, show),
            }
            for path, size in sizes.items()
        ]


@dataclass(frozen=True)
class Outcome:
    """The outcome of a step in a run.

    Attributes:
        step: The name of the step.
        cached: Whether the output was in the store.
        why: Why the step ran, or which run made its output.
        seconds: How long the run waited for it.
        key: The key of its plan.
        definition: The definition of its plan, which does not depend on the inputs.
        digest: The digest of its output.
        path: The folder of its output; None for a task, which leaves no files.
    """

    step: str
    cached: bool
    why: str
    seconds: float
    key: str
    definition: str
    digest: str
    path: str | None
