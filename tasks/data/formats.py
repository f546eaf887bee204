"""Recognises the format of the data by the names of its files, and by what lists its images."""

from collections import Counter
from pathlib import Path

from tasks.data import listings
from tasks.data.listing import IMAGE_SUFFIXES, list_files


def recognise(root: Path) -> str:
    """The format of the data in a folder; a key of `tasks.data.raw_dataset.READERS`.

    Raises:
        ValueError: It is none, or a file that lists the images cannot be read.
    """
    files = [name for name, _ in list_files(root)]
    names = [Path(name) for name in files]
    suffixes = Counter(name.suffix.lower() for name in names)
    folders = {name.parent for name in names if name.suffix.lower() in IMAGE_SUFFIXES}
    if suffixes[".parquet"]:
        return "parquet"
    in_folders = bool(folders - {Path()})
    if folders and (form := listings.recognise(root, files, has_class_folders=len(folders) > 1)):
        return form
    if in_folders:
        return "folders"
    if suffixes[".tar"]:
        return "webdataset"
    kinds = suffixes.most_common(5)
    listed = ", ".join(f"{count} files with {kind or 'no suffix'}" for kind, count in kinds)
    where = "" if any(len(name.parts) > 1 for name in names) else " in no folder"
    raise ValueError(
        f"The folder of the data holds {listed or 'no files'}{where}. It should hold Parquet "
        "files, a folder of images per class (below train, val and test or not), a file that lists "
        "the images with their classes (CSV, JSONL, COCO, Label Studio, CVAT), or be one archive "
        "of these."
    )
