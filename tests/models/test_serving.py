import base64
import io
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from urllib.request import urlopen

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from models.image import to_arrays
from retrain.project import Project
from retrain.registry import packages, versions
from retrain.step import DataVersion
from retrain.store import Artifact
from retrain.workload import Data, Gate
from tasks.promote.package import write_package
from tasks.promote.step import Intent, promote
from tests import templates
from tests.tasks.toy_model import (
    LABELS,
    pixels,
    plain_probabilities,
    png,
    workspace,
    write_data,
    write_model,
    write_report,
    write_scores,
)

IMAGES = [png(image) for image in pixels(5)]
SECONDS_TO_START = 120


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A project whose champion is a network that was not trained."""
    root = tmp_path_factory.mktemp("project")
    templates.place_mlflow_database(root)
    project = Project(root)
    trained = write_model(root / "train")
    write_report(trained, project)
    images = write_data(root, len(IMAGES))
    scores = write_scores(root / "scores", trained, len(IMAGES))
    facts = {"passed": True, "verdict": "first", "rules": [], "says": [], "champion": None}
    facts |= {"test_images": "test images", "reference": True, "slices": []}
    decision = Artifact("gate", "k", "d", Path(), facts)
    version = DataVersion("data-1", tracked=True)
    place = workspace(root / "promote", root)
    made = (*images, trained, scores, decision)
    promote(Data(path="data"), Gate(), version, *made, Intent(promote=True), place)
    return project


@pytest.fixture(scope="module")
def expected(project):
    """What the network says of the images: float32 (images, classes)."""
    return plain_probabilities(project.root / "train" / "model", pixels(len(IMAGES)), 5)


@pytest.fixture
def champion(project, monkeypatch):
    """The champion, loaded as a user of MLflow does."""
    import mlflow

    monkeypatch.setattr(sys, "path", list(sys.path))  # MLflow puts the model's code in front
    monkeypatch.setenv("MLFLOW_TRACKING_URI", project.tracking_uri)
    return mlflow.pyfunc.load_model("models:/toy@champion")


@pytest.mark.parametrize("gone", [False, True], ids=["changed", "gone"])
def test_a_damaged_package_is_refused_in_one_sentence(project, tmp_path, monkeypatch, gone):
    import mlflow

    monkeypatch.setattr(sys, "path", list(sys.path))
    version = versions.champion(project, "toy")
    shutil.copytree(packages.fetch(project, version, tmp_path), tmp_path / "package")
    weights = tmp_path / "package" / packages.MODEL / packages.WEIGHTS
    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 1
    weights.write_bytes(content)
    if gone:
        weights.unlink()
    says = "is gone" if gone else "has changed since it was made"
    with pytest.raises(ValueError, match=rf"This package is damaged: .*{weights.name} {says}\."):
        mlflow.pyfunc.load_model(str(tmp_path / "package"))


def check(answers: list[dict], expected: np.ndarray) -> None:
    assert [answer["label"] for answer in answers] == [LABELS[best] for best in expected.argmax(1)]
    for answer, row in zip(answers, expected, strict=True):
        assert list(answer["probabilities"]) == list(LABELS)
        assert list(answer["probabilities"].values()) == pytest.approx(row.tolist(), abs=1e-6)


def test_the_champion_says_in_batches_what_the_evaluation_said(champion, expected, monkeypatch):
    module = sys.modules[type(champion.unwrap_python_model()).__module__]
    monkeypatch.setattr(module, "BATCH_SIZE", 2)
    with pytest.raises(Exception, match="row 3: the image does not decode"):
        champion.predict(pd.DataFrame({"image": [*IMAGES[:3], b"no image"]}))
    with pytest.raises(Exception, match="There is no row"):
        champion.predict(pd.DataFrame({"image": pd.Series([], dtype=object)}))
    answers = champion.predict(pd.DataFrame({"image": IMAGES}))
    assert list(answers.columns) == ["label", "probabilities"]
    check(answers.to_dict("records"), expected)


def test_a_model_that_was_evaluated_in_bf16_answers_in_bf16(project, tmp_path, monkeypatch):
    import mlflow

    monkeypatch.setattr(sys, "path", list(sys.path))
    model = project.root / "train" / "model"
    write_package(model, "bf16", {}, tmp_path / "package")
    loaded = mlflow.pyfunc.load_model(str(tmp_path / "package"))
    answers = loaded.predict(pd.DataFrame({"image": IMAGES}))["probabilities"]
    said = np.array([list(answer.values()) for answer in answers])
    in_bf16, in_fp32 = (
        plain_probabilities(model, pixels(len(IMAGES)), 5, precision)
        for precision in ("bf16", "fp32")
    )
    assert np.abs(said - in_bf16).max() < 1e-6
    assert np.abs(in_fp32 - in_bf16).max() > 1e-4


def test_the_signature_says_what_goes_in_and_comes_out(champion):
    assert champion.metadata.get_input_schema().to_dict() == [
        {"type": "string", "name": "image", "required": False}
    ]
    assert [field["name"] for field in champion.metadata.get_output_schema().to_dict()] == [
        "label",
        "probabilities",
    ]
    example = champion.input_example
    assert len(champion.predict(example)) == 1


def test_odd_images_are_decoded_as_for_training(project, champion):
    import torch

    import models

    turned = Image.Exif()
    turned[0x0112] = 6
    colours = Image.fromarray(np.random.default_rng(0).integers(0, 256, (30, 40, 3), np.uint8))
    odd = []
    for mode, options in (("RGB", {"exif": turned}), ("CMYK", {}), ("L", {})):
        file = io.BytesIO()
        colours.convert(mode).save(file, "JPEG", **options)
        odd.append(file.getvalue())
    classifier = models.load(project.root / "train" / "model")
    prepared = to_arrays(odd, **classifier.images)  # as `preprocess` does
    expected = classifier.module.probabilities(torch.from_numpy(prepared), "fp32").numpy()
    check(champion.predict(pd.DataFrame({"image": odd})).to_dict("records"), expected)


def in_base64(image: bytes) -> str:
    return base64.b64encode(image).decode()


def requests(images: list) -> list[dict]:
    """The ways in which MLflow's scoring protocol writes a table with one column."""
    records = [{"image": image} for image in images]
    return [
        {"dataframe_split": {"columns": ["image"], "data": [[image] for image in images]}},
        {"dataframe_records": records},
        {"inputs": records},
        {"inputs": images},
        {"inputs": {"image": images}},
        {"instances": records},
        {"instances": images},
        {"instances": {"image": images}},
    ]


