"""The errors that a run may raise, and what a person is told of a wrong key, a name or a URL."""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError


class UsageError(ValueError):
    """The request is wrong: a name, key, type or place.

    The command line then ends with exit code 2.
    """


class RejectedDataError(ValueError):
    """The data does not pass the workload's checks; training on it would be a mistake."""


class ChampionChangedError(ValueError):
    """Another run has changed the champion since the model was compared with it."""


class StepTimeoutError(Exception):
    """A step did not end within its limit."""

    def __init__(self, step: str, hours: float) -> None:
        super().__init__(f"{step} did not end within {hours:g} h (limits.{step}).")


class DamagedArtifactError(Exception):
    """An artifact in the store has changed, so results that were made from it are not used.

    Attributes:
        step: The step that made it.
        key: The key of the artifact.
        damage: What is wrong with the artifact.
    """

    def __init__(self, step: str, key: str, damage: str) -> None:
        super().__init__(step, key, damage)
        self.step, self.key, self.damage = step, key, damage

    def __str__(self) -> str:
        return f"{self.step} {self.key[:8]} is damaged ({self.damage}); it is made again."


class MirrorError(ConnectionError):
    """The mirror of the store does not answer, or refuses; what is here stays as it was."""


def is_verdict(error: BaseException) -> bool:
    """Whether an error comes from the data, the config, the model or the code.

    A retry would end in the same way.
    """
    return isinstance(error, ValueError | AssertionError | TypeError)


Kind = TypeVar("Kind", bound=BaseModel)

MAX_FAULTS = 20  # that are shown
_LOGIN = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#\s]+)@")
_PARAMETER = re.compile(
    r"[?&;#][^=&;#\s]*(?:auth|credentials?|key|pass|passwd|password|pwd|secret|sig|signature|token)=",
    re.IGNORECASE,
)


def validate(
    kind: type[Kind], tree: Mapping[str, Any], workload: str, above: tuple[str, ...] = ()
) -> Kind:
    """Makes a pydantic model of values.

    Args:
        kind: The model's class.
        tree: The values that were read from the file.
        workload: The name of the workload that they are of, for the message.
        above: The names of the sections of the workload that the values are in.

    Raises:
        UsageError: With a line for each place where a key or a value is wrong.
    """
    try:
        return kind.model_validate(tree)
    except ValidationError as error:
        messages: dict[str, list[str]] = {}
        for fault in error.errors(include_url=False):
            place, message = _explain(fault, kind, tree, above)
            messages.setdefault(place, []).append(message)
        lines = [f"{place}: {_join(place_messages)}" for place, place_messages in messages.items()]
        if len(lines) > MAX_FAULTS:
            lines[MAX_FAULTS:] = [f"… and {len(lines) - MAX_FAULTS} more"]
        raise UsageError(f"workload {workload}: " + "\n".join(lines)) from None


def _join(messages: Sequence[str]) -> str:
    """Joins the messages about one place, one for each type that its value may have."""
    *rest, last = dict.fromkeys(messages)
    return " or ".join([*(message.rpartition(", is ")[0] or message for message in rest), last])


def _explain(
    fault: Any, kind: type[BaseModel], tree: Any, above: tuple[str, ...]
) -> tuple[str, str]:
    """The place of a fault in a workload; and what is wrong there, and what is allowed."""
    keys = [*above, *_keys_of(fault["loc"], tree)]
    place = ".".join(shorten(str(key)) for key in keys)
    if fault["type"] == "value_error" and keys == [*above]:  # a validator of several parameters
        name, _, message = str(fault["ctx"]["error"]).partition(": ")
        return ".".join((*above, name)), f"{message}."
    if fault["type"] == "missing":
        return place, "missing."
    if fault["type"] == "extra_forbidden":
        section = place.rpartition(".")[0]
        keys_there = [name for name in names_of(kind, above) if name.rpartition(".")[0] == section]
        return place, f"no such key.{did_you_mean(place, keys_there)}"
    message = shorten(re.sub(r"^\w+ should", "should", fault["msg"]), 200)
    if fault["type"] == "string_pattern_mismatch":
        message = "should be text without control characters"
    return place, f"{message}, is {shown(fault['input'])}."


def _keys_of(loc: Sequence[Any], tree: Any) -> Iterator[Any]:
    """The keys that lead to a fault.

    Where a value may have several types, Pydantic adds the name of one, which is no key.
    """
    for part in loc:
        if isinstance(tree, dict):
            tree = tree.get(part)
        elif isinstance(tree, list | tuple) and isinstance(part, int):
            tree = tree[part]
        else:
            break
        yield part


def names_of(kind: type[BaseModel], above: Sequence[str] = ()) -> Iterator[str]:
    """The dotted names of the parameters of a section, and of the sections in it."""
    for name, field in kind.model_fields.items():
        yield ".".join((*above, name))
        for type_ in (field.annotation, *get_args(field.annotation)):
            if isinstance(type_, type(BaseModel)):
                yield from names_of(type_, (*above, name))


def did_you_mean(name: Any, names: Iterable[str]) -> str:
    """The second sentence of a message that refuses a name: the closest known name, or all."""
    names = sorted(names)
    close = difflib.get_close_matches(shorten(str(name)), names, n=1)
    if close:
        return f" Did you mean {close[0]!r}?"
    return f" There are: {', '.join(names)}." if names else ""


def shown(value: Any) -> str:
    """A value for a message; short, whatever it is."""
    return shorten(repr(value), 80)


def shorten(text: str, length: int = 60) -> str:
    """A text for a message; at most `length` characters of it."""
    return text if len(text) <= length else text[: length - 2] + " …"


def has_login(url: str) -> bool:
    """Whether a URL, or one of several joined with `::`, has a password or a token in it."""
    users = (match.groups() for match in _LOGIN.finditer(url))
    named = any(":" in user or scheme in ("http", "https") for scheme, user in users)
    return "://" in url and (named or bool(_PARAMETER.search(url)))


def refused(place: str) -> str:
    """The sentence that refuses a URL with a login.

    Args:
        place: Where the URL was given: `data.path`.
    """
    return (
        f"{place}: the URL has a password or token in it, which keys and records would keep. Leave "
        "it out there: for http and https it belongs into ~/.netrc, for any protocol into fsspec's "
        'settings, such as the variable FSSPEC_HTTPS=\'{"headers": {"Authorization": "…"}}\'.'
    )


def without_login(url: str) -> str:
    """The URL of a server as it may be shown: without user, password and query."""
    return re.sub(r"://\S*@", "://", url).partition("?")[0]
