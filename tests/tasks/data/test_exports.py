"""The lines of the docs that make a table, or Parquet files, of exports of other programs."""

import io
import json
import re
import tarfile
from collections import Counter
from pathlib import Path

import pytest

from retrain.workload import Data
from tasks.scaffold import survey
from tests.tasks.toy_data import png, write_files

PAGE = Path("docs/add-a-workload.md").read_text(encoding="utf-8")
SCRIPTS = re.findall(r"```python\n(.*?)```", PAGE.partition("### From COCO")[2], re.DOTALL)
LABELS = {f"{number}.png": ("cat", "dog")[number % 2] for number in range(6)}
COCO = {
    "images": [{"id": n, "file_name": name} for n, name in enumerate(LABELS)],
    "annotations": [
        {"image_id": n, "category_id": 10 + n % 2, "bbox": [box, 0, 1, 1]}
        for n in range(len(LABELS))
        for box in range(2)  # two boxes of a class are one class
    ],
    "categories": [{"id": number, "name": name} for number, name in {10: "cat", 11: "dog"}.items()],
}
CVAT = "".join(
    f'<image id="{n}" name="{name}"><tag label="{label}" source="manual"></tag></image>'
    for n, (name, label) in enumerate(LABELS.items())
)


def webdataset():
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for number, (name, label) in enumerate(LABELS.items()):
            for member, content in ((name, png(number)), (f"{number}.cls", label.encode())):
                info = tarfile.TarInfo(member)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return file.getvalue()


PHOTOS = {f"photos/{name}": png(n) for n, name in enumerate(LABELS)}


@pytest.mark.parametrize(
    ("number", "files", "form"),
    [
        (0, PHOTOS | {"instances.json": json.dumps(COCO).encode()}, "table"),
        (1, PHOTOS | {"annotations.xml": f"<annotations>{CVAT}</annotations>".encode()}, "table"),
        (2, {"train-0.tar": webdataset()}, "parquet"),
    ],
)
def test_the_lines_make_what_is_read(tmp_path, monkeypatch, number, files, form):
    write_files(tmp_path, files)
    monkeypatch.chdir(tmp_path)
    exec(compile(SCRIPTS[number], "docs", "exec"), {})
    seen = survey(tmp_path, Data(path="photos"))
    assert (seen.format, seen.classes) == (form, Counter(LABELS.values()))
