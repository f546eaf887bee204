"""Unpacks data that is an archive: zip, or tar in any compression."""

import shutil
import sys
import zipfile
import zlib
from lzma import LZMAError
from pathlib import Path

from tasks.data.listing import is_data

if sys.version_info >= (3, 11, 4):
    import tarfile
else:  # Python's own has no filters before that; Debian 12 has 3.11.2
    from backports import tarfile  # type: ignore[no-redef]


def unpack(folder: Path, scratch: Path) -> None:
    """Replaces an archive by its content, if it is the only file in a folder.

    Args:
        folder: The folder, which may hold one archive alone.
        scratch: The folder in which the archive is unpacked; on the same file system.

    Raises:
        ValueError: The archive is damaged, or has a link or a file that leads outside it.
    """
    archive, *others = folder.iterdir()
    if others or not archive.is_file():
        return
    is_zip = zipfile.is_zipfile(archive)
    if not is_zip and not tarfile.is_tarfile(archive):
        return
    unpacked = scratch / "unpacked"
    shutil.rmtree(unpacked, ignore_errors=True)  # of a run that was killed
    unpacked.mkdir()
    try:
        if is_zip:
            with zipfile.ZipFile(archive) as file:
                members = file.infolist()
                for member in members:  # some programs on Windows write `cat\\1.png`
                    member.filename = member.filename.replace("\\", "/")
                file.extractall(unpacked, members)  # never outside, whatever the names are
        else:
            with tarfile.open(archive) as file:
                file.extractall(unpacked, filter=_checked)
    except (
        zipfile.BadZipFile, tarfile.TarError, zlib.error, LZMAError, EOFError, RuntimeError,
        FileExistsError, IsADirectoryError, NotADirectoryError,  # a file that is a folder too
    ) as error:  # fmt: skip
        raise ValueError(f"The archive {archive.name} cannot be unpacked: {error}") from error
    shutil.rmtree(folder)
    shutil.move(_without_wrapping(unpacked), folder)


def _checked(member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo:
    if member.issym() or member.islnk():  # it may lead elsewhere, once wrapping is taken away
        raise ValueError(
            f"The data's archive has a link, {member.name!r}. Pack the files themselves: tar "
            "does so with --dereference --hard-dereference."
        )
    return tarfile.data_filter(member, folder)  # refuses what leads outside, devices and pipes


def _without_wrapping(folder: Path) -> Path:
    """The innermost folder that holds everything; a class folder is not unwrapped."""
    entries = [path for path in folder.iterdir() if is_data(path.name)]
    wraps = len(entries) == 1 and entries[0].is_dir()
    if wraps and any(path.is_dir() or path.suffix == ".parquet" for path in entries[0].iterdir()):
        return _without_wrapping(entries[0])
    return folder
