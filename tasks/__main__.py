"""Runs one step for DVC; `dvc.yaml` calls this program.

    python -m tasks preprocess vit

The step's files go to `build/<workload>/<step>/`, with a `record.json` that names the output by its
digest; later steps read the records. The output is taken from the store, or made there by the same
function as in the flow, so the bytes are the same and the two runners share the work. The last step
shows the metrics and the verdict, as a run of the flow does. In an experiment of DVC it promotes
nothing.
"""

import argparse
import json
import os
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.markup import escape

from retrain import preflight, roots
from retrain.atomic import write_json
from retrain.errors import UsageError
from retrain.execute import get_or_run, run_uncached
from retrain.messages import message_of
from retrain.outputs import MANIFEST, digest_of_output, list_files
from retrain.params import load_workload
from retrain.project import Project, find_project
from retrain.runs import console
from retrain.step import Input, Step, plan
from retrain.store import Artifact, RunContext, Store
from retrain.verify import Verifier, retry_damaged
from retrain.workload import Workload
from tasks.data.champion import Opponents
from tasks.data.embeddings import prepared_by
from tasks.data.slices import Slices
from tasks.embed.step import STEP as EMBED
from tasks.evaluate.champion import score_ahead, score_opponents
from tasks.evaluate.classes import compare_classes
from tasks.evaluate.step import STEP as EVALUATE
from tasks.gate.comparison import compare_with
from tasks.gate.step import STEP as GATE
from tasks.preprocess.step import STEP as PREPROCESS
from tasks.promote import outcome
from tasks.promote.step import STEP as PROMOTE, Intent
from tasks.pull.step import STEP as PULL, data_version
from tasks.slice.step import score_slices, slice_test_split
from tasks.train.start import find_start
from tasks.train.step import STEP as TRAIN
from tasks.validate.step import STEP as VALIDATE

RECORD = "record.json"
EXPERIMENT = "DVC_EXP_NAME"  # which `dvc exp run` sets for its stages, and `dvc repro` does not
ORDER = (PULL, VALIDATE, PREPROCESS, EMBED, TRAIN, EVALUATE, GATE, PROMOTE)
STEPS = {step.name: step for step in ORDER}


