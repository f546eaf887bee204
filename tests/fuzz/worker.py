"""Takes data sets and configurations through the project's functions, for `tests.fuzz`.

It stands in a clone. A line on standard input is a path; the answer to it is a JSON object with the
`verdict`, the `message` of an error, and the `accepted` images by name, each with the reason why it
cannot be loaded, empty if it can.
"""

import io
import json
import os
import sys
import traceback
from pathlib import Path

from PIL import Image

from flows.train import train
from models.image import to_array
from retrain import preflight
from retrain.params import load_workload
from retrain.project import find_project
from retrain.runs.one_step import run_one
from retrain.store import Store
from tasks.data.image_table import read_images
from tasks.data.raw_dataset import open_raw_dataset

LENIENT = {"max_bad_fraction": 0.99, "min_images_per_class": 1, "min_side": 1}


def main() -> None:
    """Answers until the input ends."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)  # whatever else is printed is no answer
        for line in sys.stdin:
            path, answer = Path(line.rstrip("\n")), {"message": "", "accepted": {}}
            try:
                if path.suffix == ".yaml":
                    train.check(load_workload(path, "vit"), find_project())
                else:
                    answer["accepted"] = _accepted(path)
                answer["verdict"] = "accepted"
            except ValueError as error:
                answer |= {"verdict": "refused", "message": str(error)}
            except BaseException:
                answer |= {"verdict": "crashed", "message": traceback.format_exc()}
            print(json.dumps(answer), file=answers, flush=True)


def _accepted(data: Path) -> dict[str, str]:
    """The images of a data set that `validate` accepts."""
    project = find_project()
    settings = {"data.path": str(data)} | {f"checks.{key}": value for key, value in LENIENT.items()}
    workload = load_workload(project.params, "vit", settings)
    pull, validate, *_ = train.steps
    preflight.check([pull, validate], workload, project)
    records = [run_one(train, step, workload, project) for step in (pull, validate)]
    store = Store(project.store)
    pulled, validated = (store.find(record["step"], record["key"]) for record in records)
    assert pulled
    assert validated
    source = open_raw_dataset(workload.data, pulled)
    return {
        image.path: _fault(image.data)
        for split in validated.facts["rows"]
        for image in read_images(source, validated.folder, split)
    }


def _fault(data: bytes) -> str:
    """Why an image cannot be loaded, by Pillow or as for the training; empty if it can."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            image.load()
        to_array(data, 16, 3, "crop")
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


if __name__ == "__main__":
    main()
