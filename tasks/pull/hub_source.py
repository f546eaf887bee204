"""Downloads data sets from the Hugging Face hub, and reads such a layout here and there.

A data set on the hub may hold several that have nothing to do with each other, such as digits by
their value and by their parity: its configurations. Its card, README.md, says which files belong to
which, and declares splits.
"""

import posixpath
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from retrain.errors import UsageError
from retrain.params import parse_yaml
from retrain.runs import console
from tasks.data.listing import ALIASES, link_file, split_of
from tasks.pull.file_sources import map_in_threads, reaching

CARD = "README.md"
_YAML = re.compile(r"\s*---\s*\n((?:(?!---).*\n)*)---")  # the first lines of a card


@dataclass(frozen=True)
class HubSource:
    """The Parquet files of a data set on the Hugging Face hub.

    For a data set without any, the hub may have made a copy: `name@refs/convert/parquet`.

    Attributes:
        name: `owner/name`.
        revision: A branch, a tag or a commit.
        configuration: The name of one of its configurations; None for the only one, or the default.
    """

    name: str
    revision: str
    configuration: str | None = None

    def digest(self) -> str:
        """The commit that the revision points to; for a full commit hash the hub is not asked."""
        if re.fullmatch("[0-9a-f]{40}", self.revision):
            return self.revision
        with self._reached() as hub:
            return str(hub.dataset_info(self.name, revision=self.revision).sha)

    def fetch(self, digest: str, folder: Path, scratch: Path) -> None:
        """Downloads the card and the configuration's files, except those that a killed run has."""
        from huggingface_hub.utils import disable_progress_bars

        disable_progress_bars()
        downloaded = scratch / "hub"

        def download(name: str) -> None:
            hub.hf_hub_download(
                self.name, name, repo_type="dataset", revision=digest, local_dir=downloaded
            )

        with self._reached() as hub:
            listed = hub.list_repo_files(self.name, revision=digest, repo_type="dataset")
            card = [name for name in listed if name == CARD]
            map_in_threads(download, card)
            belong = splits_of_files(listed, downloaded / CARD, self.configuration)
            names = [name for name in belong if name.endswith(".parquet")]
            if not names:
                raise UsageError(
                    f"data.path: {self.name} on the Hugging Face hub has no Parquet files. Try "
                    f"{self.name}@refs/convert/parquet, where the hub keeps a copy of many."
                )
            with console.progress(f"downloading {len(names):,} files"):
                map_in_threads(download, names)
        for name in [*card, *names]:
            link_file(downloaded / name, folder / name)

    @contextmanager
    def _reached(self) -> Iterator[Any]:
        """Gives what asks the hub, whose errors become those of this project."""
        from huggingface_hub import HfApi, errors

        with reaching(
            f"The data set {self.name} on the Hugging Face hub cannot be read. Set HF_ENDPOINT to "
            "a mirror, or data.path to a folder with its Parquet files and data.format to parquet."
        ):
            try:
                yield HfApi()
            except (
                errors.HFValidationError,
                errors.RepositoryNotFoundError,
                errors.RevisionNotFoundError,
            ) as error:
                raise UsageError(
                    f"data.path: the Hugging Face hub gives no data set {self.name} at revision "
                    f"{self.revision}. If it is private or gated, log in first: hf auth login"
                ) from error


def splits_of_files(
    names: Iterable[str], card: Path, configuration: str | None
) -> dict[str, str | None]:
    """The files of a configuration, and the split of each.

    Args:
        names: The files of the data set.
        card: Its card, which need not be there.
        configuration: The name of one of its configurations; None if there is only one, or for the
            card's default.

    Returns:
        `train`, `val` or `test` for each file, by its name; None for each if the card does not say.

    Raises:
        UsageError: There is no such configuration, or there are several and none is named; or the
            card cannot be followed.
    """
    names = [*names]
    text = card.read_text("utf-8-sig", errors="replace") if card.exists() else ""
    described = _declared(text, configuration)
    if described is None:
        return dict.fromkeys(_in_folder(names, configuration))
    folder, declared = described
    if not declared:
        below = {name: split_of(name) for name in names if name.startswith(folder)}
        _check_found(folder, below)
        return {name: split for name, split in below.items() if split or not any(below.values())}
    from fsspec.utils import glob_translate

    splits: dict[str, str | None] = {}
    others = [split for split in declared if split.lower() not in ALIASES]
    if len(others) == len(declared):
        raise UsageError(f"{CARD} declares no split train, val or test, but {', '.join(others)}.")
    for split in declared:
        for pattern in declared[split] if split not in others else ():
            matches = re.compile(glob_translate(posixpath.normpath(folder + pattern))).match
            found = [name for name in names if matches(name)]
            _check_found(pattern, found)
            splits |= dict.fromkeys(found, ALIASES[split.lower()])
    if others:
        console.say(f"Left out: {', '.join(others)}, which {CARD} declares too.")
    return splits


def _declared(
    text: str, configuration: str | None
) -> tuple[str, Mapping[str, Sequence[str]]] | None:
    """What a card says of a configuration.

    Args:
        text: The card.
        configuration: The name of the configuration; None for the default.

    Returns:
        Its folder, with a `/`; empty for all. And the patterns of its files in that, by split. None
        if the card describes no configurations.
    """
    described = _YAML.match(text)
    if described is None or "configs:" not in described[1]:
        return None
    from datasets.data_files import sanitize_patterns
    from datasets.utils.metadata import MetadataConfigs
    from ruamel.yaml.error import YAMLError

    try:
        configurations = MetadataConfigs.from_dataset_card_data(parse_yaml(described[1]))
        name = configuration or configurations.get_default_config_name()
        chosen = configurations.get(name, {})
        patterns = sanitize_patterns(chosen.get("data_files") or {})
    except (AttributeError, TypeError, ValueError, YAMLError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"{CARD} is no card of a data set on the hub: {reason}") from error
    if not configurations:
        return None
    _check_name(name, [*configurations])
    return f"{chosen.get('data_dir') or ''}/".lstrip("/"), patterns


def _in_folder(names: Sequence[str], configuration: str | None) -> Sequence[str]:
    """The files of a configuration in a data set without a card, where it is a folder.

    Raises:
        UsageError: There is no such folder with Parquet files; or several hold the same splits and
            none is named.
    """
    splits = defaultdict[str, set[str | None]](set)
    for name in names:
        folder, _, below = name.partition("/")
        if below.endswith(".parquet"):
            splits[folder].add(split_of(below.removesuffix(".parquet")))
    pairs = combinations(splits.values(), 2)
    if configuration is None and not any(len((one & other) - {None}) > 1 for one, other in pairs):
        return names
    _check_name(configuration, sorted(splits))
    return [name for name in names if name.startswith(f"{configuration}/")]


def _check_name(name: str | None, names: Sequence[str]) -> None:
    if name not in names:
        has = f"no configuration {name!r}" if name else "several configurations"
        known = f". Name one of these: {', '.join(names)}" if names else ", and no other"
        raise UsageError(f"data.configuration: the data has {has}{known}.")


def _check_found(pattern: str, found: Collection[str]) -> None:
    if not found:
        raise UsageError(f"{CARD} declares files that are not there: {pattern}")
