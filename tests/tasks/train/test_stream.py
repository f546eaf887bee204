"""Images that Ray Data decodes while a network trains give the network of prepared images."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from retrain.store import Artifact
from retrain.workload import Augment, Checks, Data, Images, Scale, Train
from tasks.preprocess.step import preprocess
from tasks.validate.step import validate
from tests.tasks.toy_data import png, pulled, workspace, write_files, write_parquet
from tests.tasks.train.helpers import run

pytestmark = pytest.mark.usefixtures("ray_session")

COUNT = 150
DATA = Data(path="data")
IMAGES = Images(size=8, channels=1)
RECIPE = Train(epochs=3, batch_size=16, lr=0.01, augment=Augment(shift=1))
# Memory for about two thirds of the training images: windows of two batches.
FEW = 2 * 2.5 * 16 * 64 / 1e9
WINDOWS = Scale(ingest="windows", memory_gb=FEW)
STREAM = Scale(memory_gb=FEW)


@dataclass(frozen=True)
class Both:
    """The same images, prepared and not."""

    pixels: Path
    source: Path
    pulled: Path


def prepare(root: Path, format: str) -> Both:
    files = {f"{n % 3}/{n:03}.png": png(n, 10, 8) for n in range(COUNT)}
    if format == "folders":
        write_files(root / "data", files)
    else:
        for number in range(2):
            rows = list(files.items())[number::2]
            write_parquet(
                root / f"data/{number}.parquet",
                [data for _, data in rows],
                [path.split("/")[0] for path, _ in rows],
                row_group_size=13,
            )
    raw, checked = pulled(root, format), workspace(root, "validate")
    facts = validate(DATA, Checks(min_images_per_class=1), raw, checked)
    validated = Artifact("validate", "key", "digest", checked.folder, facts)
    folders = {}
    for storage in ("pixels", "source"):
        (root / storage).mkdir()
        space = workspace(root / storage, "preprocess")
        images = IMAGES.model_copy(update={"storage": storage})
        assert preprocess(DATA, images, raw, validated, space)["storage"] == storage
        folders[storage] = space.folder
    return Both(folders["pixels"], folders["source"], raw.folder)


@pytest.fixture(scope="module", params=["folders", "parquet"])
def both(request, tmp_path_factory):
    return prepare(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return prepare(tmp_path_factory.mktemp("stream"), "folders")


@pytest.fixture(scope="module")
def prepared(folders, tmp_path_factory):
    return run(tmp_path_factory.mktemp("windows"), folders.pixels, RECIPE, scale=WINDOWS)


def test_it_trains_the_network_of_windows_of_prepared_images(both, tmp_path):
    shards = run(tmp_path / "shards", both.pixels, RECIPE, scale=WINDOWS)
    streamed = run(tmp_path / "stream", both.source, RECIPE, scale=STREAM, pulled=both.pulled)
    assert streamed.facts == shards.facts
    assert streamed.model_files() == shards.model_files()
