"""A trained model behind MLflow's pyfunc interface: encoded images in, classes out.

MLflow runs this file wherever the model is loaded (models from code); a copy of it and of its
package is saved with the weights. Nothing else imports it.

It uses the precision of the evaluation, which the artifact `serving` records.

The input is a table with one column `image`, encoded images: bytes in Python, base64 in JSON.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from mlflow.exceptions import MlflowException
from mlflow.models import set_model
from mlflow.pyfunc import PythonModel, PythonModelContext

import models
from models.image import to_array

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

BATCH_SIZE = 256


class ImageClassifier(PythonModel):  # type: ignore[misc]  # MLflow has no types
    """Classifies encoded images with a model that `models.save` wrote."""

    def load_context(self, context: PythonModelContext) -> None:
        """Loads the network, once."""
        import torch

        serving = Path(context.artifacts["serving"]).read_text(encoding="utf-8")
        self._precision: str = json.loads(serving)["precision"]
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self._classifier = models.load(Path(context.artifacts["model"]))
        self._classifier.module.to(self._device)
        self._classifier.module.prefer_attention(self._device, self._precision)

    def predict(
        self, model_input: pd.DataFrame, params: dict[str, Any] | None = None
    ) -> pd.DataFrame:
        """Classifies a table of images.

        Args:
            model_input: The column `image`, bytes.
            params: Ignored.

        Returns:
            A row for each image: `label`, the most probable class, and `probabilities`, of each
            class by its name, so that a caller needs no separate list of the classes.

        Raises:
            MlflowException: An image does not decode; the message names its row.
        """
        images = list(model_input["image"])
        answers: list[dict[str, Any]] = []
        for start in range(0, len(images), BATCH_SIZE):
            pixels = self._pixels(images[start : start + BATCH_SIZE], start)
            answers += self._classify(pixels)
        return pd.DataFrame(answers, columns=["label", "probabilities"])

    def _pixels(self, images: Sequence[bytes], start: int) -> "NDArray[np.uint8]":
        import numpy as np

        arrays = []
        for row, image in enumerate(images, start):
            try:
                arrays.append(to_array(image, **self._classifier.images))
            except ValueError as error:
                # The scoring server shows the caller the message of MLflow's own error alone.
                raise MlflowException.invalid_parameter_value(
                    f"row {row}: the image does not decode: {error}"
                ) from error
        return np.stack(arrays)

    def _classify(self, pixels: "NDArray[np.uint8]") -> list[dict[str, Any]]:
        import torch

        labels = self._classifier.labels
        images = torch.from_numpy(pixels).to(self._device)
        probabilities = self._classifier.module.probabilities(images, self._precision)
        return [
            {
                "label": labels[max(range(len(row)), key=row.__getitem__)],
                "probabilities": dict(zip(labels, row, strict=True)),
            }
            for row in probabilities.tolist()
        ]


set_model(ImageClassifier())
