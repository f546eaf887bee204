"""Finds the configuration of a data set in the hub's layout, and the splits that its card declares.

A data set on the Hugging Face hub may hold several that have nothing to do with each other, such as
digits by their value and by their parity. Its card, README.md, says which files belong to which.
"""

import glob
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import combinations
from pathlib import Path

from retrain.errors import UsageError
from retrain.params import parse_yaml
from retrain.runs import console
from tasks.data.listing import check_names, list_files
from tasks.data.splits import ALIASES, split_of

CARD = "README.md"
_YAML = re.compile(r"\s*---\s*\n((?:(?!---).*\n)*)---")  # the first lines of a card


def declared_splits(folder: Path, configuration: str | None) -> dict[str, str]:
    """The splits that a data set's card declares.

    Without such a card, what is beside the folder of a named configuration is deleted.

    Args:
        folder: The data set.
        configuration: The name of one of its configurations; None if there is only one.

    Returns:
        `train`, `val` or `test` for each file of the configuration, by its name; other files do not
        belong to it. Empty if no splits are declared.

    Raises:
        UsageError: There is no such configuration, or there are several and none is named.
    """
    splits = splits_of_card(folder / CARD, str(folder.absolute()), configuration)
    if not splits:
        names = [name for name, _ in list_files(folder)]
        check_names(names)
        for name in {*names}.difference(files_of(names, configuration)):
            (folder / name).unlink()
    return splits


def files_of(names: Iterable[str], configuration: str | None) -> list[str]:
    """The files of a configuration in a data set without a card, where it is a folder.

    Args:
        names: The files of the data set.
        configuration: The name of the folder; None if the data set is a single one.

    Raises:
        UsageError: There is no such folder with Parquet files; or several hold the same splits and
            none is named.
    """
    names, splits = list(names), defaultdict[str, set[str | None]](set)
    for name in names:
        folder, _, below = name.partition("/")
        if below.endswith(".parquet"):
            splits[folder].add(split_of(below.removesuffix(".parquet")))
    if configuration is not None:
        _check_name(configuration, sorted(splits))
        return [name for name in names if name.startswith(f"{configuration}/")]
    if any(len((one & other) - {None}) > 1 for one, other in combinations(splits.values(), 2)):
        _check_name(None, sorted(splits))
    return names


def splits_of_card(card: Path, base: str, configuration: str | None) -> dict[str, str]:
    """The splits that a card declares, as `declared_splits` has them.

    Args:
        card: The card, which need not be there.
        base: The folder of the data set, or its URL for `datasets`.
        configuration: The name of a configuration; None for the card's default.
    """
    text = card.read_text("utf-8-sig", errors="replace") if card.exists() else ""
    described = _YAML.match(text)
    if described is None or "configs:" not in described[1]:
        return {}
    from datasets import disable_progress_bars
    from datasets.data_files import DataFilesDict, get_data_patterns, sanitize_patterns
    from datasets.utils.metadata import MetadataConfigs
    from ruamel.yaml.error import YAMLError

    disable_progress_bars()
    try:
        configurations = MetadataConfigs.from_dataset_card_data(parse_yaml(described[1]))
        name = configuration or configurations.get_default_config_name()
    except (AttributeError, TypeError, ValueError, YAMLError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"{CARD} is no card of a data set on the hub: {reason}") from error
    if not configurations:
        return {}
    _check_name(name, list(configurations))
    chosen = configurations[name]
    place = f"{glob.escape(base)}/{_inside(chosen.get('data_dir') or '')}".rstrip("/")
    splits: dict[str, str] = {}
    try:
        patterns = chosen.get("data_files")
        declared = sanitize_patterns(patterns) if patterns else get_data_patterns(place)
        for split, found in DataFilesDict.from_patterns(_known(declared), place).items():
            names = (path.removeprefix(f"{base}/") for path in found)
            splits |= dict.fromkeys(names, ALIASES[split.lower()])
            if not found:
                raise FileNotFoundError(f"none of {split}")
    except FileNotFoundError as error:
        raise UsageError(f"{CARD} declares files that are not there: {error}") from error
    return splits


def _check_name(name: str | None, names: list[str]) -> None:
    if name not in names:
        has = f"no configuration {name!r}" if name else "several configurations"
        raise UsageError(
            f"data.configuration: the data has {has}. Name one of these: {', '.join(names)}."
            if names
            else f"data.configuration: the data has {has}, and no other."
        )


def _inside(pattern: str) -> str:
    if "://" in pattern or pattern.startswith("/") or ".." in pattern.split("/"):
        raise UsageError(f"{CARD} declares {pattern!r}, which leads out of the data set.")
    return pattern


def _known(declared: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """The patterns of the splits that are used; the console is told of others."""
    patterns = {str(split): [*map(_inside, places)] for split, places in declared.items()}
    known = {split: places for split, places in patterns.items() if split.lower() in ALIASES}
    others = ", ".join(patterns.keys() - known.keys())
    if not known:
        raise UsageError(f"{CARD} declares none of the splits train, val and test, but {others}.")
    if others:
        console.say(f"Left out: {others}, which {CARD} declares beside {', '.join(known)}.")
    return known
