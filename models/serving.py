"""A trained model behind MLflow's pyfunc interface: encoded images in, classes out.

MLflow runs this file wherever the model is loaded (models from code); a copy of it and of its
package is saved with the weights. Nothing else imports it.

It uses the precision of the evaluation, which the artifact `serving` records with the SHA-256 of
the model's files. They are checked when it is loaded.

With RETRAIN_LOG_PREDICTIONS, a folder, it logs what it answers, for `retrain drift`. A request does
not wait for the disk, and is answered whatever becomes of the log: rows for which there is no room
are dropped. The images are not kept, but for their SHA-256. A thread appends each row to a file of
JSON lines, which a server that is killed leaves behind. Each process writes files of its own, one
for each hour.

The input is a table with one column `image`, encoded images: bytes in Python, base64 in JSON.
All four forms of MLflow's scoring protocol are taken: `dataframe_split`, `dataframe_records`,
`inputs` and `instances`.
"""

import atexit
import base64
import hashlib
import json
import logging
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from logging.handlers import QueueListener, TimedRotatingFileHandler
from pathlib import Path
from queue import SimpleQueue
from sys import exc_info
from time import monotonic, time_ns
from typing import Any

import numpy as np
import pandas as pd
import torch
from mlflow.exceptions import MlflowException
from mlflow.models import set_model
from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE
from mlflow.pyfunc import PythonModel, PythonModelContext

import models
from models.image import to_array
from models.network import FeatureExtractor

BATCH_SIZE = 256
HINT = "send the image's bytes (base64)"
TO_STANDARD = str.maketrans("-_", "+/")  # from the base64 for URLs

FOLDER = "RETRAIN_LOG_PREDICTIONS"
MOST_WAITING = 10_000  # rows in memory, of about 500 bytes
SECONDS_QUIET = 60.0  # after a warning

logger = logging.getLogger(__name__)


