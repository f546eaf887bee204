"""Mutated Parquet files and archives; each is a data set of its own."""

import gzip
import io
import tarfile
import zipfile

import pyarrow as pa
from pyarrow import parquet

from tests.fuzz.case import Maker, Random, choose, flipped, spliced, truncated
from tests.fuzz.images import encode, picture

IMAGES = 40  # of two classes


def _pngs(rng: Random) -> list[bytes]:
    return [encode(picture(rng), "PNG") for _ in range(IMAGES)]


def _columns(rng: Random) -> dict[str, list]:
    return {
        "image": [
            {"bytes": data, "path": f"{row}.png"} for row, data in enumerate(_pngs(rng))
        ],
        "label": [("cat", "dog")[row % 2] for row in range(IMAGES)],
    }  # fmt: skip


def _file(columns: dict, **options) -> bytes:
    file = io.BytesIO()
    parquet.write_table(pa.table(columns), file, **options)
    return file.getvalue()


def _good_parquet(rng: Random) -> bytes:
    columns = _columns(rng)
    variant = rng.integers(5)
    if variant == 1:  # plain bytes
        columns["image"] = [image["bytes"] for image in columns["image"]]
    if variant == 2:  # numbers
        columns["label"] = [row % 2 for row in range(IMAGES)]
    if variant == 3:  # columns that nobody asked for
        columns |= {"note": ["x" * 100] * IMAGES, "when": [0.5] * IMAGES}
    options = {"row_group_size": int(choose(rng, [1, 7, 100])) if variant == 4 else 100}
    return _file(columns, compression=choose(rng, ["none", "snappy", "gzip", "zstd"]), **options)


def _odd_parquet(rng: Random) -> bytes:
    """Columns that are no images and labels."""
    columns = _columns(rng)
    images = [image["bytes"] for image in columns["image"]]
    nothing = [None] * IMAGES
    odd = choose(
        rng,
        [
            {"label": nothing},
            {"label": [0.5] * IMAGES},
            {"label": [["a", "b"]] * IMAGES},
            {"label": [{"a": 1}] * IMAGES},
            {"label": [b"\xff\xfe"] * IMAGES},
            {"label": ["", "dog"] * (IMAGES // 2)},
            {"label": ["../..", "a/b"] * (IMAGES // 2)},
            {"label": ["x" * 100_000, "dog"] * (IMAGES // 2)},
            {"label": [True, False] * (IMAGES // 2)},
            {"label": [-1, 2**62] * (IMAGES // 2)},
            {"image": nothing},
            {"image": [{"bytes": None, "path": "a.png"}] * IMAGES},
            {"image": [{"path": "a.png"}] * IMAGES},
            {"image": [7] * IMAGES},
            {"image": ["/etc/passwd"] * IMAGES},
            {"image": [[image] for image in images]},
            {"image": [{"bytes": "text", "path": "a.png"}] * IMAGES},
            {"image": [*images[:-1], None]},
            {"image": [*images[:-1], b""]},
        ],
    )
    return _file(columns | odd)


def _empty_parquet(rng: Random) -> bytes:
    columns = _columns(rng)
    table = pa.table(columns)
    table = choose(
        rng, [table.slice(0, 0), table.select(["image"]), table.select(["label"]), table.select([])]
    )
    file = io.BytesIO()
    parquet.write_table(table, file)
    return file.getvalue()


def _parquet(make, good: bool | None) -> Maker:
    return lambda rng: (".parquet", make(rng), good)


def _members(rng: Random) -> dict[str, bytes]:
    wrapping = choose(rng, ["", "photos/"])
    return {
        f"{wrapping}{('cat', 'dog')[row % 2]}/{row}.png": data
        for row, data in enumerate(_pngs(rng))
    }


def _zip(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in members.items():
            undated = zipfile.ZipInfo(name)  # the time of day would differ between runs
            archive.writestr(undated, data, zipfile.ZIP_DEFLATED)
    return file.getvalue()


def _tar(members: dict[str, bytes], *more: tarfile.TarInfo) -> bytes:
    file = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=file, mode="wb", compresslevel=1, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        for info in more:
            archive.addfile(info)
    return file.getvalue()


def _packed(rng: Random, members: dict[str, bytes]) -> tuple[str, bytes]:
    return (".zip", _zip(members)) if rng.random() < 0.5 else (".tar.gz", _tar(members))


def _good_archive(rng: Random):
    return *_packed(rng, _members(rng)), True


def _broken_archive(mutate) -> Maker:
    def make(rng: Random):
        ending, data = _packed(rng, _members(rng))
        return ending, mutate(rng, data), None

    return make


def _accompanied(rng: Random):
    """Files that often lie beside images."""
    beside = {"README.md": b"# Photos", "cat/Thumbs.db": b"\0", ".DS_Store": b"\0"}
    return *_packed(rng, _members(rng) | {"__MACOSX/cat/._0.png": b"\0"} | beside), None


def _odd_names(rng: Random):
    name = choose(
        rng,
        ["../out.png", "/tmp/out.png", "cat/../../out.png", "cat\\0.png", "cat/\u00e9.png",
         "cat/a\nb.png", "C:\\out.png", "cat/" + "n" * 250 + ".png", "a/" * 200 + "0.png", " ",
         "cat/0.png/0.png"],
    )  # fmt: skip
    return *_packed(rng, _members(rng) | {name: encode(picture(rng), "PNG")}), None


def _odd_entries(rng: Random):
    """Entries of a tar that are no files."""
    info = tarfile.TarInfo("cat/odd.png")
    info.type = choose(
        rng, [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.DIRTYPE]
    )
    info.linkname = choose(rng, ["/etc/passwd", "0.png", "odd.png", "../../../etc/passwd", "../.."])
    return ".tar.gz", _tar(_members(rng), info), None


def _inflated(rng: Random):
    """Little that unpacks to much."""
    return *_packed(rng, _members(rng) | {"cat/zeros.png": bytes(300_000_000)}), None


def _odd_archive(rng: Random):
    members = _members(rng)
    return choose(
        rng,
        [
            (".zip", _zip({}), False),
            (".tar.gz", _tar({}), False),
            (".zip", b"PK\x03\x04" + rng.bytes(100), False),
            (".tar.gz", b"\x1f\x8b" + rng.bytes(100), False),
            (".zip", _zip({"inner.zip": _zip(members)}), None),
            (".zip", _zip({"a.txt": b"no images"}), False),
            (".zip", _zip({f"{row}.png": data for row, data in enumerate(members.values())}), None),
        ],
    )


MAKERS: dict[str, Maker] = {
    "unchanged Parquet": _parquet(_good_parquet, True),
    "unchanged archive": _good_archive,
    "truncated Parquet": _parquet(lambda rng: truncated(rng, _good_parquet(rng)), None),
    "truncated archive": _broken_archive(truncated),
    "flipped bytes in Parquet": _parquet(lambda rng: flipped(rng, _good_parquet(rng)), None),
    "flipped bytes in archive": _broken_archive(flipped),
    "bytes put into Parquet": _parquet(lambda rng: spliced(rng, _good_parquet(rng)), None),
    "bytes put into archive": _broken_archive(spliced),
    "odd columns": _parquet(_odd_parquet, None),
    "odd names": _odd_names,
    "empty Parquet": _parquet(_empty_parquet, False),
    "odd entries": _odd_entries,
    "no Parquet": _parquet(lambda rng: rng.bytes(int(rng.integers(0, 200))), False),
    "odd archive": _odd_archive,
    "files beside images": _accompanied,
}
RARE: dict[str, Maker] = {"archive that inflates": _inflated}
