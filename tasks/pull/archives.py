"""Unpacks data that is an archive: zip, or tar in any compression."""

import shutil
import stat
import sys
import zipfile
import zlib
from lzma import LZMAError
from pathlib import Path

from tasks.pull.transfer import inside

if sys.version_info >= (3, 11, 4):
    import tarfile
else:  # Python's own has no filters before that; Debian 12 has 3.11.2
    from backports import tarfile  # type: ignore[no-redef]

SHARE = 0.9  # of the free disk, which an archive may fill: the run needs some, too


def unpack(folder: Path, scratch: Path) -> None:
    """Replaces an archive by its content, if it is the only file in a folder.

    Args:
        folder: The folder, which may hold one archive alone.
        scratch: Where the archive is unpacked; on the same file system.

    Raises:
        ValueError: The archive is damaged, would fill the disk, or has a link, or a file whose name
            leads outside it, is too long or is another file's too.
    """
    archive = next(folder.iterdir())
    if len(list(folder.iterdir())) > 1 or not archive.is_file():
        return
    is_zip = zipfile.is_zipfile(archive)
    if not is_zip and not tarfile.is_tarfile(archive):
        return
    unpacked = scratch / "unpacked"
    shutil.rmtree(unpacked, ignore_errors=True)  # of a run that was killed
    unpacked.mkdir()
    try:
        (_unpack_zip if is_zip else _unpack_tar)(archive, unpacked)
    except (
        zipfile.BadZipFile, tarfile.TarError, zlib.error, LZMAError, EOFError, RuntimeError,
        FileExistsError, IsADirectoryError, NotADirectoryError,  # a file that is a folder too
    ) as error:  # fmt: skip
        raise ValueError(f"The archive {archive.name} cannot be unpacked: {error}") from error
    shutil.rmtree(folder)
    shutil.move(_without_wrapping(unpacked), folder)


def _unpack_zip(archive: Path, target: Path) -> None:
    accept = _Rules(target).check
    with zipfile.ZipFile(archive) as file:
        for member in file.infolist():
            is_link = stat.S_ISLNK(member.external_attr >> 16)
            accept(member.filename, member.file_size, member.is_dir(), is_link)
        file.extractall(target)
    shutil.rmtree(target / "__MACOSX", ignore_errors=True)  # macOS metadata, named like the files


def _unpack_tar(archive: Path, target: Path) -> None:
    accept = _Rules(target).check

    def checked(member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo:
        accept(member.name, member.size, member.isdir(), member.issym() or member.islnk())
        return tarfile.data_filter(member, folder)  # refuses devices and pipes

    with tarfile.open(archive) as file:
        file.extractall(target, filter=checked)


class _Rules:
    """What the members of an archive have to keep to, each before it is unpacked."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._left = self._most = int(shutil.disk_usage(target).free * SHARE)
        self._taken: set[Path] = set()

    def check(self, name: str, size: int, is_folder: bool, is_link: bool) -> None:
        """Refuses a member that is no file or folder of its own, or one too many for the disk."""
        path = inside(self._target, name)
        if is_link:
            raise ValueError(
                f"The data's archive has a link, {name!r}. Pack the files themselves: zip does so, "
                "and tar with --dereference --hard-dereference."
            )
        if not is_folder and path in self._taken:
            raise ValueError(
                f"The data's archive has two files with the name {name!r}; which is it?"
            )
        self._taken.add(path)
        self._left -= size
        if self._left < 0:
            raise ValueError(
                f"The data's archive would unpack to more than {self._most / 1e9:,.1f} GB, which "
                f"is {SHARE:.0%} of what is free on the disk of the store. Free some, or unpack it "
                "elsewhere and set data.path to the folder."
            )


def _without_wrapping(folder: Path) -> Path:
    """The innermost folder that holds everything; a class folder is not unwrapped."""
    entries = [path for path in folder.iterdir() if not path.name.startswith(".")]
    if len(entries) == 1 and entries[0].is_dir():
        below = entries[0].iterdir()
        if any(path.is_dir() or path.suffix == ".parquet" for path in below):
            return _without_wrapping(entries[0])
    return folder
