import pyarrow as pa
import pyarrow.parquet as pq

from tasks.data import image_table


def test_numbers_in_names_are_ordered_as_numbers():
    ordered = ["02", "2", "10", "a10b2", "a10b10", "b", "img2", "img10", "Ä", "٣"]
    assert sorted({*ordered}, key=image_table.natural_order) == ordered


def test_a_corrected_label_makes_another_test_split_of_the_same_images(tmp_path):
    def digests(label):
        row = dict.fromkeys(image_table.SCHEMA.names) | {"sha256": "0" * 64, "label": "cat"}
        rows = [row | {"split": "train"}, row | {"split": "test", "label": label}]
        table = pa.Table.from_pylist(rows, image_table.SCHEMA)
        pq.write_table(table, tmp_path / image_table.FILE_NAME)
        return [image_table.digest_of_split(tmp_path, split) for split in ("train", "test")]

    before, after = digests("cat"), digests("dog")
    assert before[0] == after[0]
    assert before[1] != after[1]
