"""From a wrong label to a corrected one, by the commands that people call."""

import csv
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image
from ruamel.yaml import YAML

from flows.pages import publish
from flows.suspects import sentence
from tasks.suspects.step import COUNTS
from tests.flows.conftest import Clone

HOSTILE = 'again <script>"alert(1).png'


def add_workload(clone: Clone, folder: Path) -> None:
    """Adds a workload `photos`, like `vit`, but with its images in class folders."""
    path, yaml = clone.root / "params.yaml", YAML()
    tree = yaml.load(path.read_text())
    entry = json.loads(json.dumps(tree["workloads"]["vit"]))
    entry["data"]["path"] = str(folder)
    tree["workloads"]["photos"] = entry
    with path.open("w") as file:
        yaml.dump(tree, file)


@pytest.fixture(scope="module")
def wrong(clone, tmp_path_factory) -> dict[str, str]:
    """The right classes of the images of a workload `photos` that are in the folder of another."""
    folder = tmp_path_factory.mktemp("images") / "photos"
    [data] = (clone.root / ".retrain/store/pull").glob("*/data")
    random, truth = np.random.default_rng(0), {}
    for file in sorted(data.glob("*.parquet")):
        for number, row in enumerate(pq.read_table(file).to_pylist()):
            label = listed = int(row["label"])
            if random.random() < 0.03:
                listed = int(label + random.integers(1, 10)) % 10
            name = f"{file.stem}/{listed}/{number}.png"
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(row["image"]["bytes"])
            if listed != label:
                truth[name] = str(label)
    first = min((folder / "train" / "3").iterdir())
    brighter = np.asarray(Image.open(first)).clip(0, 250) + 5
    Image.fromarray(brighter).save(folder / "train" / "8" / HOSTILE)
    add_workload(clone, folder)
    return truth


@pytest.mark.parametrize(
    ("findable", "state", "style"),
    [(0.9, "Nothing suspect", "good"), (0.3, "Cannot tell", "muted")],
)
def test_a_page_says_in_green_that_nothing_is_suspect_only_if_it_can_tell(findable, state, style):
    kinds = dict.fromkeys(COUNTS, 0)
    facts = {"rows": 100, "accuracy": 0.72, "findable": findable, "can_tell": findable > 0.5}
    said = sentence("toy", facts | kinds)
    assert "right about 72.0% of images that it has not seen" in said
    assert ("Below 50% it cannot tell" in said) is (state == "Cannot tell")
    document = {"flow": "suspects", "workload": "toy", "run": "run-1", "outcome": said}
    document |= {"time": "2026-11-28T10:00:00+00:00", "look": {}, "suspects": facts | kinds}
    page = publish.render(
        "run.html", {"document": document, "made": {}, "entry": "toy", "listed": {}}
    )
    badge = page.partition('<span class="badge ')[2].partition("</span>")[0]
    assert badge.startswith(style)
    assert badge.endswith(state)


@pytest.mark.slow
def test_what_is_wrong_is_found_shown_and_taken_over(clone, wrong):
    clone.train("--set", "train.epochs=8", "--promote", workload="photos")
    found = clone.json("suspects", "photos")
    with (clone.root / found["look"]["csv"]).open(encoding="utf-8", newline="") as file:
        listed = list(csv.DictReader(file))
    suspects = [row for row in listed if "wrong label" in row["why"]]
    right = [row for row in suspects if row["path"] in wrong]
    assert len(right) >= 0.7 * len(wrong)
    assert found["suspects"]["can_tell"]
    assert found["suspects"]["findable"] == pytest.approx(len(right) / len(wrong), abs=0.15)
    assert "would find about" in found["outcome"]
    assert f"train/8/{HOSTILE}" in [row["path"] for row in listed if "near-dup" in row["why"]]

    page = (clone.root / found["look"]["report"]).read_text(encoding="utf-8")
    assert "<script" not in page
    assert page.count("data:image/png;base64,") >= len(suspects)
    filled = clone.root / "filled.csv"
    with filled.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, listed[0].keys())
        writer.writeheader()
        for row in listed:
            corrected = row["proposed"] if row["path"] in wrong else ""
            writer.writerow(row | {"corrected": corrected})

    assert clone.json("suspects", "photos")["state"] == "Skipped"
    nobody = clone.retrain("labels", "photos", str(filled), code=2).stderr
    assert "add --yes, or look first with --dry-run" in nobody
    preview = clone.json("labels", "photos", str(filled), "--dry-run")
    assert (preview["applied"], len(preview["changes"])) == (False, len(right))
    done = clone.json("labels", "photos", str(filled), "--yes")
    assert (done["applied"], done["changes"]) == (True, preview["changes"])
    after = clone.json("suspects", "photos")
    assert after["suspects"]["noise"] < found["suspects"]["noise"] / 2
    again = clone.root / after["look"]["csv"]
    again.write_text("what a person has filled in")
    clone.json("suspects", "photos", "--refresh")
    assert again.read_text() == "what a person has filled in"


def test_without_a_champion_a_line_says_what_to_do(clone):
    clone.retrain("init", "--example", "mnist")
    refused = clone.retrain("suspects", "mnist", code=2).stderr
    assert "mnist has no champion yet" in refused
