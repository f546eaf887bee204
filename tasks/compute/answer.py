"""A program that loads a package and classifies images with it, without the project's own code.

    python -I -B answer.py FILE_DESCRIPTOR

The program imports its libraries before it knows the package, because that takes most of its start.
Through a pipe it receives the `package`, its `classes`, the `folder` to run in and the `device`;
then, for each call, encoded images and whether the features of each are wanted. It sends back the
answers, the seconds that the package took, the number of threads, and the name of the device.

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

# The label, the probabilities, whether the package accepts the label (None if it does not say), why
# it refuses the image, and the features.
Answer = tuple[str | None, dict[str, float] | None, bool | None, str | None, Any]


def main(pipe: Connection) -> None:
    """Classifies the images that come through the pipe, until its other end is closed."""
    _remove_the_project()
    import mlflow.pyfunc  # noqa: F401  # imported early, to save time later
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
            images, with_features = pipe.recv()
            began = perf_counter()
            answers = [*_answers(observe if any(with_features) else model.predict, images)]
            took = {"seconds": perf_counter() - began, "threads": torch.get_num_threads()}
            pipe.send((_batch(answers, with_features, job["classes"]), took | {"device": device}))


def _load(package: Path) -> Any:
    import mlflow

    # MLflow would search the installed libraries for half a second, to warn of other versions;
    # `served.other_versions` reports them.
    model = mlflow.pyfunc.load_model(str(package), suppress_warnings=True)
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] in PACKAGES and module:
            assert Path(str(module.__file__)).is_relative_to(package), (
                f"{name} is not the package's"
            )
    return model


def _answers(predict: Callable[[Any], Any], images: Sequence[bytes]) -> Iterator[Answer]:
    """The answer for each image.

    A package refuses a whole table if one image in it is bad. So the table is halved until the bad
    image is alone. Each good image goes through the network once, with as many others as possible.
    """
    import pandas as pd
    from mlflow.exceptions import MlflowException

    try:
        predicted = predict(pd.DataFrame({"image": images}))
    except MlflowException as error:
        if error.error_code != "INVALID_PARAMETER_VALUE":
            raise
        if len(images) == 1:
            yield None, None, None, " ".join(str(error).split()).removeprefix("row 0: "), None
        else:
            half = len(images) // 2
            yield from _answers(predict, images[:half])
            yield from _answers(predict, images[half:])
        return
    nothing = [None] * len(images)
    accepted, features = (predicted.get(name, nothing) for name in ("accepted", "features"))
    columns = (predicted["label"], predicted["probabilities"], accepted, nothing, features)
    yield from zip(*columns, strict=True)


def _batch(answers: Sequence[Answer], with_features: Sequence[bool], classes: Sequence[str]) -> Any:
    """The answers as `PackageProcess.classify` gives them."""
    import numpy as np
    from pyarrow import FixedSizeListArray, RecordBatch, array, bool_, float32, list_, string

    labels, probabilities, accepted, errors, features = zip(*answers, strict=True)
    of_classes, zeros = itemgetter(*classes), (0.0,) * len(classes)
    rows = [of_classes(by_class) if by_class else zeros for by_class in probabilities]
    kept_features = [
        vector if is_wanted else None
        for vector, is_wanted in zip(features, with_features, strict=True)
    ]
    columns = {
        "label": array(labels, string()),
        "probabilities": FixedSizeListArray.from_arrays(
            np.array(rows, np.float32).ravel(), len(classes)
        ),
        "accepted": array(accepted, bool_()),
        "error": array(errors, string()),
        "features": array(kept_features, list_(float32())),
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
