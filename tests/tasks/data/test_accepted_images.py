import pytest

from retrain.workload import Checks, Data
from tasks.data import raw_dataset
from tasks.data.image_table import read_images
from tasks.data.raw_dataset import open_raw_dataset
from tasks.validate.step import validate
from tests.tasks.toy_data import png, pulled, workspace, write_files, write_parquet

pytestmark = pytest.mark.usefixtures("ray_session")
DATA = Data(path="data")


@pytest.fixture(params=["folders", "parquet"])
def read(request, tmp_path, monkeypatch):
    """Reads images of the test split; two of them are bad, and they lie in several units."""
    monkeypatch.setattr(raw_dataset, "WORTH_ROWS", 3)

    def some(count, first):
        """As many images of each class, each another one."""
        return {
            f"{label}/{number}.png": png(first + 10 * "ab".index(label) + number)
            for label in "ab"
            for number in range(count)
        }

    good, train, val = some(4, 0), some(2, 100), some(2, 200)
    images = good | {"a/x.png": b"broken", "b/0x.png": b"broken"}
    for split, named in (("test", images), ("train", train), ("val", val)):
        if request.param == "folders":
            write_files(tmp_path / "data" / split, named)
        else:
            rows = [{"bytes": named[name], "path": name} for name in sorted(named)]
            labels = [name[0] for name in sorted(named)]
            path = tmp_path / "data" / f"{split}.parquet"
            write_parquet(path, rows, labels, row_group_size=4)
    space = workspace(tmp_path, "validate")
    source = pulled(tmp_path, request.param)
    checks = Checks(min_images_per_class=1, max_bad_fraction=0.5)
    validate(DATA, checks, source, space)
    prefix = "test/" if request.param == "folders" else ""

    def call(rows=None):
        found = read_images(open_raw_dataset(DATA, source), space.folder, "test", rows)
        return [(image.path.removeprefix(prefix), image.label, image.data) for image in found]

    return call, [(name, name[0], good[name]) for name in sorted(good)]


def test_the_accepted_images_that_are_wanted_are_read_in_order(read):
    call, expected = read
    assert call() == expected
    assert call([7, 1, 4]) == [expected[row] for row in (1, 4, 7)]
    assert call([]) == []
