"""A program that loads a package and classifies with it, without the project's own code.

    python -I -B answer.py PACKAGE

Record batches with the column `image` come in as an Arrow stream, and batches with `label` and
`probabilities` go out as another. `-I` keeps this clone off `sys.path`; what an editable
installation adds to it is removed here.
"""

import os
import sys
from pathlib import Path

PROJECT = Path(__file__).absolute().parents[2]
PACKAGES = ("flows", "models", "retrain", "tasks")


def main(package: Path) -> None:
    """Classifies images until the input ends."""
    with os.fdopen(os.dup(1), "wb") as output:
        os.dup2(2, 1)  # what a library prints must not mix with the answers
        _remove_the_project()
        import mlflow
        from pyarrow import RecordBatch, array, ipc

        model = mlflow.pyfunc.load_model(str(package))
        for name, module in list(sys.modules.items()):
            if name.split(".")[0] in PACKAGES:
                assert Path(str(module.__file__)).is_relative_to(package), (
                    f"{name} is not the package's"
                )
        writer = None
        for images in ipc.open_stream(sys.stdin.buffer):
            predicted = model.predict(images.to_pandas())
            columns = [array(predicted["label"]), array(predicted["probabilities"])]
            answers = RecordBatch.from_arrays(columns, ["label", "probabilities"])
            if writer is None:
                writer = ipc.new_stream(output, answers.schema)
            writer.write_batch(answers)
            output.flush()


def _remove_the_project() -> None:
    """Removes this clone from the places where Python looks for modules."""
    sys.path[:] = [path for path in sys.path if Path(path).absolute() != PROJECT]
    sys.meta_path[:] = [
        finder
        for finder in sys.meta_path
        if not str(getattr(finder, "__module__", "")).startswith("__editable__")
    ]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
