from retrain.store import Artifact
from retrain.workload import Checks, Data, Gate
from tasks.data import image_table
from tasks.data.champion import TestSplit
from tasks.data.splits import SPLITS
from tasks.validate.step import validate
from tests.tasks.toy_data import png, pulled, workspace, write_parquet


def test_numbers_in_names_are_ordered_as_numbers():
    names = ["10", "2", "img10", "img2", "b", "a10b2", "a10b10", "02", "Ä", "٣"]
    assert sorted(names, key=image_table.natural_order) == [
        *("02", "2", "10", "a10b2", "a10b10", "b", "img2", "img10", "Ä", "٣")
    ]


def test_a_corrected_label_makes_another_test_split_of_the_same_images(tmp_path):
    def digests(name, labels):
        root = tmp_path / name
        for number, split in enumerate(SPLITS):
            images = [png(10 * number + row) for row in range(4)]
            of_split = labels if split == "test" else ["a", "b", "a", "b"]
            write_parquet(root / "data" / f"{split}.parquet", images, of_split)
        space = workspace(root, "validate")
        facts = validate(
            Data(path="data"),
            Checks(min_images_per_class=1),
            Gate(),
            pulled(root, "parquet"),
            space,
        )
        artifact = Artifact("validate", "key", "digest", space.folder, facts)
        return TestSplit(artifact).digest, image_table.digest_of_split(space.folder, "train")

    before, after = digests("before", ["a", "b", "a", "b"]), digests("after", ["a", "b", "b", "b"])
    assert before[0] != after[0]
    assert before[1] == after[1]
    assert digests("again", ["a", "b", "a", "b"]) == before
