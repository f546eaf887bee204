"""How fast `embed` calculates embeddings, against a plain loop of `transformers`.

    python -m benchmarks.embed --rounds 3

Each round embeds the same images with a CLIP ViT-B/32 of random weights, in turns: with the step
(from disk to finished files; in this process, and with actors of Ray Data, whose Ray runs already),
and with a loop over batches of a tensor in memory, with all cores as PyTorch's threads. All are
timed from the loading of the network to the last embedding. Actors take seconds to start, so that
their speed after that is shown too: from the first part that is done to the last. The first round
is left out as warm-up. The step and the loop calculate in the same precision, fp32 and that which
the project chooses.

The figures are images/s, medians of the rounds, and their ratios to the loop.
"""

import argparse
import random
import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

import pandas as pd
import torch
from joblib import cpu_count
from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection

from benchmarks import loops
from benchmarks.table import Row, report
from models.network import in_stored_units, normalise
from models.pretrained import find_version
from retrain.outputs import MANIFEST, list_files, write_manifest
from retrain.params import load_workload
from retrain.project import Project, find_project
from retrain.servers import ray_cluster
from retrain.step import Workspace
from retrain.store import Artifact
from retrain.workload import Workload
from tasks.data.image_table import SPLITS
from tasks.data.shards import open_prepared
from tasks.embed import step

HALF = (0.5, 0.5, 0.5)
ROWS_PER_SHARD = 64  # so that a few images are many parts
ALWAYS, NEVER = 1e-9, 1e30  # FLOP/s of a core, as the step believes: whether actors are worth it


def main() -> None:
    """Runs the rounds and prints the medians and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--small", action="store_true", help="a tiny network, to try it")
    options = parser.parse_args()
    ray_cluster.connect()
    loops.ROWS_PER_SHARD = ROWS_PER_SHARD
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        network = write_network(folder / "clip", options.small)
        changes = {"model.pretrained": str(network), "evaluate.batch_size": options.batch}
        chosen = load_workload(find_project().params, "doggos", changes).evaluate.precision
        changes["evaluate.precision"] = "fp32"
        workload = load_workload(find_project().params, "doggos", changes)
        images = prepare(folder / "images", workload, options.rows)
        for precision in dict.fromkeys(("fp32", chosen)):
            evaluation = workload.evaluate.model_copy(update={"precision": precision})
            compare(workload.model_copy(update={"evaluate": evaluation}), images, options.rounds)


def compare(workload: Workload, images: Path, rounds: int) -> None:
    """Runs the rounds in one precision."""
    rows = sum(len(open_prepared(images).split(split)) for split in SPLITS)
    tensors = [loops.tensors(open_prepared(images), split)[0] for split in SPLITS]
    found: dict[str, list[float]] = {way: [] for way in ("loop", "process", "actors", "started")}
    for _ in range(rounds + 1):
        for way in random.sample(("loop", "process", "actors"), 3):
            began, done = monotonic(), []
            if way == "loop":
                loop(workload, tensors)
            else:
                with believed(ALWAYS if way == "actors" else NEVER), parts_done(done):
                    run_step(workload, images)
            found[way].append(rows / (monotonic() - began))
            if way == "actors":
                (first, count), (last, _) = done[0], done[-1]
                found["started"].append((rows - count) / (last - first))
    speeds = {way: statistics.median(each[1:]) for way, each in found.items()}
    precision = workload.evaluate.precision
    for way, name, target in (
        ("process", "in the run's process", "≥ 0.95"),
        ("started", "by actors that have started", "≥ 0.95"),
        ("actors", "by actors, with their start", "-"),
    ):
        report(
            Row(
                "embed", f"CLIP ViT-B/32, {precision}, {name}", speeds[way],
                "plain loop", speeds["loop"], "images/s", target,
            )
        )  # fmt: skip


def write_network(folder: Path, small: bool) -> Path:
    """The image encoder of CLIP ViT-B/32, or a tiny one, with random weights."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = CLIPVisionConfig(**(sizes if small else {}), patch_size=32, projection_dim=512)
    CLIPVisionModelWithProjection(config).save_pretrained(folder)
    return folder


def prepare(folder: Path, workload: Workload, rows: int) -> Path:
    """Three splits of random images, as `preprocess` leaves them."""
    loops.prepare(folder, workload, rows)
    shutil.copytree(folder / "val", folder / "test")
    for split in SPLITS:
        count = len(open_prepared(folder).split(split))
        pd.DataFrame({"row": range(count)}).to_parquet(folder / split / "rows.parquet")
    write_manifest(folder / MANIFEST, {"files": list_files(folder)})
    return folder


@contextmanager
def believed(speed: float) -> Iterator[None]:
    """Has the step believe in a speed of the machine."""
    before = dict(step.SPEED)
    step.SPEED.update(dict.fromkeys(before, speed))
    try:
        yield
    finally:
        step.SPEED.update(before)


@contextmanager
def parts_done(done: list[tuple[float, int]]) -> Iterator[None]:
    """Notes when each part is done, and how many images it has."""
    progress = step.console.counted

    @contextmanager
    def noted(name: str, total: int) -> Iterator[Callable[[int], None]]:
        with progress(name, total) as show:

            def both(rows: int) -> None:
                done.append((monotonic(), rows))
                show(rows)

            yield both

    step.console.counted = noted
    try:
        yield
    finally:
        step.console.counted = progress


def run_step(workload: Workload, images: Path) -> None:
    """The project's step, from an empty workspace."""
    settings = workload.model.model_dump()
    version = find_version(settings["pretrained"], Path())
    model = workload.model.model_copy(update={"pretrained_version": version})
    with tempfile.TemporaryDirectory() as name:
        output, scratch = Path(name, "output"), Path(name, "scratch")
        output.mkdir()
        scratch.mkdir()
        step.embed(
            model,
            workload.evaluate,
            Artifact("preprocess", "benchmark", "benchmark", images, {"storage": "pixels"}),
            Workspace(output, scratch, "benchmark", workload.name, Project(Path(name))),
        )


def loop(workload: Workload, tensors: list[torch.Tensor]) -> torch.Tensor:
    """What one would write by hand."""
    torch.set_num_threads(cpu_count())
    device = "cuda" if torch.cuda.is_available() else "cpu"
    network = CLIPVisionModelWithProjection.from_pretrained(
        workload.model.model_dump()["pretrained"]
    ).to(device)
    mean = std = in_stored_units(HALF).to(device)
    batch = workload.evaluate.batch_size
    bf16 = torch.autocast(device, torch.bfloat16, enabled=workload.evaluate.precision == "bf16")
    found = []
    with torch.inference_mode(), bf16:
        for images in tensors:
            for first in range(0, len(images), batch):
                pixels = normalise(images[first : first + batch].to(device), mean, std)
                found.append(network(pixels).image_embeds.float().cpu())
    return torch.cat(found)


if __name__ == "__main__":
    main()
