"""What the listings of much data cost the process of a run, where no disk has all of its files.

    python -m benchmarks.listings [--files 1000000] [--images 10000000]

The listing of DVC, the records of the tasks that have sent the files, and the manifest of `pull`
are made up; no file has a content. Each part runs in a process of its own, which is shown with its
seconds and its highest memory, with 83 MB of imports. A run does the first part once for new data,
and the others in each step that reads the raw data.

Of 2026-11-25, two cores, nearly idle: a million loose files 32 s and 889 MB (`publish`), 16 s and
978 MB (`find`), 40 s and 979 MB (`list_units`, which finds the output first); ten million images in
10,000 files 1.2 s and 95 MB, 0.4 s and 92 MB, 0.9 s and 111 MB.
"""

import argparse
import hashlib
import json
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path

from retrain import exchange
from retrain.atomic import write_json
from retrain.outputs import MANIFEST, Plan, digest_of_output
from retrain.remote import Remote
from retrain.store import Artifact, Store
from retrain.workload import Data
from tasks.data import parquet_files
from tasks.data.formats import recognise
from tasks.data.raw_dataset import Piece, Unit, open_raw_dataset
from tasks.pull import dvc_cache, dvc_objects

REMOTE = Remote("file:///nowhere")
PACKED, ROWS = 10_000, 100  # files of all images, and images in each of their row groups
CLASSES = 1000
MADE = Plan("pull", {}, {}, {}, {})


class Counted(parquet_files.Images):
    """Parquet files whose row groups are known."""

    def parts(self) -> Iterator[Unit]:
        """As many row groups in each file as there are images."""
        for name, size in self.files:
            for first in range(0, size, ROWS):
                yield Unit(ROWS, 100_000 * ROWS, (Piece(name, first, ROWS),))


def main() -> None:
    """Makes the listings, and shows what each part takes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=1_000_000)
    parser.add_argument("--images", type=int, default=10_000_000)
    options = parser.parse_args()
    numbers = range(options.files)
    loose = [f"class {number % CLASSES:04}/photo {number:09}.jpeg" for number in numbers]
    packed = [f"train-{number:05}-of-{PACKED}.parquet" for number in range(PACKED)]
    for names, size in ((loose, 100_000), (packed, options.images // PACKED)):
        print(f"{len(names):,} files")
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            in_a_process(make, folder, names, size)
            for part in (publish, find, list_units):
                seconds, megabytes = in_a_process(measured, part, folder)
                print(f"  {part.__name__:<12}{seconds:8.1f} s{megabytes:8.0f} MB", flush=True)


def in_a_process(function: Callable, *arguments: object) -> tuple[float, float]:
    """Calls a function in a new process."""
    with get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def measured(part: Callable[[Path], object], folder: Path) -> tuple[float, float]:
    """The seconds of a part, and the highest memory of the process in MB."""
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # the highest so far
    began = time.perf_counter()
    part(folder)
    seconds = time.perf_counter() - began
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    [highest] = re.findall(r"VmHWM:\s+(\d+) kB", status)
    return seconds, int(highest) * 1024 / 1e6


def make(folder: Path, names: list[str], size: int) -> None:
    """Writes DVC's listing of files, and the records of the tasks that have sent them."""
    names.sort()
    digests = [hashlib.sha256(name.encode()).hexdigest() for name in names]
    listing = [
        {"md5": digest[:32], "relpath": name} for name, digest in zip(names, digests, strict=True)
    ]
    (folder / "listing").write_text(json.dumps(listing), encoding="utf-8")
    entries = [
        {"path": f"data/{name}", "bytes": size, "sha256": digest}
        for name, digest in zip(names, digests, strict=True)
    ]
    (folder / "sent").mkdir()
    for first, record in dvc_objects.cut(entries, folder / "sent"):
        write_json(record, first)


def publish(folder: Path) -> None:
    """What `pull` does but for the work of the tasks, and the publishing of its output."""
    md5s = dvc_cache.read_listing(folder / "listing")
    objects = dvc_objects.Objects(None, "")
    exchange.has = lambda *_, **__: True  # no file has a content
    files = list(dvc_objects.send(objects, md5s, 1e5, REMOTE, folder / "sent"))
    facts = {"format": recognise(folder, [file["path"].removeprefix("data/") for file in files])}
    manifest = {"digest": digest_of_output(facts, files), "facts": facts, "files": files}
    manifest |= {"provenance": {"run": "1"}, "plan": asdict(MADE), "remote": REMOTE.url}
    (folder / "store/pull" / MADE.key).mkdir(parents=True)
    write_json(folder / "store/pull" / MADE.key / MANIFEST, manifest)


def find(folder: Path) -> Artifact:
    """Finds the output in the store, as each step does."""
    found = Store(folder / "store", REMOTE).find("pull", MADE.key)
    assert found
    return found


def list_units(folder: Path) -> None:
    """Cuts the images into units, as each step does that reads them."""
    pulled = find(folder)
    source = open_raw_dataset(Data(path="data"), pulled)
    if source.format == "parquet":
        source = Counted(source.format, source.files)
    assert source.units()


if __name__ == "__main__":
    main()
