"""One step with DVC as the runner: what `dvc.yaml` calls.

    python -m tasks preprocess vit

The step's files go to `build/<workload>/<step>/`, with a `record.json` that names the output by its
digest; later steps read the records. It is the same function as in the flow, so the bytes are the
same.
"""

import argparse
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from retrain.errors import UsageError
from retrain.project import Project, find_project
from retrain.step import Input, Step, Workspace, plan
from retrain.store import MANIFEST, Artifact, RunContext, Store, make, write, write_json
from retrain.workload import Workload, load_workload
from tasks.evaluate.champion import score_champion
from tasks.evaluate.step import STEP as EVALUATE
from tasks.gate.step import STEP as GATE
from tasks.preprocess.step import STEP as PREPROCESS
from tasks.promote.step import STEP as PROMOTE
from tasks.pull.step import STEP as PULL, data_version
from tasks.train.step import STEP as TRAIN
from tasks.validate.step import STEP as VALIDATE

RECORD = "record.json"
STEPS = {step.name: step for step in (PULL, VALIDATE, PREPROCESS, TRAIN, EVALUATE, GATE, PROMOTE)}


@dataclass(frozen=True)
class Build:
    """The folder that DVC's stages of one workload write to.

    As a runner of steps (`retrain.runs.runner.Runner`) it makes what DVC has no stage for, the
    champion's evaluation, in the store.
    """

    workload: Workload
    context: RunContext

    @property
    def project(self) -> Project:
        """The clone that this is the build folder of."""
        return self.context.project

    def folder(self, step: str) -> Path:
        """Where a step's files are."""
        return self.project.root / "build" / self.workload.name / step

    def output(self, step: str) -> Artifact:
        """What an earlier stage made.

        Raises:
            UsageError: The stage has not been run.
        """
        path = self.folder(step) / RECORD
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise UsageError(
                f"{step} has made nothing for {self.workload.name} yet: "
                f"dvc repro {step}@{self.workload.name}"
            ) from None
        return Artifact(step, fields["key"], fields["digest"], path.parent, fields["facts"])

    def run(self, step: Step) -> None:
        """Runs a step and writes its record, last.

        Raises:
            ValueError: As the step does.
        """
        inputs = [self._input(name) for name in step.inputs]
        now = plan(step, self.workload, inputs)
        folder = self.folder(step.name)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        scratch = Store(self.project.store).scratch(step.name, now.key)
        workspace = Workspace(folder, scratch, now.key, self.workload.name, self.project)
        try:
            manifest = write(step, now, self.workload, inputs, workspace, self.context)
        except BaseException:
            shutil.rmtree(folder)
            raise
        (folder / MANIFEST).unlink()  # times and commits: DVC would call every output a new one
        record = {"step": step.name, "key": now.key} | {k: manifest[k] for k in ("digest", "facts")}
        write_json(folder / RECORD, record)
        shutil.rmtree(scratch)

    def __call__(
        self, step: Step, *inputs: Input, workload: Workload | None = None, of: str = ""
    ) -> Artifact:
        """Takes a step's output from the store, or makes it there."""
        workload = workload or self.workload
        now = plan(step, workload, inputs)
        return make(Store(self.project.store), step, now, workload, inputs, self.context)

    def _input(self, name: str) -> Input:
        special: dict[str, Callable[[], Input]] = {
            "data": lambda: data_version(self.workload.data, self.project),
            "champion": lambda: score_champion(
                self, *map(self.output, ("pull", "validate", "evaluate"))
            ),
        }
        return special[name]() if name in special else self.output(name)


def main() -> int:
    """Runs the step that the command line names.

    Returns:
        The exit code: 0 success, 1 a step that failed, 2 wrong usage.
    """
    parser = argparse.ArgumentParser(prog="python -m tasks", description=__doc__.splitlines()[0])
    parser.add_argument("step", choices=STEPS)
    parser.add_argument("workload")
    options = parser.parse_args()
    try:
        project = find_project()
        workload = load_workload(project.params, options.workload)
        Build(workload, RunContext("dvc", project)).run(STEPS[options.step])
    except ValueError as error:
        print(f"{options.step}: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
