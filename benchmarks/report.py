"""What the page of a run costs: seconds, bytes and memory, by the number of images and classes.

    python -m benchmarks.report --images 100000

A copy of the project trains on the starter data, and on generated images of ten classes and of a
thousand, each twice, so that the second model is compared with the first. The images are PNG files
of 8 x 8 pixels in Parquet, all of them noise, so that nearly all answers are wrong, as many as a
page can have to show. Then a process of its own writes the page of the second run again, and the
history. Its seconds, with imports that the run had done already, are compared with those of the
whole run; the size of the page with 2 MB, its limit; and the highest resident set of the process
with what it had before, without the imports.

Result of 2026-11-25, two cores: a page takes 0.85 s of the starter workload's run of 35 s (ratio
0.025), 1.2 s with 100,000 images of ten classes, of 77 s (0.016), and 1.5 s with those of a
thousand classes, of 213 s (0.008); the runs were measured beside other work. The pages have 0.11,
0.14 and 0.22 MB; the process had 99 MB before, and 231, 330 and 530 MB at most.
"""

import argparse
import json
import resource
import sys
import tempfile
from io import BytesIO
from pathlib import Path

from benchmarks.flow import call, copy_project
from benchmarks.table import Row, report

MB = 1e6
LIMIT = 2.0  # MB of a page
QUICK = ("train.epochs=1", "gate.min={}", "scale.memory_gb=4")


def main() -> None:
    """Trains, and writes the page of each run again."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=100_000)
    parser.add_argument("--page", nargs=2, metavar=("WORKLOAD", "RUN"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.page:
        write_page(*options.page)
        return
    with tempfile.TemporaryDirectory() as name:
        root = copy_project(Path(name, "clone"))
        measure(root, "starter workload", [])
        for classes in (10, 1000):
            data = generate(Path(name, f"data-{classes}"), options.images, classes)
            settings = [f"data.path={data}", *QUICK]
            measure(root, f"{options.images:,} images, {classes:,} classes", settings)


def generate(folder: Path, count: int, classes: int) -> Path:
    """Writes as many images of noise, a file for each split."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq
    from PIL import Image

    random = np.random.default_rng(classes)
    folder.mkdir()
    for split, share in {"train": 0.7, "val": 0.1, "test": 0.2}.items():
        images = []
        for pixels in random.integers(0, 256, (round(share * count), 8, 8), np.uint8):
            buffer = BytesIO()
            Image.fromarray(pixels).save(buffer, "PNG")
            images.append(buffer.getvalue())
        labels = [f"class {number % classes}" for number, _ in enumerate(images)]
        table = pa.table({"image": images, "label": labels})
        pq.write_table(table, folder / f"{split}.parquet", row_group_size=1000)
    return folder


def measure(root: Path, what: str, settings: list[str]) -> None:
    """Trains in a copy of the project, writes the page again, and reports what it takes."""
    chosen = [argument for setting in settings for argument in ("--set", setting)]
    name = what.replace(",", "").replace(" ", "-")
    train = ("-m", "retrain.cli", "train", "vit", "--as", name, "--json", *chosen)
    call(root, train)
    seconds, said = call(root, (*train, "--set", "train.seed=1"))
    run = json.loads(said)["run"]
    _, said = call(root, ("-m", "benchmarks.report", "--page", name, run))
    page = json.loads(said.splitlines()[-1])
    report(Row("report", f"{what}, page", page["seconds"], "run", seconds, "s", "≤ 3 s"))
    report(Row("report", f"{what}, page, of the CPU", page["cpu"], "run", seconds, "s"))
    report(Row("report", f"{what}, size", page["bytes"] / MB, "limit", LIMIT, "MB", "≤ 1"))
    before, after = page["before"] / MB, page["after"] / MB
    report(Row("report", f"{what}, memory", after, "before it", before, "MB"))


def write_page(workload: str, run: str) -> None:
    """Writes the page of a run of this project, and prints what that took."""
    from time import monotonic, process_time

    from flows.pages import publish
    from retrain.project import find_project
    from retrain.runs import records

    project = find_project()
    document = records.find_run(project, workload, run)
    assert document
    before, began, used = peak(), monotonic(), process_time()
    publish.write(project, document)
    seconds, used = monotonic() - began, process_time() - used
    file = project.root / "reports" / workload / f"{run}.html"
    size = file.stat().st_size
    result = {"seconds": seconds, "cpu": used, "bytes": size, "before": before, "after": peak()}
    print(json.dumps(result))


def peak() -> int:
    """Bytes of the highest resident set of this process so far."""
    scale = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale


if __name__ == "__main__":
    main()
