"""A trained model behind MLflow's pyfunc interface: encoded images in, classes out.

MLflow runs this file wherever the model is loaded (models from code); a copy of it and of its
package is saved with the weights. Nothing else imports it.

It uses the precision of the evaluation, which the artifact `serving` records with the SHA-256 of
the model's files. They are checked when it is loaded. Where the evaluation has chosen the least
confidence of an answer that is accepted, that is recorded there, too.

The input is a table with one column `image`, encoded images: bytes in Python, base64 in JSON.
All four forms of MLflow's scoring protocol are taken: `dataframe_split`, `dataframe_records`,
`inputs` and `instances`.
"""

import base64
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from mlflow.exceptions import MlflowException
from mlflow.models import set_model
from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE
from mlflow.pyfunc import PythonModel, PythonModelContext

import models
from models import prediction_log
from models.image import to_array
from models.network import Observed

BATCH_SIZE = 256
HINT = "send the image's bytes (base64)"
TO_STANDARD = str.maketrans("-_", "+/")  # from the base64 for URLs


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
        self._min_confidence: float | None = serving.get("min_confidence")
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self._classifier = models.load(Path(context.artifacts["model"]))
        self._classifier.module.to(self._device)
        self._classifier.module.prefer_attention(self._device, self._precision)
        self._observed = Observed(self._classifier.module)
        self._log = prediction_log.start(serving["files"][models.WEIGHTS])

    def predict(
        self, model_input: pd.DataFrame, params: dict[str, Any] | None = None
    ) -> pd.DataFrame:
        """Classifies a table of images.

        Args:
            model_input: The column `image`: bytes, or base64 as text.
            params: Ignored.

        Returns:
            A row for each image: `label`, the most probable class, and `probabilities`, of each
            class by its name, so that a caller needs no separate list of the classes. If the
            package has a threshold, `accepted`: whether the probability of the label reaches it.

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
        if self._min_confidence is not None:
            answers["accepted"] = [max(row) >= self._min_confidence for row in rows]
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


set_model(ImageClassifier())
