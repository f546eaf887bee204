"""A package that MLflow serves: what it answers, what it refuses, and what it logs."""

import base64
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from models import serving
from models.serving import PredictionLog
from retrain.registry import packages
from tasks.promote.package import write_package
from tests.flows.conftest import free_port, until
from tests.tasks.toy_model import LABELS, pixels, plain_probabilities, png, write_model
from tests.team_servers import started

IMAGES = [png(image) for image in pixels(5)]
SECONDS_TO_START = 120


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The folder of a network that was not trained."""
    return write_model(tmp_path_factory.mktemp("train")).folder / "model"


@pytest.fixture(scope="module")
def package(model):
    """Its package."""
    folder = model.parent / "package"
    write_package(model, "fp32", {}, folder)
    return folder


@pytest.fixture(scope="module")
def expected(model):
    """What the network says of the images: float32 (images, classes)."""
    return plain_probabilities(model, pixels(len(IMAGES)), 5)


@pytest.fixture
def load(monkeypatch):
    """Loads a package as a user of MLflow does."""
    import mlflow

    monkeypatch.setattr(sys, "path", list(sys.path))  # MLflow puts the model's code in front
    return lambda folder: mlflow.pyfunc.load_model(str(folder))


@pytest.fixture
def served(load, package):
    return load(package)


@pytest.mark.parametrize(
    "damage", [Path.unlink, lambda path: path.write_bytes(path.read_bytes()[::-1])]
)
def test_a_damaged_package_is_refused_in_one_sentence(package, load, tmp_path, damage):
    shutil.copytree(package, tmp_path / "package")
    weights = tmp_path / "package" / packages.MODEL / packages.WEIGHTS
    damage(weights)
    with pytest.raises(ValueError, match=rf"This package is damaged: .*{weights.name} \w+ "):
        load(tmp_path / "package")


def check(answers: list[dict], expected: np.ndarray) -> None:
    assert [answer["label"] for answer in answers] == [LABELS[best] for best in expected.argmax(1)]
    for answer, row in zip(answers, expected, strict=True):
        assert list(answer["probabilities"]) == list(LABELS)
        assert list(answer["probabilities"].values()) == pytest.approx(row.tolist(), abs=1e-6)


def test_it_says_in_batches_what_the_evaluation_said(served, expected, monkeypatch):
    module = sys.modules[type(served.unwrap_python_model()).__module__]
    monkeypatch.setattr(module, "BATCH_SIZE", 2)
    with pytest.raises(Exception, match="row 3: the image does not decode"):
        served.predict(pd.DataFrame({"image": [*IMAGES[:3], b"no image"]}))
    answers = served.predict(pd.DataFrame({"image": IMAGES}))
    assert list(answers.columns) == ["label", "probabilities"]
    assert served.metadata.signature.outputs.input_names() == list(answers.columns)
    check([*answers.to_dict("index").values()], expected)


def test_a_model_that_was_evaluated_in_bf16_answers_in_bf16(model, load, tmp_path):
    write_package(model, "bf16", {}, tmp_path / "package")
    answers = load(tmp_path / "package").predict(pd.DataFrame({"image": IMAGES}))["probabilities"]
    said = np.array([list(answer.values()) for answer in answers])
    in_bf16, in_fp32 = (
        plain_probabilities(model, pixels(len(IMAGES)), 5, precision)
        for precision in ("bf16", "fp32")
    )
    assert np.abs(said - in_bf16).max() < 1e-6
    assert np.abs(in_fp32 - in_bf16).max() > 1e-4


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
def client(served):
    """The application that `mlflow models serve` runs, in this process."""
    from fastapi.testclient import TestClient
    from mlflow.pyfunc import scoring_server

    return TestClient(scoring_server.init(served))


@pytest.mark.parametrize(
    "encode",
    [
        in_base64,
        lambda image: base64.encodebytes(image).decode(),
        lambda image: f"data:image/png;base64,{in_base64(image)}",
        lambda image: base64.urlsafe_b64encode(image).decode(),
        lambda image: base64.urlsafe_b64encode(image).decode().rstrip("="),
    ],
)
def test_every_form_of_the_scoring_protocol_is_answered(client, expected, encode):
    for request in requests([encode(image) for image in IMAGES]):
        answer = client.post("/invocations", json=request)
        assert answer.status_code == 200, (request.keys(), answer.text)
        check(answer.json()["predictions"], expected)


GOOD = in_base64(IMAGES[0])
NO_BASE64 = "row 1: no base64; send the image's bytes (base64), not a URL or a path"
NOT_DECODED = "row 1: the image does not decode: "


@pytest.mark.parametrize(
    ("image", "said"),
    [
        ("https://example.com/photos/cat.jpg", NO_BASE64),
        ("photos/cat/1.jpg", NO_BASE64),
        ("d\u00e9j\u00e0 vu", NO_BASE64),
        ("a cat", NOT_DECODED),  # it is base64, too
        ("abcd", NOT_DECODED),
        ("", NOT_DECODED),
        ("data:image/png,%89PNG", NOT_DECODED),
        ("data:;base64,", NOT_DECODED),
        (5, ""),
        (2.5, ""),
        (True, ""),
        (None, ""),
        (["a", "list"], ""),
        ({"b64": "abcd"}, ""),
    ],
)
def test_what_is_no_image_is_refused_in_one_sentence(client, image, said):
    for request in requests([GOOD, image]):
        answer = client.post("/invocations", json=request)
        assert answer.status_code == 400, (request, answer.text)
        assert "Traceback" not in answer.text
        assert GOOD[:20] not in answer.text
        message = answer.json()["message"]
        assert len(message.splitlines()) == 1 or isinstance(image, list)  # ragged: MLflow refuses
        assert message.startswith(said)


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


@pytest.mark.slow
def test_the_request_of_the_readme_works_with_a_large_photo(package, tmp_path):
    page = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    [request] = re.findall(r"^\(printf .*?(?=^```)", page, re.MULTILINE | re.DOTALL)
    [shown] = re.findall(r"^```json\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    photo = tmp_path / "photos" / "cat" / "1.jpg"
    photo.parent.mkdir(parents=True)
    noise = np.random.default_rng(0).integers(0, 256, (1300, 1800, 3), dtype=np.uint8)
    Image.fromarray(noise).save(photo, quality=97)  # more than 3 MB
    port = str(free_port())
    programs = Path(sys.prefix, "bin")
    serve = [
        programs / "mlflow", "models", "serve", "-m", package, "--env-manager", "local",
        "--host", "127.0.0.1", "--port", port,
    ]  # fmt: skip
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    # `curl` tries again until the server is there, which runs in a folder without our packages.
    again = "curl --retry 100 --retry-delay 1 --retry-connrefused"
    ask = ["bash", "-c", request.replace("5001", port).replace("curl", again)]
    environment = os.environ | {"PATH": path}
    with started(tmp_path / "log", serve, lambda: True, cwd=tmp_path, env=environment):
        said = subprocess.check_output(ask, cwd=tmp_path, timeout=SECONDS_TO_START)
    [answer] = json.loads(said)["predictions"]
    assert answer.keys() == json.loads(shown)["predictions"][0].keys()
    assert answer["label"] in LABELS


LOGGED = [bytes([number]) for number in range(200)]
ANSWERS = [{"label": "cat", "probabilities": {"cat": 0.75, "dog": 0.25}}] * len(LOGGED)


def logged(folder) -> list[dict]:
    files = sorted(folder.glob("*.jsonl*"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def test_a_request_waits_for_nothing_and_rows_without_room_are_dropped(tmp_path, monkeypatch):
    monkeypatch.setattr(serving, "MOST_WAITING", 50)
    log, goes_on = PredictionLog(tmp_path, "weights"), threading.Event()
    write = log._file.emit
    monkeypatch.setattr(log._file, "emit", lambda record: goes_on.wait(60) and write(record))
    log.put(LOGGED, ANSWERS)
    goes_on.set()
    log.close()  # writes what waits
    assert 50 <= len(logged(tmp_path)) <= 51  # the thread may have taken one


def test_a_folder_that_is_gone_is_told_once(tmp_path, caplog):
    log = PredictionLog(tmp_path / "log", "weights")
    (tmp_path / "log").rmdir()
    log.put(LOGGED, ANSWERS)
    log.close()
    [said] = caplog.messages
    assert re.match("Answers could not be logged: .*No such file", said)


LOGS = """
import os, signal, time
from pathlib import Path
from models.serving import FOLDER, start_log