@pytest.fixture
def client(champion):
    """The application that `mlflow models serve` runs, in this process."""
    from fastapi.testclient import TestClient
    from mlflow.pyfunc import scoring_server

    return TestClient(scoring_server.init(champion))


@pytest.mark.parametrize("encode", [in_base64, lambda image: base64.encodebytes(image).decode()])
def test_every_form_of_the_scoring_protocol_is_answered(client, expected, encode):
    for request in requests([encode(image) for image in IMAGES]):
        answer = client.post("/invocations", json=request)
        assert answer.status_code == 200, (request.keys(), answer.text)
        check(answer.json()["predictions"], expected)


@pytest.mark.parametrize(
    "image",
    [
        "https://example.com/photos/cat.jpg",
        "photos/cat/1.jpg",
        "a cat",
        "d\u00e9j\u00e0 vu",
        "",
        "abcd",  # base64, but of no image
        5,
        2.5,
        True,
        None,
        ["a", "list"],
        {"b64": "abcd"},
    ],
)
def test_what_is_no_image_is_refused_in_one_sentence(client, image):
    good = in_base64(IMAGES[0])
    for request in requests([good, image]):
        answer = client.post("/invocations", json=request)
        assert answer.status_code == 400, (request, answer.text)
        assert "Traceback" not in answer.text
        assert good[:20] not in answer.text
        message = answer.json()["message"]
        assert len(message.splitlines()) == 1 or isinstance(image, list)  # ragged: MLflow refuses
        if isinstance(image, str):
            assert message.startswith("row 1: ")
    table = requests([good, image])[0]
    message = client.post("/invocations", json=table).json()["message"]
    assert "send the image's bytes (base64)" in message or image in ("", "abcd")


GOOD = in_base64(IMAGES[0])


@pytest.mark.parametrize(
    "request_",
    [
        *requests([]),
        {"dataframe_split": {"columns": ["photo"], "data": [[GOOD]]}},
        {"inputs": [{"photo": GOOD}]},
        {"inputs": 5},
        {"inputs": GOOD},
    ],
)
def test_a_request_without_images_is_refused_in_one_sentence(client, request_):
    answer = client.post("/invocations", json=request_)
    assert answer.status_code == 400, answer.text
    assert GOOD not in answer.text
    assert "There is no " in answer.json()["message"]
    assert "send the image's bytes (base64)" in answer.json()["message"]


@contextmanager
def server(project, place):
    """`mlflow models serve` of the champion; gives its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    programs = Path(sys.prefix, "bin")
    command = ["mlflow", "models", "serve", "-m", "models:/toy@champion", "--env-manager", "local"]
    log = place / "log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [programs / command[0], *command[1:], "--host", "127.0.0.1", "--port", str(port)],
            cwd=place,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ
            | {
                "MLFLOW_TRACKING_URI": project.tracking_uri,
                "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            },
        )
    address = f"http://127.0.0.1:{port}"
    try:
        end = monotonic() + SECONDS_TO_START
        while not _answers(address):
            assert process.poll() is None, log.read_text()
            assert monotonic() < end, log.read_text()
            sleep(0.1)
        yield address
    finally:
        process.terminate()
        process.wait(30)


def _answers(address: str) -> bool:
    try:
        with urlopen(f"{address}/ping", timeout=5):
            return True
    except OSError:
        return False


def test_the_readmes_request_works_with_a_large_photo(project, tmp_path):
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    [request] = re.findall(r"^\(printf .*?(?=^```)", readme, re.MULTILINE | re.DOTALL)
    photo = tmp_path / "photos" / "cat" / "1.jpg"
    photo.parent.mkdir(parents=True)
    noise = np.random.default_rng(0).integers(0, 256, (1300, 1800, 3), dtype=np.uint8)
    Image.fromarray(noise).save(photo, quality=97)
    assert photo.stat().st_size > 3e6
    assert "http://127.0.0.1:5001" in request
    with server(project, tmp_path) as address:  # a folder without any of our packages
        command = request.replace("http://127.0.0.1:5001", address)
        done = subprocess.run(
            ["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=60
        )
    assert done.returncode == 0, done.stderr
    [answer] = json.loads(done.stdout)["predictions"]
    assert answer["label"] in LABELS
