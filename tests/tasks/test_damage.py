"""What a step keeps for a next try is never used again if its inputs were damaged: real steps."""

import json
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

from retrain.errors import DamagedArtifactError
from retrain.execute import get_or_run
from retrain.outputs import plan
from retrain.project import Project
from retrain.step import Input
from retrain.store import Artifact, RunContext, Store
from retrain.verify import Verifier
from retrain.workload import Checks, Data, Images, Scale, Train, Workload
from tasks.data.champion import Start
from tasks.embed.step import embed
from tasks.preprocess.step import preprocess
from tasks.pull.step import data_version, pull
from tasks.train.step import train
from tasks.validate.step import validate
from tests import templates
from tests.tasks.embed.conftest import head_on, write_backbone
from tests.tasks.toy_data import png, write_parquet
from tests.tasks.train.helpers import SMALL

STEPS = {step.name: step for step in (validate, preprocess, embed, train)}
CLASSES = ("cat", "dog", "fox")
NEW = Start(None)


@dataclass(frozen=True)
class Chain:
    """The steps up to the training, in a project.

    Attributes:
        root: Of the project.
    """

    root: Path

    @property
    def store(self) -> Store:
        return Store(Project(self.root).store)

    def workload(self, step: str) -> Workload:
        """The embeddings are of another workload than the training, which takes pixels."""
        return Workload(
            name="toy",
            data=Data(path="pets"),
            checks=Checks(min_images_per_class=1, max_bad_fraction=0.5),
            images=Images(size=8, channels=1),
            model=head_on(Path("vit")) if step == "embed" else SMALL,
            train=Train(epochs=3, batch_size=16, precision="fp32"),
            scale=Scale(threads=1, checkpoint_seconds=1e-9),
        )

    def inputs(self, step: str) -> list[Input]:
        """The inputs of a step; those that are not in the store are made."""
        workload = self.workload(step)
        names = STEPS[step].inputs_for(workload) if step in STEPS else ("data",)
        special = {"data": lambda: data_version(workload.data, Project(self.root)), "start": NEW}
        return [
            special[name]() if name == "data" else special.get(name) or self.make(name)
            for name in names
        ]

    def make(self, step: str, function=None) -> Artifact:
        """Takes the output of a step from the store or makes it there, as a new run does."""
        chosen = {"pull": pull, **STEPS}[step]
        workload, inputs = self.workload(step), self.inputs(step)
        now = plan(chosen, workload, inputs)
        if function:
            chosen = replace(chosen, function=function)
        context, check = RunContext("run", Project(self.root)), Verifier(self.store).check
        return get_or_run(self.store, chosen, now, workload, inputs, context, check)[0]


def bmp(number: int) -> bytes:
    """A grey image that remains one if a byte in its middle is changed."""
    buffer = BytesIO()
    Image.open(BytesIO(png(number))).save(buffer, "BMP")
    return buffer.getvalue()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    root = tmp_path_factory.mktemp("chain") / "project"
    for number, (split, count) in enumerate((("train", 64), ("validation", 12), ("test", 12))):
        write_parquet(
            root / "pets" / f"{split}.parquet",
            [bmp(100 * number + each) for each in range(count)],
            [each % 3 for each in range(count)],
            names=CLASSES,
            compression="NONE",
        )
    (root / "params.yaml").touch()
    templates.place_mlflow_database(root)
    write_backbone(root / "vit")
    chain = Chain(root)
    for step in STEPS:
        chain.make(step)
    return chain


@pytest.fixture
def chain(undisturbed, tmp_path):
    """A copy of which no output of a step with scratch is used by the others, to be harmed."""
    templates.copy_project(undisturbed.root, tmp_path / "project")
    return Chain(tmp_path / "project")


def what_is_read(chain: Chain, step: str) -> Path:
    """The file of which a changed byte changes the result."""
    if step in ("validate", "preprocess"):
        return next(chain.make("pull").folder.rglob("train*.parquet"))
    return chain.make("preprocess").folder / "train" / "images-00000.npy"


def change(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


def truncate(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


def discard(chain: Chain, step: str) -> Artifact:
    made = chain.make(step)
    chain.store.discard(step, made.key)
    return made


def scratch(chain: Chain, made: Artifact) -> list[Path]:
    folder = chain.store.scratch(made.step, made.key)
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize("harm", [change, truncate, Path.unlink])
@pytest.mark.parametrize("step", STEPS)
def test_nothing_is_published_if_an_input_is_damaged_while_the_step_runs(
    undisturbed, chain, step, harm
):
    def harms(*arguments):
        harm(harmed)
        return STEPS[step].function(*arguments)

    made, harmed = discard(chain, step), what_is_read(chain, step)
    with pytest.raises(DamagedArtifactError, match=harmed.name):
        chain.make(step, harms)
    assert chain.store.find(step, made.key) is None
    again = chain.make(step)
    assert again.digest == undisturbed.make(step).digest


@pytest.mark.parametrize("step", STEPS)
def test_a_killed_run_leaves_nothing_to_go_on_with_from_damaged_inputs(undisturbed, chain, step):
    def killed(*arguments):
        change(harmed)
        STEPS[step].function(*arguments)
        raise KeyboardInterrupt

    made, harmed = discard(chain, step), what_is_read(chain, step)
    with pytest.raises(KeyboardInterrupt):
        chain.make(step, killed)
    assert scratch(chain, made)
    with pytest.raises(DamagedArtifactError, match=harmed.name):
        chain.make(step)
    again = chain.make(step)
    assert again.digest == undisturbed.make(step).digest


def test_the_run_in_mlflow_of_a_training_on_damaged_images_is_not_gone_on_with(chain):
    def run_of(artifact):
        return json.loads((artifact.folder / "report" / "mlflow.json").read_text())["run_id"]

    def killed(*arguments):
        change(harmed)
        train.function(*arguments)
        raise KeyboardInterrupt

    first = run_of(chain.make("train"))
    discard(chain, "train")
    harmed = what_is_read(chain, "train")
    with pytest.raises(KeyboardInterrupt):
        chain.make("train", killed)
    with pytest.raises(DamagedArtifactError):
        chain.make("train")
    assert run_of(chain.make("train")) != first


@pytest.mark.parametrize("step", STEPS)
def test_a_step_does_not_begin_with_damaged_inputs(chain, step):
    made = discard(chain, step)
    change(what_is_read(chain, step))
    with pytest.raises(DamagedArtifactError):
        chain.make(step, lambda *_: pytest.fail("it began"))
    assert scratch(chain, made) == []


@pytest.mark.parametrize("step", STEPS)
def test_a_killed_run_is_gone_on_with_if_its_inputs_are_as_they_were(chain, step):
    def killed(*arguments):
        STEPS[step].function(*arguments)
        raise KeyboardInterrupt

    def goes_on(*arguments):
        before.extend(path.name for path in scratch(chain, made))
        return STEPS[step].function(*arguments)

    made, before = discard(chain, step), []
    with pytest.raises(KeyboardInterrupt):
        chain.make(step, killed)
    left = [path.name for path in scratch(chain, made)]
    again = chain.make(step, goes_on)
    assert before == left
    assert len(before) > 1
    assert again.digest == made.digest
