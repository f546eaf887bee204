"""What is registered is loaded in a process of its own before it becomes champion."""

import re

import numpy as np
import pyarrow as pa
import pytest

from retrain.registry import versions
from tasks.data.raw_images import open_images
from tasks.promote import package as packaging
from tests.tasks.promote.conftest import ROWS, history, train
from tests.tasks.toy_model import (
    LABELS,
    pixels,
    png,
    write_custom,
    write_data,
    write_model,
    write_scores,
)


def test_a_version_that_answers_something_else_is_not_promoted(project, run, one):
    before = history(project)
    trained = train(project, seed=1)
    scores = write_scores(project.root / "scores", trained, ROWS)
    other = write_model(project.root / "other", seed=7)
    write_scores(project.root / "scores", other, ROWS)  # the predictions of another network
    with pytest.raises(ValueError) as raised:
        run(trained, "better", 1, scores)
    said = str(raised.value)
    reason = (
        r"toy version 2 cannot be served: it answers '\w+' for \d+\.png, where the evaluation says "
        r"'\w+'; their probabilities differ by up to 0\.\d+ \(0\.001 is allowed\)\."
    )
    assert re.fullmatch(reason, said)
    assert versions.champion(project, "toy").version == 1
    assert history(project) == before
    assert run(trained, "not better", 1, scores)["version"] == 2


@pytest.mark.parametrize(("kept", "missing"), [(64, 0), (4, 0), (1, 1)])
def test_an_example_has_runs_of_neighbours_evenly_spaced_over_the_test_split(
    tmp_path, monkeypatch, kept, missing
):
    starts = (0, 13, 26, 39, 52, 65, 78, 92)
    rows = [start + row for start in starts for row in range(8)][:kept]
    size = sum(len(png(image)) for image in pixels(100)[rows])
    monkeypatch.setattr(packaging, "MAX_BYTES", size - missing)
    pulled, validated = write_data(tmp_path, 100)
    found = packaging.sample(open_images(pulled), validated.folder)
    assert found["path"].to_pylist() == [f"{row}.png" for row in rows]


@pytest.mark.parametrize(
    ("precision", "expected", "answer", "apart", "is_same"),
    [
        ("fp32", [0.6, 0.3, 0.1], [0.6, 0.3, 0.1], 0.0, True),
        ("fp32", [0.6, 0.3, 0.1], [0.6005, 0.2995, 0.1], 0.0005, True),
        ("fp32", [0.6, 0.3, 0.1], [0.62, 0.28, 0.1], 0.02, False),  # the same label
        ("fp32", [0.6, 0.3, 0.1], [0.6, 0.29, 0.11], 0.01, False),
        ("fp32", [0.4002, 0.3998, 0.2], [0.3998, 0.4002, 0.2], 0.0004, True),  # a tie
        ("fp32", [0.4008, 0.3992, 0.2], [0.3999, 0.4001, 0.2], 0.0009, False),
        ("bf16", [0.6, 0.3, 0.1], [0.619, 0.281, 0.1], 0.019, True),
        ("bf16", [0.6, 0.3, 0.1], [0.621, 0.279, 0.1], 0.021, False),
    ],
)
def test_an_answer_is_the_same_if_all_its_probabilities_are(
    precision, expected, answer, apart, is_same
):
    example = pa.table({"probabilities": [expected, [1.0, 0.0, 0.0]]})
    answers = np.array([answer, [1.0, 0.0, 0.0]], np.float32)
    found, same = packaging.differences(example, answers, packaging.TOLERANCE[precision])
    assert found == pytest.approx([apart, 0.0], abs=1e-6)
    assert same.tolist() == [is_same, True]


def test_a_package_requires_what_its_modules_import_and_finds_only_that(tmp_path):
    factory = "tests.tasks.promote.network_of_a_user:build_model"
    write_custom(tmp_path, factory, unseen="transformers")
    package = tmp_path / "package"
    packaging.write_package(tmp_path / "model", "fp32", dict.fromkeys(LABELS, 1), package)
    lines = (package / "requirements.txt").read_text().splitlines()
    needed = {"mlflow", "numpy", "pandas", "pi-heif", "pillow", "safetensors", "scipy", "torch"}
    assert {line.partition("==")[0] for line in lines} == needed
    columns = {"path": ["0.png"], "image": [png(pixels(1)[0])], "probabilities": [[1.0, 0, 0, 0]]}
    # It has found scipy before.
    with pytest.raises(ValueError, match="No module named 'transformers': the requirements of"):
        packaging.check_answers(package, pa.table(columns), tmp_path)
