"""A program that loads a package and classifies images with it, without the project's own code.

    python -I -B answer.py MODULE...

It imports libraries, of which the modules are some, before it is told which package it is for: that
takes most of its start. A line of JSON comes in with the `package`, its `classes`, the `folder` to
run in, and whether it is `alone`, without the libraries that its requirements lack; then record
batches with the columns `image` and `with_features`, as an Arrow stream. Batches with `label`,
`probabilities`, `error` and `features` go out as another. An image that the package refuses has an
error in the place of a label. The features are null where nobody asked for them, and where the
package, if it is old, cannot tell them. Each batch has metadata: the `seconds` that the package
took for it, its `threads` and its `device`. `-I` keeps this clone off `sys.path`; what an editable
installation adds to it is removed here.
"""

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from operator import itemgetter
from pathlib import Path
from time import perf_counter
from typing import Any

PROJECT = Path(__file__).absolute().parents[2]
PACKAGES = ("flows", "models", "retrain", "tasks")


def main(libraries: Sequence[str]) -> None:
    """Classifies images until the input ends."""
    with os.fdopen(os.dup(1), "wb") as output:
        os.dup2(2, 1)  # what a library prints must not mix with the answers
        _remove_the_project()
        import numpy as np
        import torch
        from pyarrow import FixedSizeListArray, RecordBatch, array, float32, ipc, list_, string

        for name in libraries:
            import_module(name)
        if not (line := sys.stdin.buffer.readline()):
            return  # it is not needed
        told = json.loads(line)
        package, classes = told["package"], told["classes"]
        os.chdir(told["folder"])
        model = _load(Path(package), told["alone"])
        of_classes = itemgetter(*classes)
        observe = getattr(model.unwrap_python_model(), "predict_with_features", model.predict)
        device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
        machine = {"threads": str(torch.get_num_threads()), "device": device}
        writer = None
        for images in ipc.open_stream(sys.stdin.buffer):
            wanted = images["with_features"].to_pylist()
            predict = observe if any(wanted) else model.predict
            encoded = images["image"].to_pylist()
            began = perf_counter()
            answers = [*_answers(predict, encoded)]
            seconds = perf_counter() - began
            nothing = (0.0,) * len(classes)
            rows = [of_classes(given) if given else nothing for _, given, _, _ in answers]
            features = [
                taken if asked else None
                for asked, (_, _, _, taken) in zip(wanted, answers, strict=True)
            ]
            flat = np.array(rows, np.float32).ravel()
            batch = RecordBatch.from_arrays(
                [
                    array([label for label, _, _, _ in answers], string()),
                    FixedSizeListArray.from_arrays(flat, len(classes)),
                    array([error for _, _, error, _ in answers], string()),
                    array(features, list_(float32())),
                ],
                ["label", "probabilities", "error", "features"],
            )
            if writer is None:
                writer = ipc.new_stream(output, batch.schema)
            writer.write_batch(batch, custom_metadata=machine | {"seconds": str(seconds)})
            output.flush()


def _load(package: Path, alone: bool) -> Any:
    """Loads a package; if it is alone, without the libraries that its requirements lack.

    Raises:
        ValueError: The requirements lack a library.
    """
    import mlflow

    # To warn of other versions, it would look for half a second at all that is installed;
    # `served.other_versions` tells of them.
    lacking = _hide_what_it_lacks(package) if alone else set()
    try:
        model = mlflow.pyfunc.load_model(str(package), suppress_warnings=True)
    except Exception as error:
        if named := [name for name in lacking if f"import of {name} halted" in str(error)]:
            raise ValueError(f"the package's requirements lack {named[0]}: {error}") from error
        raise
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] in PACKAGES and module:
            assert Path(str(module.__file__)).is_relative_to(package), (
                f"{name} is not the package's"
            )
    return model


def _answers(
    predict: Callable[[Any], Any], images: Sequence[bytes]
) -> Iterator[tuple[str | None, dict[str, float] | None, str | None, Any]]:
    """The label and the probabilities of each image, or why the package refuses it; the features.

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
    for label, probabilities, taken in zip(
        predicted["label"], predicted["probabilities"], features, strict=True
    ):
        yield label, probabilities, None, taken


def _remove_the_project() -> None:
    """Removes this clone from the places where Python looks for modules."""
    sys.path[:] = [path for path in sys.path if Path(path).absolute() != PROJECT]
    sys.meta_path[:] = [
        finder
        for finder in sys.meta_path
        if not str(getattr(finder, "__module__", "")).startswith("__editable__")
    ]


def _hide_what_it_lacks(package: Path) -> set[str]:
    """Lets Python find no library that would not be installed with a package's requirements.

    What is imported already stays: the libraries that this program needs.

    Returns:
        The names of the packages that are not found any more.
    """
    lines = (package / "requirements.txt").read_text(encoding="utf-8").splitlines()
    with_them = _installed_with(lines)
    own = {each.name.partition(".")[0] for each in (package / "code").iterdir()}
    lacking = {
        name
        for name, distributions in packages_distributions().items()
        if name not in own and with_them.isdisjoint(map(_normalised, distributions))
    }
    for name in lacking - sys.modules.keys():
        sys.modules[name] = None  # type: ignore[assignment]  # Python then refuses to import it
    return lacking


def _installed_with(lines: Iterable[str]) -> set[str]:
    """The normalised names of the distributions of requirements, and of what they require."""
    from packaging.requirements import Requirement

    waiting = [(line, "") for line in lines]
    seen, names = set(waiting), set()
    while waiting:
        line, extra = waiting.pop()
        each = Requirement(line)
        if each.marker and not each.marker.evaluate({"extra": extra}):
            continue
        names.add(_normalised(each.name))
        with suppress(PackageNotFoundError):
            theirs = requires(each.name) or ()
            more = {(line, wanted) for line in theirs for wanted in ("", *each.extras)} - seen
            waiting += more
            seen |= more
    return names


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    main(sys.argv[1:])