folder = Path(os.environ[FOLDER])
log = start_log("weights")
log.put([b"1", b"2"], [{"label": "cat", "probabilities": {"dog": 0.25, "cat": 0.75}}] * 2)
while not any(file.read_text().count("\\n") == 2 for file in folder.iterdir()):
    time.sleep(0.01)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_server_that_is_killed_leaves_its_answers(tmp_path):
    environment = os.environ | {serving.FOLDER: str(tmp_path / "new")}
    done = subprocess.run([sys.executable, "-c", LOGS], env=environment, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert len(logged(tmp_path / "new")) == 2


def test_a_package_logs_what_it_answers_where_the_environment_says(
    package, load, tmp_path, monkeypatch
):
    monkeypatch.setenv(serving.FOLDER, str(tmp_path))
    before = datetime.now(UTC)
    answers = load(package).predict(pd.DataFrame({"image": IMAGES}))
    until(lambda: len(logged(tmp_path)) == len(IMAGES))
    rows = logged(tmp_path)
    times = [datetime.fromisoformat(row.pop("time")) for row in rows]
    assert before < times[0] < datetime.now(UTC)
    weights = (package / packages.MODEL / packages.WEIGHTS).read_bytes()
    assert rows == [
        {
            "sha256": hashlib.sha256(image).hexdigest(),
            "label": answer["label"],
            "confidence": answer["probabilities"][answer["label"]],
            "weights": hashlib.sha256(weights).hexdigest(),
        }
        for image, answer in zip(IMAGES, answers.to_dict("records"), strict=True)
    ]


def test_a_folder_for_the_log_that_cannot_be_made_is_refused(tmp_path, monkeypatch):
    assert serving.start_log("weights") is None
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(serving.FOLDER, str(tmp_path / "file" / "below"))
    with pytest.raises(ValueError, match=serving.FOLDER):
        serving.start_log("weights")
