"""The output of a step: a folder with a manifest, published whole or not at all."""

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

from retrain import atomic
from retrain.project import Project
from retrain.step import REPORT, Input, Plan, Step, Workspace, digest_of
from retrain.workload import Workload

MANIFEST = "manifest.json"
RESULT = "result.json"  # Prefect's own record of the task, beside our manifest


@dataclass(frozen=True)
class Artifact:
    """A finished output of a step.

    Attributes:
        step: The step's name.
        key: The key of the plan that made it.
        digest: SHA-256 (hex) over its files, without those in `report/`, and its facts.
        folder: Where its files are; the empty path for a step that leaves none.
        facts: A few things about it that later steps need; the same for the same key.
        made: When and by whom: `run` (Prefect flow run), `time` (ISO 8601, UTC), `seconds`,
            `commit`, `workload`.
    """

    step: str
    key: str
    digest: str
    folder: Path
    facts: Mapping[str, Any]
    provenance: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Store:
    """The artifacts of one project, by step and key: `<root>/<step>/<key>/`."""

    root: Path

    def folder(self, step: str, key: str) -> Path:
        """Where an artifact lies, or would."""
        return self.root / step / key

    def find(self, step: str, key: str) -> Artifact | None:
        """The artifact with a key; None when there is none, or `damage` finds fault with it."""
        if self.damage(step, key):
            return None
        folder = self.folder(step, key)
        manifest = json.loads((folder / MANIFEST).read_text())
        return Artifact(
            step, key, manifest["digest"], folder, manifest["facts"], manifest["provenance"]
        )

    def damage(self, step: str, key: str) -> str | None:
        """Says what is wrong with an artifact by the names and sizes of its files, or None."""
        folder = self.folder(step, key)
        try:
            files = json.loads((folder / MANIFEST).read_text())["files"]
        except FileNotFoundError:
            return "its artifact is gone"
        except (ValueError, KeyError):
            return f"its {MANIFEST} cannot be read"
        for file in files:
            path = folder / file["path"]
            if not path.is_file():
                return f"{file['path']} is gone"
            if path.stat().st_size != file["bytes"]:
                return f"{file['path']} has changed its size"
        return None

    def discard(self, step: str, key: str) -> None:
        """Takes an artifact out of the store."""
        folder = self.folder(step, key)
        if folder.exists():
            # Renamed first: a reader sees all of it or nothing.
            doomed = folder.with_name(f".{key}.discarded")
            shutil.rmtree(doomed, ignore_errors=True)
            folder.rename(doomed)
            shutil.rmtree(doomed)

    @contextmanager
    def lock(self, step: str, key: str) -> Iterator[None]:
        """Holds the one lock on a key, so that two runs that want it do the work once."""
        from filelock import FileLock

        folder = self.root / step
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / f".{key}.lock"):
            yield

    def scratch(self, step: str, key: str) -> Path:
        """A folder that survives a kill, for a step's checkpoints."""
        folder = self.root / "scratch" / step / key
        folder.mkdir(parents=True, exist_ok=True)
        return folder


@dataclass(frozen=True)
class RunContext:
    """In which run an artifact is made: the Prefect flow run, or `dvc`."""

    run: str
    project: Project


def make(
    store: Store,
    step: Step,
    plan: Plan,
    workload: Workload,
    inputs: Sequence[Input],
    context: RunContext,
    *,
    refresh: bool = False,
) -> Artifact:
    """Takes a step's output from the store, or runs the step and publishes it there.

    Args:
        store: Where it is kept.
        step: What to run.
        plan: What the output depends on.
        workload: Given to the step in sections.
        inputs: The outputs of the steps that it names as its inputs.
        context: Which run this is.
        refresh: Run it even if the store has it.

    Raises:
        ValueError: As the step does. The store is then as it was.
    """
    with store.lock(step.name, plan.key):
        found = None if refresh else store.find(step.name, plan.key)
        if found:
            return found
        folder = store.folder(step.name, plan.key)
        partial = folder.with_name(f".{plan.key}.partial")
        shutil.rmtree(partial, ignore_errors=True)  # of a run that was killed
        partial.mkdir()
        scratch = store.scratch(step.name, plan.key)
        try:
            workspace = Workspace(partial, scratch, plan.key, workload.name, context.project)
            write(step, plan, workload, inputs, workspace, context)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        store.discard(step.name, plan.key)
        partial.rename(folder)
        shutil.rmtree(scratch, ignore_errors=True)
    made = store.find(step.name, plan.key)
    assert made is not None
    return made


def record(
    step: Step, plan: Plan, workload: Workload, inputs: Sequence[Input], context: RunContext
) -> dict[str, Any]:
    """Runs a step that leaves no files, such as one that asks the registry.

    Returns:
        The fields of its artifact: step, key, digest, facts, made.

    Raises:
        ValueError: As the step does.
    """
    with TemporaryDirectory() as folder:
        workspace = Workspace(Path(folder), Path(folder), plan.key, workload.name, context.project)
        manifest = write(step, plan, workload, inputs, workspace, context)
    return {"step": step.name, "key": plan.key} | {
        name: manifest[name] for name in ("digest", "facts", "provenance")
    }


def write(
    step: Step,
    plan: Plan,
    workload: Workload,
    inputs: Sequence[Input],
    workspace: Workspace,
    context: RunContext,
) -> dict[str, Any]:
    """Runs a step in a workspace and writes the manifest, last, into its folder.

    Returns:
        The manifest.

    Raises:
        ValueError: As the step does.
    """
    began = monotonic()
    facts = step.run(workload, inputs, workspace)
    files = list_files(workspace.folder)
    contents = {
        file["path"]: file["sha256"] for file in files if not file["path"].startswith(f"{REPORT}/")
    }
    manifest = {
        "digest": digest_of({"facts": facts, "files": contents}),
        "facts": facts,
        "provenance": {
            "run": context.run,
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "seconds": round(monotonic() - began, 3),
            "commit": context.project.commit(),
            "workload": workload.name,
        },
        "plan": asdict(plan),
        "files": files,
    }
    write_json(workspace.folder / MANIFEST, manifest)
    return manifest


def list_files(folder: Path) -> list[dict[str, Any]]:
    """Every file below a folder: path (relative, `/`), bytes and sha256 (hex), in order."""
    listed = []
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            name = path.relative_to(folder).as_posix()
            listed.append({"path": name, "bytes": path.stat().st_size, "sha256": sha256})
    return sorted(listed, key=lambda file: str(file["path"]))


def write_json(path: Path, value: Any) -> None:
    """Writes a record of Retrain's own as JSON; the steps format their outputs themselves."""
    atomic.write_text(path, json.dumps(value, indent=1, sort_keys=True) + "\n")
