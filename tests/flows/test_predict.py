"""The flow `predict`, from the command line to the file; and what it refuses."""

import csv
import json
import shutil
import sys
import urllib.request

import pyarrow.parquet as pq
import pytest

from retrain.project import Project
from tests.flows.conftest import until
from tests.tasks.toy_data import png, write_files


def test_the_champion_answers_as_it_was_evaluated(clone, first, tmp_path):
    [test] = (clone.root / ".retrain/store/pull").glob("*/data/test.parquet")
    output = tmp_path / "new" / "out.parquet"
    arguments = ("predict", "vit", "--input", str(test), "--output", str(output))
    document = clone.json(*arguments)
    assert document["model"]["version"] == first["model"]["version"]
    assert document["output"] == str(output)
    assert (document["rows"], document["errors"]) == (360, 0)
    [evaluated] = (clone.root / ".retrain/store/evaluate").glob("*/predictions.parquet")
    expected, found = pq.read_table(evaluated), pq.read_table(output)
    assert found["sha256"] == expected["sha256"]
    assert found["label"].to_pylist() == expected["prediction"].to_pylist()
    features = {each["feature"]: each["score"] for each in document["drift"]["features"]}
    assert features == pytest.approx(dict.fromkeys(features, 0.0), abs=0.01)
    assert "embedding" in features
    assert not document["drift"]["drifted"]
    refused = clone.retrain(*arguments, code=2)
    assert refused.stderr == f"retrain: --output {output} exists: add --force to replace it.\n"


@pytest.mark.slow
def test_the_suffix_of_the_output_says_its_form_wherever_the_images_are(clone, first, tmp_path):
    write_files(tmp_path / "images", {"a.png": png(1), "b.png": png(2), "broken.png": b"no image"})
    folder = tmp_path / "images"
    url = f"file://{shutil.make_archive(str(folder), 'zip', folder)}"
    for suffix, place in (("csv", str(folder)), ("jsonl", url)):
        output = str(tmp_path / f"out.{suffix}")
        clone.json("predict", "vit", "--input", place, "--output", output)
    assert not [*clone.root.glob(".retrain/store/scratch/predict/*")]  # of the download
    with (tmp_path / "out.csv").open(encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file))
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [bool(line["error"]) for line in lines] == [False, False, True]
    for row, line in zip(table, lines, strict=True):
        probabilities = line.pop("probabilities")
        assert (len(probabilities), row["label"]) == (10, line["label"] or "")
        line |= {f"probability[{name}]": value for name, value in probabilities.items()}
        assert row == {name: "" if value is None else str(value) for name, value in line.items()}


@pytest.mark.slow
def test_a_folder_in_which_every_image_is_broken_is_a_failure(clone, first, tmp_path):
    write_files(tmp_path / "images", {"a.png": b"no", "b.png": b"image"})
    output = tmp_path / "out.csv"
    arguments = ("predict", "vit", "--input", str(tmp_path / "images"), "--output", str(output))
    assert "None of the 2 images in" in clone.retrain(*arguments, code=1).stderr
    assert output.read_text().count("png,") == 2


def test_mlflow_serves_the_champion_by_its_alias(clone, first, monkeypatch):
    import mlflow

    monkeypatch.setattr(sys, "path", list(sys.path))  # MLflow puts the model's code in front
    monkeypatch.setenv("MLFLOW_TRACKING_URI", Project(clone.root).tracking_uri)
    served = mlflow.pyfunc.load_model("models:/vit@champion")
    assert [column.name for column in served.metadata.get_input_schema()] == ["image"]
    answer = served.predict(served.input_example)
    declared = [column.name for column in served.metadata.get_output_schema()]
    assert list(answer.columns) == declared == ["label", "probabilities"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("predict vti", "No workload 'vti' in params.yaml or run here. Did you mean 'vit'?"),
        ("predict vit --version 7", "vit has no version '7'. There are: 1, champion, reference."),
        ("predict vit --version best", "vit has no version 'best'. There are: 1, champion"),
        ("predict vit --input nowhere", "nowhere: there is no such file or folder."),
        ("predict vit --input /dev/null", "--input /dev/null: there is no such file or folder."),
        ("predict vit --output flows", "flows: name a file of this machine"),
        ("predict vit --output out.xlsx", "out.xlsx: its suffix is one of .parquet, .csv, .jsonl."),
        ("predict vit --output docs/out.parquet", "docs/out.parquet lies in the input"),
        ("drift vti", "No workload 'vti' in params.yaml or run here. Did you mean 'vit'?"),
    ],
)
def test_what_cannot_be_done_is_one_line(clone, arguments, message):
    command = arguments.split()
    if "--input" not in command:
        command += ["--input", "docs"]
    if command[0] == "predict" and "--output" not in command:
        command += ["--output", "out.parquet"]
    errors = clone.retrain(*command, code=2).stderr
    assert len(errors.splitlines()) == 1
    assert message in errors


@pytest.mark.slow
def test_what_has_drifted_is_told_to_prefect_and_to_people(clone, first, tmp_path, webhook):
    wide = {f"{number}.png": png(number, width=24) for number in range(60)}
    write_files(tmp_path / "wide", wide)
    arguments = ("drift", "vit", "--input", str(tmp_path / "wide"))
    document = clone.json(*arguments)
    drift = document["drift"]
    assert drift["drifted"]
    kept = json.loads((clone.root / drift["file"]).read_text())
    assert kept["features"] == drift["features"]

    def emitted():
        body = json.dumps({"filter": {"event": {"name": ["retrain.drift"]}}}).encode()
        request = urllib.request.Request(
            f"{clone.api}/events/filter", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request) as answer:
            events = json.load(answer)["events"]
        return [each for each in events if each["payload"]["score"] == drift["score"]]

    [event] = until(emitted)
    assert event["resource"]["prefect.resource.id"] == "retrain.model.vit"
    people = iter(webhook)
    assert next(people)["event"] == "drift"
    output = str(tmp_path / "out.csv")
    document = clone.json("predict", *arguments[1:], "--output", output)
    assert (document["state"], document["drift"]["score"]) == ("Drifted", drift["score"])
    [told] = people
    assert told["event"] == "drift"
    assert told["text"].startswith(f"vit: {document['outcome']}\nreport: ")
    assert f" was given 60 images. Drift: {drift['feature']} is furthest from " in told["text"]
