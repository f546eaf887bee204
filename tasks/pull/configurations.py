"""Finds the configuration of a data set in the hub's layout, and the splits that its card declares.

A data set on the Hugging Face hub may hold several that have nothing to do with each other, such as
digits by their value and by their parity. Its card, README.md, says which files belong to which.
"""

import posixpath
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path

from retrain.errors import UsageError
from retrain.params import parse_yaml
from retrain.runs import console
from tasks.data.splits import ALIASES, split_of

CARD = "README.md"
_YAML = re.compile(r"\s*---\s*\n((?:(?!---).*\n)*)---")  # the first lines of a card


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
