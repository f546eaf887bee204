"""Broken images, data sets and configurations: each ends in a sentence, and none is let through.

    make fuzz CASES=2000

A fault is an error that is none of ours, more than a minute or 2 GB of memory, an accepted image
that cannot be loaded, a good file that is refused, or one that cannot be good accepted.
"""

import io
import os
import signal
import struct
import tarfile
import zipfile
import zlib

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from models.image import to_array
from tests.flows.conftest import make_clone

pytestmark = pytest.mark.slow

CASES = int(os.environ.get("CASES", "160"))
SECONDS, MEMORY = 60, 2 * 2**30
FORMATS = {
    "JPEG": ".jpg", "PNG": ".png", "WEBP": ".webp", "GIF": ".gif", "BMP": ".bmp", "TIFF": ".tif",
    "PPM": ".ppm", "AVIF": ".avif", "JPEG2000": ".jp2",
}  # fmt: skip
MODES = (
    ("1", "PNG"), ("L", "JPEG"), ("LA", "PNG"), ("P", "GIF"), ("RGBA", "WEBP"), ("RGBA", "TIFF"),
    ("CMYK", "JPEG"), ("YCbCr", "TIFF"), ("I;16", "PNG"), ("I", "TIFF"), ("F", "TIFF"),
)  # fmt: skip
NO_IMAGES = (b"", bytes(5000), b"<html>404 not found</html>", b"%PDF-1.7\n", b"\x7fELF" + bytes(99))
LENIENT = ("max_bad_fraction=0.99", "min_images_per_class=1", "min_side=1")
HALF = 20
LABELS = ["cat", "dog"] * HALF
ODD_COLUMNS = [
    {"label": labels}
    for labels in (
        [None] * 40, [0.5] * 40, [["a", "b"]] * 40, [b"\xff\xfe"] * 40, ["", "dog"] * HALF,
        ["../..", "a/b"] * HALF, ["x" * 100_000, "dog"] * HALF, [-1, 2**62] * HALF,
    )
] + [{"image": images} for images in ([None] * 40, [7] * 40, ["/etc/passwd"] * 40)]  # fmt: skip
ODD_NAMES = ("../../evil.png", "/tmp/evil.png", "cat/../../evil.png", "cat/a\nb.png", "cat")
NUMBERS = ("train.epochs", "train.lr", "images.size", "model.layers", "gate.margin")
VALUES = ([1, 2], {"a": 1}, -1, 10**400, float("nan"), float("-inf"), "x", None, [[]])


@pytest.fixture(scope="module")
def clone(tmp_path_factory, prefect_api):
    return make_clone(tmp_path_factory.mktemp("fuzz"), prefect_api)


def choose(rng, options):
    return options[rng.integers(len(options))]


def picture(rng, mode="RGB"):
    """A picture that no other case has, 16 to 48 pixels on each side."""
    width, height = rng.integers(16, 49, 2)
    y, x = np.mgrid[:height, :width]
    waves = [127 + 120 * np.sin(x * a + y * b + c) for a, b, c in rng.random((3, 3)) * 3]
    pixels = np.stack(waves, axis=-1).astype(np.uint8)
    scale = {"F": np.float32(1 / 255), "I": np.int32(257), "I;16": np.uint16(257)}.get(mode)
    grey = None if scale is None else pixels[..., 0] * scale
    return Image.fromarray(pixels).convert(mode) if grey is None else Image.fromarray(grey)


def encode(image, format, **options):
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def damaged(rng, data):
    """A file that is cut, or with other bytes in it, or with more."""
    place = int(rng.integers(1, len(data)))
    flipped = bytes([data[place] ^ int(rng.integers(1, 256))])
    more = data[:place] + rng.bytes(99) + data[place:]
    return choose(rng, [data[:place], data[:place] + flipped + data[place + 1 :], more])


def huge(rng):
    """A small PNG that says of itself that it is huge."""
    data = bytearray(encode(picture(rng), "PNG"))
    data[16:24] = struct.pack(">II", 60_000, 60_000)
    data[29:33] = struct.pack(">I", zlib.crc32(bytes(data[12:29])))
    return bytes(data)


def image(rng):
    """The ending of an image's name, its content, and whether it is good; None if it may be."""
    format = choose(rng, list(FORMATS))
    data, (mode, other) = encode(picture(rng), format), choose(rng, MODES)
    exif = Image.Exif()
    exif[0x0112] = int(choose(rng, [0, 1, 6, 9, 65_535]))
    return choose(rng, [
        (FORMATS[format], data, True),
        (".png", data, True),
        (FORMATS[format], damaged(rng, data), None),
        (FORMATS[other], encode(picture(rng, mode), other), True),
        (".jpg", encode(picture(rng), "JPEG", exif=exif), True),
        (".png", huge(rng), False),
        (".jpg", choose(rng, NO_IMAGES), False),
    ])  # fmt: skip


