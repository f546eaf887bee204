"""Takes data sets and configurations through the project's functions, for `tests.fuzz`.

It stands in a clone. A line on standard input is a JSON object with `file` and `into`; so is the
answer to it: `verdict`, and `message` or `set_aside`. Of an accepted data set, the accepted images
are written into the folder `into`.
"""

import json
import os
import sys
import traceback
from pathlib import Path

from flows.train import train
from retrain import preflight
from retrain.params import load_workload
from retrain.project import find_project
from retrain.runs.one_step import run_one
from retrain.store import Store


def main() -> None:
    """Answers until the input ends."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        for line in sys.stdin:
            request = json.loads(line)
            try:
                answer = _try(Path(request["file"]), Path(request["into"]))
            except ValueError as error:
                answer = {"verdict": "refused", "message": str(error)}
            except BaseException:
                answer = {"verdict": "crashed", "message": traceback.format_exc()}
            print(json.dumps(answer), file=answers, flush=True)


def _try(file: Path, into: Path) -> dict[str, object]:
    if file.suffix == ".yaml":
        project = find_project()
        workload = load_workload(file, "vit")
        train.check(workload, project)
        return {"verdict": "accepted", "set_aside": 0}
    return _try_data(file, into)


def _try_data(file: Path, into: Path) -> dict[str, object]:
    from tasks.data.image_table import read_images
    from tasks.data.raw_dataset import open_raw_dataset

    project = find_project()
    overrides = {"data.path": str(file), "checks.max_bad_fraction": 0.9}
    overrides |= {"checks.min_images_per_class": 2}
    workload = load_workload(project.params, "vit", overrides)
    pull, validate, *_ = train.steps
    preflight.check([pull, validate], workload, project)
    records = [run_one(train, step, workload, project) for step in (pull, validate)]
    store = Store(project.store)
    pulled, validated = (store.find(record["step"], record["key"]) for record in records)
    assert pulled
    assert validated
    source = open_raw_dataset(workload.data, pulled)
    for split in validated.facts["rows"]:
        for number, image in enumerate(read_images(source, validated.folder, split)):
            (into / f"{split}-{number}").write_bytes(image.data)
    return {"verdict": "accepted", "set_aside": validated.facts["quarantined"]}


if __name__ == "__main__":
    main()