class RequestError(MlflowException):  # type: ignore[misc]  # MLflow has no types
    """A request that cannot be answered; the caller gets one sentence, as HTTP 400."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence, INVALID_PARAMETER_VALUE)

    def serialize_as_json(self) -> str:
        """What the scoring server sends; without the request, which it writes into the message."""
        self.message = str(self)
        document: str = super().serialize_as_json()
        return document


class ImageClassifier(PythonModel):  # type: ignore[misc]  # MLflow has no types
    """Classifies encoded images with a model that `models.save` wrote."""

    def load_context(self, context: PythonModelContext) -> None:
        """Loads the network, once.

        Raises:
            ValueError: A file of the model has changed since it was packaged.
        """
        serving = json.loads(Path(context.artifacts["serving"]).read_text(encoding="utf-8"))
        _check(Path(context.artifacts["model"]), serving["files"])
        self._precision: str = serving["precision"]
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self._classifier = models.load(Path(context.artifacts["model"]))
        self._classifier.module.to(self._device)
        self._classifier.module.prefer_attention(self._device, self._precision)
        self._observed = FeatureExtractor(self._classifier.module)
        self._log = start_log(serving["files"][models.WEIGHTS])

    def predict(
        self, model_input: pd.DataFrame, params: dict[str, Any] | None = None
    ) -> pd.DataFrame:
        """Classifies a table of images.

        Args:
            model_input: The column `image`: bytes, or base64 as text.
            params: Ignored.

        Returns:
            A row for each image: `label`, the most probable class, and `probabilities`, of each
            class by its name, so that a caller needs no separate list of the classes.

        Raises:
            RequestError: There is no image, or one does not decode; the message names its row.
        """
        return self.predict_with_features(model_input).drop(columns="features")

    def predict_with_features(self, model_input: pd.DataFrame) -> pd.DataFrame:
        """Classifies as `predict` does, and adds the column `features`: what the last layer takes.

        A row of it is float32 (D,), or None for a network whose last layer is not known.
        """
        if "image" not in model_input:
            raise RequestError(f"There is no column `image`: for each row, {HINT}.")
        images = list(model_input["image"])
        if not images:
            raise RequestError(f"There is no row: for each, {HINT}.")
        starts = range(0, len(images), BATCH_SIZE)
        tables = [self._answer(images[start : start + BATCH_SIZE], start) for start in starts]
        return pd.concat(tables, ignore_index=True)

    def _answer(self, images: list[Any], start: int) -> pd.DataFrame:
        """Answers a batch of images, which begins with a row of the request, and logs it."""
        encoded = [_encoded(image, row) for row, image in enumerate(images, start)]
        pixels = np.stack([self._pixels(image, row) for row, image in enumerate(encoded, start)])
        on_device = torch.from_numpy(pixels).to(self._device)
        probabilities, features = self._observed.answer(on_device, self._precision)
        rows, labels = probabilities.tolist(), self._classifier.labels
        answers = pd.DataFrame(
            {
                "label": [labels[row.index(max(row))] for row in rows],
                "probabilities": [dict(zip(labels, row, strict=True)) for row in rows],
                "features": None if features is None else [*features.cpu().numpy()],
            }
        )
        if self._log:
            self._log.put(encoded, answers.to_dict("records"))
        return answers

    def _pixels(self, image: bytes, row: int) -> Any:
        try:
            return to_array(image, **self._classifier.images)
        except ValueError as error:
            raise RequestError(f"row {row}: the image does not decode: {error}") from error


def _check(model: Path, files: Mapping[str, str]) -> None:
    """Reads the files of a model.

    Raises:
        ValueError: One has another SHA-256 (hex) than it should, or is gone.
    """
    for name, expected in files.items():
        path = model / name
        if not path.is_file():
            raise ValueError(f"This package is damaged: {path} is gone.")
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != expected:
                raise ValueError(f"This package is damaged: {path} has changed since it was made.")


def _encoded(image: object, row: int) -> bytes:
    """The bytes of an encoded image, which JSON can hold as base64 only.

    The base64 may be that for URLs, with or without padding, and be in a data URL.

    Raises:
        RequestError: The value is something else, such as the address of an image.
    """
    if isinstance(image, (bytes, bytearray)):
        return bytes(image)
    if not isinstance(image, str):
        raise RequestError(f"row {row}: this is no image; {HINT}")
    # The line breaks that the command `base64` makes mean nothing.
    text = "".join(image.split())
    if text.startswith("data:"):
        text = text.partition(";base64,")[2]
    text = text.translate(TO_STANDARD).rstrip("=")
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except ValueError:
        raise RequestError(f"row {row}: no base64; {HINT}, not a URL or a path") from None


class PredictionLog:
    """Writes rows of JSON to files of a folder, in a thread.

    A row has the `sha256` (hex) of the encoded image, the `label`, its probability as `confidence`,
    the `time` in UTC, and the SHA-256 (hex) of the `weights` that answered.
    """

    def __init__(self, folder: Path, weights: str) -> None:
        """Starts the thread.

        Args:
            folder: Is made if it does not exist.
            weights: SHA-256 (hex) of the weights that answer.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._weights = weights
        self._waiting: SimpleQueue[logging.LogRecord] = SimpleQueue()
        self._file = _Files(folder / f"{time_ns()}-{os.getpid()}.jsonl")
        self._listener = QueueListener(self._waiting, self._file)
        self._listener.start()
        atexit.register(self.close)

    def put(self, images: Sequence[bytes], answers: Sequence[Mapping[Any, Any]]) -> None:
        """Takes encoded images with their `label` and `probabilities` (by class); waits for none.

        Rows that the thread has no room for are dropped.
        """
        now = datetime.now(UTC).isoformat()
        for image, answer in zip(images, answers, strict=True):
            if self._waiting.qsize() < MOST_WAITING:
                label, sha256 = answer["label"], hashlib.sha256(image).hexdigest()
                row = {"sha256": sha256, "label": label, "time": now, "weights": self._weights}
                row["confidence"] = answer["probabilities"][label]
                self._waiting.put(logging.makeLogRecord({"msg": json.dumps(row)}))

    def close(self) -> None:
        """Writes what waits, and ends the thread."""
        atexit.unregister(self.close)
        self._listener.stop()
        self._file.close()


class _Files(TimedRotatingFileHandler):
    """Appends lines to a file, which gets another name after an hour; removes none."""

    def __init__(self, file: Path) -> None:
        super().__init__(file, when="H", encoding="utf-8", delay=True, utc=True)
        self._quiet_until = 0.0

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  logging's own name
        """Warns that a line could not be written, once in a while."""
        if monotonic() >= self._quiet_until:
            self._quiet_until = monotonic() + SECONDS_QUIET
            logger.warning("Answers could not be logged: %s", exc_info()[1])


def start_log(weights: str) -> PredictionLog | None:
    """The log that the environment asks for; None if it asks for none.

    Args:
        weights: SHA-256 (hex) of the weights that answer.

    Raises:
        ValueError: The folder cannot be made.
    """
    if not (folder := os.environ.get(FOLDER)):
        return None
    try:
        return PredictionLog(Path(folder), weights)
    except OSError as error:
        raise ValueError(f"{FOLDER}: {error}") from error


set_model(ImageClassifier())
