from retrain.store import Artifact
from tasks.data import image_table
from tasks.evaluate.champion import digest_of_input
from tests.tasks.toy_data import png
from tests.tasks.validate.validating import FILES, run


def test_numbers_in_names_are_ordered_as_numbers():
    names = ["10", "2", "img10", "img2", "b", "a10b2", "a10b10", "02", "Ä", "٣"]
    assert sorted(names, key=image_table.natural_order) == [
        *("02", "2", "10", "a10b2", "a10b10", "b", "img2", "img10", "Ä", "٣")
    ]


def test_a_corrected_label_makes_another_test_split_of_the_same_images(tmp_path):
    files = FILES | {"test/cat/other.png": png(99)}

    def digests(name, files):
        facts, folder = run(tmp_path / name, files)
        artifact = Artifact("validate", "key", "digest", folder, facts)
        return digest_of_input(artifact), image_table.digest_of_split(folder, "train")

    before = digests("before", files)
    files["test/dog/other.png"] = files.pop("test/cat/other.png")
    after = digests("after", files)
    assert before[0] != after[0]
    assert before[1] == after[1]