def zipped(members):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return file.getvalue()


def linked(members, target):
    """A tar archive in which one of the images is a link."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        info = tarfile.TarInfo("cat/odd.png")
        info.type, info.linkname = tarfile.SYMTYPE, target
        archive.addfile(info)
    return file.getvalue()


def data_set(rng):
    """The same of a data set in one file."""
    images = [encode(picture(rng), "PNG") for _ in LABELS]
    columns = {"image": images, "label": LABELS}
    members = {f"{label}/{row}.png": images[row] for row, label in enumerate(LABELS)}

    def table(changes):
        file = io.BytesIO()
        pq.write_table(pa.table(columns | changes), file, row_group_size=7)
        return file.getvalue()

    return choose(rng, [
        (".parquet", table({}), True),
        (".zip", zipped(members), True),
        (".parquet", damaged(rng, table({})), None),
        (".parquet", table(choose(rng, ODD_COLUMNS)), None),
        (".parquet", rng.bytes(99), False),
        (".zip", damaged(rng, zipped(members)), None),
        (".zip", zipped(members | {choose(rng, ODD_NAMES): b"\0"}), None),
        (".zip", zipped(members | {"cat/0": bytes(300_000_000)}), None),
        (".zip", zipped({"a.txt": b"no images"}), False),
        (".tar", linked(members, choose(rng, ["/etc/passwd", "../..", "0.png"])), None),
    ])  # fmt: skip


def call(clone, *arguments):
    """Calls the command line; whether it accepts."""

    def hangs(*_):
        raise AssertionError(f"{arguments} hangs")

    signal.signal(signal.SIGALRM, hangs)
    signal.alarm(SECONDS)
    done = clone.call(*arguments)
    signal.alarm(0)
    said = done.stdout + done.stderr
    assert done.returncode in (0, 1, 2)
    assert not list((clone.root / ".retrain" / "logs").glob("*-error.log")), said
    assert "Traceback" not in said
    assert done.returncode == 0 or "retrain: " in done.stderr
    assert psutil.Process().memory_info().rss < MEMORY
    return done.returncode == 0


def validate(clone, path):
    changes = [word for each in LENIENT for word in ("--set", f"checks.{each}")]
    return call(clone, "validate", "vit", "--set", f"data.path={path}", *changes)


def test_of_broken_images_exactly_the_good_ones_are_taken(clone, tmp_path):
    rng, cases = np.random.default_rng(0), {}
    for number in range(CASES):
        ending, data, good = image(rng)
        cases[f"train/{('cat', 'dog')[number % 2]}/{number:05}{ending}"] = (data, good)
    for split in ("train", "val", "test"):  # so that the data is not refused as a whole
        for label in ("cat", "dog"):
            for number in range(5):
                data = encode(picture(rng), "PNG")
                cases[f"{split}/{label}/good-{number}.png"] = (data, True)
    for name, (data, _) in cases.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    assert validate(clone, tmp_path)
    [table] = clone.root.glob(".retrain/store/validate/*/images.parquet")
    accepted = set(pq.read_table(table, columns=["path"])["path"].to_pylist())
    for name, (data, good) in cases.items():
        assert good in (None, name in accepted), name
        if name in accepted:
            to_array(data, 16, 3, "crop")


@pytest.mark.parametrize("number", range(max(10, CASES // 8)))
def test_a_broken_data_set_is_refused_in_a_sentence(clone, tmp_path, number):
    ending, data, good = data_set(np.random.default_rng(number))
    path = tmp_path / f"data{ending}"
    path.write_bytes(data)
    assert good in (None, validate(clone, path))


def test_a_broken_configuration_is_refused_in_a_sentence(clone):
    path, rng = clone.root / "params.yaml", np.random.default_rng(0)
    shipped = path.read_bytes()
    deep = b"[" * 500 + b"]" * 500
    texts = [b"", b"workloads: []", b"- vit", b"%YAML 9.9\n---\n", shipped.replace(b"data/", deep)]
    texts += [damaged(rng, shipped) for _ in range(CASES)]
    for text in texts:
        path.write_bytes(text)
        call(clone, "train", "vit", "--dry-run")
    path.write_bytes(shipped)
    for number in range(CASES):
        name, value = NUMBERS[number % len(NUMBERS)], choose(rng, VALUES)
        assert not call(clone, "train", "vit", "--dry-run", "--set", f"{name}={value}")
    assert call(clone, "train", "vit", "--dry-run", "--set", "train.seed=7")
