"""How often `retrain drift` raises an alarm although nothing has changed, and what it finds.

    python -m benchmarks.drift [--checks 200]

The images are scikit-learn's handwritten digits without the nine, turned, moved and drawn in the
colours of paper and ink of a small photo (JPEG, 48 x 48); a small convolutional network that is
trained on other digits gives their labels, confidences and embeddings. A check draws a reference
and what comes in from them, and compares the two as the flow does (`tasks.drift.compare`).

- Nothing has changed: both are drawn from the same 4,000 images. Shown is the share of the checks
  with a score above 1, which should be 5 % at most, and above `drift.threshold`. Once as the images
  are (all of one size), and once with 1,000 classes, equally frequent, and with one image of 500
  that has another size.
- Something has changed: what comes in is of 2,000 images with one change, of which each line says
  what. Shown is the share of the checks with a score above `drift.threshold`, the median of the
  scores, and the feature that most often has the largest.

All draws are seeded. Result of 2026-11-23: in `benchmarks/README.md`.
"""

import argparse
import hashlib
import io
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from PIL import Image, ImageFilter
from torch import nn

from retrain.workload import Drift
from tasks.data.image_facts import WITH_FEATURES, measure, schema
from tasks.drift.compare import compare

SIDE = 48
SIZES = ((1000, 1000), (1000, 200), (360, 50))  # of the reference, and of what comes in
POOL, CHANGED = 4000, 2000
THRESHOLD = Drift().threshold


@dataclass(frozen=True)
class Scene:
    """How images come about.

    Attributes:
        light: What the pixels are multiplied by.
        blur: The radius of a Gaussian blur, in pixels.
        red: What the red channel is multiplied by, and the blue one divided by.
        wide: The share of images that are a sixth wider.
        nines: The share of images of a class that the network does not know.
        ones: The share of images that are of the ones, besides those that are anyway.
        copies: The share of images that are the same one.
    """

    light: float = 1.0
    blur: float = 0.0
    red: float = 1.0
    wide: float = 0.0
    nines: float = 0.0
    ones: float = 0.0
    copies: float = 0.0


CHANGES = {
    "a tenth darker": Scene(light=0.9),
    "blurred, radius 1 of 48 pixels": Scene(blur=1.0),
    "30 % more of one class": Scene(ones=0.3),
    "another camera: 10 % of images are wider": Scene(wide=0.1),
    "10 % of an unknown class": Scene(nines=0.1),
    "30 % of an unknown class": Scene(nines=0.3),
    "colour cast: red 1.15, blue / 1.15": Scene(red=1.15),
    "a stuck camera: 20 % copies of an image": Scene(copies=0.2),
}


class Network(nn.Module):
    """A small convolutional network."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(),
            nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(3), nn.Flatten(),
            nn.Linear(576, 64), nn.ReLU(),
        )  # fmt: skip
        self.head = nn.Linear(64, 9)

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The logits and the features of images, float32 (N, 3, SIDE, SIDE) from 0 to 1."""
        features = self.body(images)
        return self.head(features), features


