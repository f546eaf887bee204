"""A program that loads a package and classifies images with it, without the project's own code.

    python -I -B answer.py FILE_DESCRIPTOR

It imports libraries before it knows which package it is for: that takes most of its start. Through
a pipe come the `package`, its `classes`, the `folder` to run in and the `device`; then, again and
again, encoded images and for each whether its features are wanted. Back go their answers, and how
long the package took, with how many threads on what.

`-I` keeps this clone off `sys.path`; what an editable installation adds is removed here.
"""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from operator import itemgetter
from pathlib import Path
from time import perf_counter
from typing import Any

PROJECT = Path(__file__).absolute().parents[2]
PACKAGES = ("flows", "models", "retrain", "tasks")

# The label, the probabilities, why the package refuses the image, and the features.
Answer = tuple[str | None, dict[str, float] | None, str | None, Any]


def main(pipe: Connection) -> None:
    """Classifies images until nobody asks any more."""
    _remove_the_project()
    import mlflow.pyfunc  # noqa: F401  # these are only imported ahead
    import pandas  # noqa: F401
    import torch
    import transformers.models.vit.modeling_vit  # noqa: F401

    with suppress(EOFError):  # the other end is closed
        job = pipe.recv()
        os.chdir(job["folder"])
        if ":" in job["device"]:  # one of several GPUs
            torch.cuda.set_device(job["device"])
        model = _load(Path(job["package"]))
        observe = getattr(model.unwrap_python_model(), "predict_with_features", model.predict)
        device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
        while True:
            images, wanted = pipe.recv()
            began = perf_counter()
            answers = [*_answers(observe if any(wanted) else model.predict, images)]
            took = {"seconds": perf_counter() - began, "threads": torch.get_num_threads()}
            pipe.send((_batch(answers, wanted, job["classes"]), took | {"device": device}))


def _load(package: Path) -> Any:
    import mlflow

    # To warn of other versions, it would look for half a second at all that is installed;
    # `served.other_versions` tells of them.
    model = mlflow.pyfunc.load_model(str(package), suppress_warnings=True)
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] in PACKAGES and module:
            assert Path(str(module.__file__)).is_relative_to(package), (
                f"{name} is not the package's"
            )
    return model


def _answers(predict: Callable[[Any], Any], images: Sequence[bytes]) -> Iterator[Answer]:
    """The answer for each image.

    A package refuses a whole table with one bad image. So the table is halved until that is alone:
    the good ones go through the network once, together as far as possible.
    """
    import pandas as pd
    from mlflow.exceptions import MlflowException

    try:
        predicted = predict(pd.DataFrame({"image": images}))
    except MlflowException as error:
        if error.error_code != "INVALID_PARAMETER_VALUE":
            raise
        if len(images) == 1:
            yield None, None, " ".join(str(error).split()).removeprefix("row 0: "), None
        else:
            half = len(images) // 2
            yield from _answers(predict, images[:half])
            yield from _answers(predict, images[half:])
        return
    features = predicted.get("features", [None] * len(images))
    nothing = [None] * len(images)
    yield from zip(predicted["label"], predicted["probabilities"], nothing, features, strict=True)


def _batch(answers: Sequence[Answer], wanted: Sequence[bool], classes: Sequence[str]) -> Any:
    """The answers as `PackageProcess.classify` gives them."""
    import numpy as np
    from pyarrow import FixedSizeListArray, RecordBatch, array, float32, list_, string

    labels, probabilities, errors, features = zip(*answers, strict=True)
    of_classes, nothing = itemgetter(*classes), (0.0,) * len(classes)
    rows = [of_classes(given) if given else nothing for given in probabilities]
    asked = [taken if want else None for taken, want in zip(features, wanted, strict=True)]
    columns = {
        "label": array(labels, string()),
        "probabilities": FixedSizeListArray.from_arrays(
            np.array(rows, np.float32).ravel(), len(classes)
        ),
        "error": array(errors, string()),
        "features": array(asked, list_(float32())),
    }
    return RecordBatch.from_pydict(columns)


def _remove_the_project() -> None:
    """Removes this clone from the places where Python looks for modules."""
    sys.path[:] = [path for path in sys.path if Path(path).absolute() != PROJECT]
    sys.meta_path[:] = [finder for finder in sys.meta_path if not _finds_the_project(finder)]


def _finds_the_project(finder: Any) -> bool:
    spec = finder.find_spec("models", None)
    return bool(spec and spec.origin and Path(spec.origin).is_relative_to(PROJECT))


if __name__ == "__main__":
    main(Connection(int(sys.argv[1])))
