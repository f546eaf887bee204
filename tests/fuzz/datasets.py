"""Mutated Parquet files and archives; each is a data set of its own."""

import io
import tarfile
import zipfile

import pyarrow as pa
from pyarrow import parquet

from tests.fuzz.case import Maker, Random, choose, damaged
from tests.fuzz.images import encode, picture

IMAGES = 40  # of two classes
HALF = IMAGES // 2
LABELS = ["cat", "dog"] * HALF
ODD_LABELS = (
    [None] * IMAGES, [0.5] * IMAGES, [["a", "b"]] * IMAGES, [{"a": 1}] * IMAGES,
    [b"\xff\xfe"] * IMAGES, ["", "dog"] * HALF, ["../..", "a/b"] * HALF,
    ["x" * 100_000, "dog"] * HALF, [True, False] * HALF, [-1, 2**62] * HALF,
)  # fmt: skip
ODD_IMAGES = (
    [None] * IMAGES, [{"bytes": None, "path": "a.png"}] * IMAGES, [{"path": "a.png"}] * IMAGES,
    [7] * IMAGES, ["/etc/passwd"] * IMAGES, [{"bytes": "text", "path": "a.png"}] * IMAGES,
)  # fmt: skip
ODD_NAMES = (
    "../out.png", "/tmp/out.png", "cat/../../out.png", "cat\\0.png", "cat/\u00e9.png",
    "cat/a\nb.png", "C:\\out.png", "cat/" + "n" * 250 + ".png", "a/" * 200 + "0.png", " ",
    "cat/0.png/0.png", "__MACOSX/cat/._0.png", "cat/Thumbs.db",
)  # fmt: skip
ODD_ENTRIES = (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.DIRTYPE)
LINKS = ("/etc/passwd", "0.png", "odd.png", "../../../etc/passwd", "../..")


def _columns(rng: Random) -> dict[str, list]:
    images = [encode(picture(rng), "PNG") for _ in range(IMAGES)]
    return {"image": images, "label": LABELS}


def _parquet(columns, good: bool | None, **options):
    file = io.BytesIO()
    parquet.write_table(pa.table(columns), file, **options)
    return ".parquet", file.getvalue(), good


def _good_parquet(rng: Random):
    columns = _columns(rng)
    if rng.random() < 0.5:  # as the hub has them
        columns["image"] = [{"bytes": data, "path": "a.png"} for data in columns["image"]]
    columns["label"] = choose(rng, [LABELS, [0, 1] * HALF])
    columns["note"] = ["nobody asked for this column"] * IMAGES
    compression = choose(rng, ["none", "snappy", "gzip", "zstd"])
    return _parquet(columns, True, compression=compression, row_group_size=choose(rng, [1, 7, 100]))


def _odd_parquet(rng: Random):
    columns = _columns(rng)
    holes = [[*columns["image"][:-1], hole] for hole in (None, b"")]
    odd = [{"label": labels} for labels in ODD_LABELS]
    odd += [{"image": images} for images in (*ODD_IMAGES, *holes)]
    return _parquet(columns | choose(rng, odd), None)


def _empty_parquet(rng: Random):
    table = pa.table(_columns(rng))
    empty = [table.slice(0, 0), *(table.select(names) for names in (["image"], ["label"], []))]
    return _parquet(choose(rng, empty), False)


def _members(rng: Random) -> dict[str, bytes]:
    folder = choose(rng, ["", "photos/"])
    named = enumerate(zip(LABELS, _columns(rng)["image"], strict=True))
    return {f"{folder}{label}/{row}.png": data for row, (label, data) in named}


def _zip(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)  # undated
    return file.getvalue()


def _tar(members: dict[str, bytes], *more: tarfile.TarInfo) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        for info in more:
            archive.addfile(info)
    return file.getvalue()


def _archive(rng: Random, members: dict[str, bytes], good: bool | None):
    if rng.random() < 0.5:
        return ".zip", _zip(members), good
    return ".tar", _tar(members), good


def _odd_entry(rng: Random):
    info = tarfile.TarInfo("cat/odd.png")
    info.type, info.linkname = choose(rng, ODD_ENTRIES), choose(rng, LINKS)
    return ".tar", _tar(_members(rng), info), None


def _odd_archive(rng: Random):
    members = _members(rng)
    flat = {f"{row}.png": data for row, data in enumerate(members.values())}
    odd = [({}, False), ({"a.txt": b"no images"}, False), ({"a.zip": _zip(members)}, None)]
    return _archive(rng, *choose(rng, [*odd, (flat, None)]))


MAKERS: dict[str, Maker] = {
    "unchanged Parquet": _good_parquet,
    "unchanged archive": lambda rng: _archive(rng, _members(rng), True),
    "odd columns": _odd_parquet,
    "empty Parquet": _empty_parquet,
    "no Parquet": lambda rng: (".parquet", rng.bytes(int(rng.integers(0, 200))), False),
    "odd names": lambda rng: _archive(rng, _members(rng) | {choose(rng, ODD_NAMES): b"\0"}, None),
    "odd entries": _odd_entry,
    "odd archive": _odd_archive,
    **{f"{name} in Parquet": maker for name, maker in damaged(_good_parquet).items()},
    **{
        f"{name} in archive": maker
        for name, maker in damaged(lambda rng: _archive(rng, _members(rng), None)).items()
    },
}
# Little that unpacks to much; one is enough.
BIG: dict[str, Maker] = {
    "inflates": lambda rng: (".zip", _zip(_members(rng) | {"cat/0": bytes(300_000_000)}), None)
}