def digits() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The digits (N, 8, 8) from 0 to 1, in an order of their own, and which they are."""
    from sklearn.datasets import load_digits

    found = load_digits()
    order = np.random.default_rng(0).permutation(len(found.images))
    return found.images[order] / 16, found.target[order]


def draw(
    images: NDArray[np.float64], labels: NDArray[np.int64], count: int, scene: Scene, seed: int
) -> tuple[list[bytes], NDArray[np.int64]]:
    """Encoded images of a scene, and which digits they show."""
    rng = np.random.default_rng(seed)
    common, ones, nines = (np.flatnonzero(each) for each in (labels < 9, labels == 1, labels == 9))
    encoded: list[bytes] = []
    shown = []
    for _ in range(count):
        if encoded and rng.random() < scene.copies:
            encoded.append(encoded[0])
            shown.append(shown[0])
            continue
        lot = rng.random()
        kind = nines if lot < scene.nines else ones if lot < scene.nines + scene.ones else common
        index = rng.choice(kind)
        encoded.append(_photo(images[index], scene, rng))
        shown.append(labels[index])
    return encoded, np.array(shown)


def _photo(digit: NDArray[np.float64], scene: Scene, rng: np.random.Generator) -> bytes:
    ink = Image.fromarray((digit * 255).astype(np.uint8)).resize((36, 36), Image.Resampling.BICUBIC)
    width = SIDE * 7 // 6 if rng.random() < scene.wide else SIDE
    canvas = Image.new("L", (width, SIDE))
    canvas.paste(ink, tuple(rng.integers(2, 11, 2).tolist()))
    canvas = canvas.rotate(float(rng.normal(0, 6)), Image.Resampling.BILINEAR)
    paper, pen = rng.uniform(0.6, 0.95, 3), rng.uniform(0.05, 0.35, 3)
    share = np.asarray(canvas)[:, :, None] / 255
    pixels = (paper * (1 - share) + pen * share) * scene.light
    pixels *= np.array([scene.red, 1.0, 1 / scene.red])
    pixels += rng.normal(0, 0.02, pixels.shape)
    photo = Image.fromarray((np.clip(pixels, 0, 1) * 255).astype(np.uint8))
    if scene.blur:
        photo = photo.filter(ImageFilter.GaussianBlur(scene.blur))
    buffer = io.BytesIO()
    photo.save(buffer, "JPEG", quality=85)
    return buffer.getvalue()


def decode(encoded: list[bytes]) -> torch.Tensor:
    """Images as a network takes them."""
    pixels = [
        np.asarray(Image.open(io.BytesIO(data)).resize((SIDE, SIDE)), np.float32) / 255
        for data in encoded
    ]
    return torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2)


def train(encoded: list[bytes], labels: NDArray[np.int64]) -> Network:
    """A network that knows the digits without the nine."""
    torch.manual_seed(0)
    network, inputs, targets = Network(), decode(encoded), torch.from_numpy(labels)
    optimizer = torch.optim.AdamW(network.parameters(), 2e-3)
    for _ in range(12):
        for rows in torch.randperm(len(inputs)).split(64):
            loss = nn.functional.cross_entropy(network(inputs[rows])[0], targets[rows])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return network.eval()


def table(network: Network, encoded: list[bytes]) -> pa.Table:
    """What the flow knows of images, as `tasks.data.image_facts.schema` has it."""
    with torch.inference_mode():
        logits, features = network(decode(encoded))
    confidence, label = logits.softmax(1).max(1)
    rows = [
        {
            "sha256": hashlib.sha256(data).hexdigest(),
            "label": str(int(label[row])),
            "confidence": float(confidence[row]),
            "features": features[row].numpy(),
            **(measure(data) or {}),
        }
        for row, data in enumerate(encoded)
    ]
    return pa.Table.from_pylist(rows, schema())


def check(reference: pa.Table, incoming: pa.Table) -> tuple[float, str]:
    """The largest score, and of which feature it is."""
    scored = [
        (each["score"] or 0.0, each["feature"])
        for each in compare(*map(_sample, (reference, incoming)))
    ]
    return max(scored)


def _sample(images: pa.Table) -> pa.Table:
    """With the features of as many images as the flow has them of."""
    few = images["features"].to_pylist()[:WITH_FEATURES]
    column = pa.array([*few, *[None] * (len(images) - len(few))], schema().field("features").type)
    return images.set_column(images.schema.get_field_index("features"), "features", column)


def false_alarms(pool: pa.Table, checks: int) -> None:
    """Prints how often a check of two samples of the same images raises an alarm."""
    rng = np.random.default_rng(1)
    odd = pool
    for name, values in (
        ("label", rng.choice([f"class {number}" for number in range(1000)], len(pool))),
        ("side", np.where(rng.random(len(pool)) < 1 / 500, 2.0 * SIDE, SIDE)),
    ):
        place = odd.schema.get_field_index(name)
        odd = odd.set_column(place, name, pa.array(values, odd.schema.field(name).type))
    columns = ("images", "reference", "incoming", "score above 1", "above the threshold")
    print(f"\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for name, images in (("as they are", pool), ("1,000 classes, rare sizes", odd)):
        for sizes in SIZES:
            scores = []
            for _ in range(checks):
                rows = rng.permutation(len(images))[: sum(sizes)]
                two = (images.take(rows[: sizes[0]]), images.take(rows[sizes[0] :]))
                scores.append(check(*two)[0])
            above = [np.mean(np.array(scores) > bound) for bound in (1, THRESHOLD)]
            cells = [name, *(f"{size:,}" for size in sizes), *(f"{each:.1%}" for each in above)]
            print(f"| {' | '.join(cells)} |", flush=True)


def detection(pool: pa.Table, changed: dict[str, pa.Table], checks: int) -> None:
    """Prints how often a change is found."""
    rng = np.random.default_rng(2)
    sizes = "".join(f" {one:,} to {two:,} |" for one, two in SIZES)
    print(f"\n| what comes in |{sizes} feature |\n|---|{'---|' * len(SIZES)}---|")
    for name, images in changed.items():
        cells, features = [name], Counter[str]()
        for reference, incoming in SIZES:
            found = [
                check(
                    pool.take(rng.permutation(len(pool))[:reference]),
                    images.take(rng.permutation(len(images))[:incoming]),
                )
                for _ in range(checks)
            ]
            scores = np.array([score for score, _ in found])
            features.update(feature for _, feature in found)
            cells.append(f"{np.mean(scores > THRESHOLD):.0%} ({np.median(scores):.1f})")
        cells.append(f"`{features.most_common(1)[0][0]}`")
        print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Prints both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checks", type=int, default=200)
    checks = parser.parse_args().checks
    images, labels = digits()
    known = (images[:800], labels[:800])
    others = (images[800:], labels[800:])
    network = train(*draw(*known, 4000, Scene(), seed=0))
    encoded, shown = draw(*others, POOL, Scene(), seed=1)
    pool = table(network, encoded)
    right = np.mean([int(each) for each in pool["label"].to_pylist()] == shown)
    print(f"accuracy {right:.3f}")
    false_alarms(pool, checks)
    changed = {
        name: table(network, draw(*others, CHANGED, scene, seed=2)[0])
        for name, scene in CHANGES.items()
    }
    detection(pool, changed, max(1, checks // 10))


if __name__ == "__main__":
    main()