@dataclass(frozen=True)
class Build:
    """The folder that DVC's stages of one workload write to.

    As a runner of steps (`retrain.runs.runner.Runner`) it also makes the champion's evaluation and
    the slices in the store; DVC has no stages for them.
    """

    workload: Workload
    context: RunContext

    @property
    def project(self) -> Project:
        """The clone with this build folder."""
        return self.context.project

    @property
    def store(self) -> Store:
        """The store of the outputs."""
        return Store(self.project.store)

    @property
    def promotes(self) -> bool:
        """Whether what passes becomes champion: not in an experiment, which is a trial."""
        return EXPERIMENT not in os.environ

    def folder(self, step: str) -> Path:
        """The folder with a step's files."""
        return self.project.root / "build" / self.workload.name / step

    def output(self, step: str) -> Artifact:
        """The output of an earlier stage.

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
        """Runs a step, or takes its output from the store, and writes its record at the end.

        Each workload has all stages; of a step that it does not need there is an empty record.

        Raises:
            DamagedArtifactError: An artifact in the store was damaged, and has been removed.
            ValueError: As the step does.
        """
        folder = self.folder(step.name)
        if not step.needed(self.workload):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            write_json(folder / RECORD, {"step": step.name})
            return
        with self.store.holding(self.context.run):
            inputs = [self._input(name) for name in step.inputs_for(self.workload)]
            now = plan(step, self.workload, inputs)
            if step is TRAIN and self.store.find(step.name, now.key) is None:
                score_ahead(self, self.output("pull"), self.output("validate"), now.key)
            if step.cached:
                made = self(step, *inputs)
                if step is VALIDATE:  # before hours of training, and again before the gate
                    compare_classes(self, made)
                    slice_test_split(self, self.output("pull"), made)
            else:
                made = run_uncached(step, now, self.workload, inputs, self.context, self._check)
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            if step.cached:
                Verifier(self.store).check([made])
                _copy_output(made.folder, folder)
        record = {
            "step": step.name,
            "key": made.key,
            "digest": made.digest,
            "facts": dict(made.facts),
        }
        write_json(folder / RECORD, record)

    def __call__(self, step: Step, *inputs: Input) -> Artifact:
        """Takes a step's output from the store, or makes it there."""
        began = time.monotonic()
        now = plan(step, self.workload, inputs)
        with self.store.lock(step.name, now.key, run=self.context.run):
            made, cached = get_or_run(
                self.store, step, now, self.workload, inputs, self.context, self._check
            )
        roots.add(self.project, [(step.name, now.key)])
        maker = f"from run {made.provenance['run'][:8]} of {made.provenance['time']}"
        why = maker if cached else "not in the store"
        console.ended(step.name, cached, why, time.monotonic() - began)
        return made

    def show(self) -> None:
        """Shows the metrics and the verdict, once `promote` has run."""
        decision = dict(self.output("gate").facts)
        outcome.show(
            {
                "metrics": self.output("evaluate").facts["metrics"],
                "champion": decision.pop("champion"),
                "decision": decision,
                "model": self.output("promote").facts,
                "promote": self.promotes,
                "how": f"dvc exp apply {os.environ.get(EXPERIMENT)} && dvc repro promotes it",
            }
        )

    def _check(self, inputs: Sequence[Input]) -> None:
        """Checks the inputs of a step that runs, from earlier stages and from the store.

        Raises:
            DamagedArtifactError: One in the store is damaged.
            ValueError: One in the build folder has changed.
        """
        for each in inputs:
            if isinstance(each, Artifact) and each.folder == self.folder(each.step):
                files = [file for file in list_files(each.folder) if file["path"] != RECORD]
                if digest_of_output(each.facts, files) != each.digest:
                    raise ValueError(
                        f"{each.folder} has changed since it was made. Make it again: "
                        f"dvc repro --force --single-item {each.step}@{self.workload.name}"
                    )
        Verifier(self.store).check(inputs)

    def _input(self, name: str) -> Input:
        special: dict[str, Callable[[], Input]] = {
            "data": lambda: data_version(self.workload.data, self.project),
            "intent": lambda: Intent(promote=self.promotes),
            "start": lambda: find_start(
                self.workload,
                self.project,
                *map(self.output, (prepared_by(self.workload), "pull")),
            ),
            "opponents": self._opponents,
            "slices": self._slices,
        }
        return special[name]() if name in special else self.output(name)

    def _opponents(self) -> Opponents:
        pulled, validated, scores = map(self.output, ("pull", "validate", "evaluate"))
        opponents = score_opponents(self, pulled, validated, scores)
        return compare_with(self, scores, self._slices(), *opponents)

    def _slices(self) -> Slices:
        return score_slices(self, *map(self.output, ("pull", "validate", "evaluate")))


def _copy_output(source: Path, target: Path) -> None:
    """Copies an artifact's files, without its manifest, whose times differ between runs.

    They are no hard links, so that changes by DVC or people do not reach the store. Where the file
    system supports reflinks, the copies share their blocks.
    """
    from dvc_objects.fs.system import reflink

    for path in sorted(source.rglob("*")):
        copy = target / path.relative_to(source)
        if path.is_dir():
            copy.mkdir()
        elif path != source / MANIFEST:
            try:
                reflink(str(path), str(copy))
            except OSError:  # not supported here, or between two file systems
                shutil.copyfile(path, copy)


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
        preflight.check([step for step in ORDER if step.needed(workload)], workload, project)
        build = Build(workload, RunContext("dvc", project))
        log = project.logs / f"{time.strftime('%Y%m%d-%H%M%S')}-dvc-{options.workload}.log"
        with console.on_screen(log, to_stderr=False):
            retry_damaged(
                lambda: build.run(STEPS[options.step]),
                lambda error: console.say(escape(str(error))),
            )
            if options.step == PROMOTE.name:
                build.show()
    except Exception as error:
        if not isinstance(error, ValueError | ConnectionError):
            traceback.print_exc()
        print(f"{options.step}: {message_of(error)}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
