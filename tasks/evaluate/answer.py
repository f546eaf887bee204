"""A program that loads a package and answers for it, with none of the project's own code.

    python -I -B answer.py PACKAGE

Record batches with the column `image` come in as an Arrow stream, and batches with `label` and
`probabilities` go out as another. `-I` keeps this clone off `sys.path`; what an editable
installation adds to it is taken away here.
"""

import os
import sys
from pathlib import Path

PROJECT = Path(__file__).absolute().parents[2]
OURS = ("flows", "models", "retrain", "tasks")


def main(package: Path) -> None:
    """Answers until there are no more images."""
    with os.fdopen(os.dup(1), "wb") as output:
        os.dup2(2, 1)  # whatever a library prints must not get between the answers
        _forget_the_project()
        import mlflow
        from pyarrow import RecordBatch, array, ipc

        model = mlflow.pyfunc.load_model(str(package))
        for name, module in list(sys.modules.items()):
            if name.split(".")[0] in OURS:
                assert Path(str(module.__file__)).is_relative_to(package), f"{name} is not its own"
        writer = None
        for images in ipc.open_stream(sys.stdin.buffer):
            said = model.predict(images.to_pandas())
            columns = [array(said["label"]), array(said["probabilities"])]
            answers = RecordBatch.from_arrays(columns, ["label", "probabilities"])
            if writer is None:
                writer = ipc.new_stream(output, answers.schema)
            writer.write_batch(answers)
            output.flush()


def _forget_the_project() -> None:
    """Takes this clone out of where Python looks for modules."""
    sys.path[:] = [path for path in sys.path if Path(path).absolute() != PROJECT]
    sys.meta_path[:] = [
        finder
        for finder in sys.meta_path
        if not str(getattr(finder, "__module__", "")).startswith("__editable__")
    ]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
