"""What a step keeps for a next try is never used again if its inputs were damaged: real steps."""

from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

from retrain.errors import DamagedArtifactError
from retrain.outputs import plan
from retrain.project import Project
from retrain.step import Input
from retrain.store import Artifact, Store
from retrain.workload import Checks, Data, Images, Scale, Train, Workload
from tasks.data.champion import Start
from tasks.embed.step import embed
from tasks.preprocess.step import preprocess
from tasks.pull.step import data_version, pull
from tasks.train.step import train
from tasks.validate.step import validate
from tests import running, templates
from tests.running import RunContext
from tests.tasks.embed.conftest import head_on, write_backbone
from tests.tasks.toy_data import encoded, png, write_parquet
from tests.tasks.train.helpers import SMALL

pytestmark = pytest.mark.slow  # each step runs several times, a training too

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
        run = running.run_in(self.store, RunContext("run", Project(self.root)), workload)
        return run.make(chosen, now, workload, inputs)[0]


def bmp(number: int) -> bytes:
    """A grey image that remains one if a byte in its middle is changed."""
    return encoded(Image.open(BytesIO(png(number))), "BMP")


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


def discard(chain: Chain, step: str) -> Artifact:
    made = chain.make(step)
    chain.store.discard(step, made.key)
    return made


def scratch(chain: Chain, made: Artifact) -> list[Path]:
    folder = chain.store.scratch(made.step, made.key)
    return [path for path in folder.rglob("*") if path.is_file()]


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
        chain.make(step, lambda *_: pytest.fail("it began"))
    assert chain.make(step).digest == undisturbed.make(step).digest


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
    assert before
    assert again.digest == made.digest
