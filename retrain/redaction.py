"""Keeps passwords and tokens out of everything that is shown or stored.

A password in a URL of the configuration is replaced where the configuration is read, by a mark that
is derived from it. All that follows sees the mark: keys, manifests, records, MLflow and Prefect.
Only the code that opens the URL asks for the password (`reveal`). `redact` takes secrets out of
texts that come from elsewhere, such as the error messages of libraries.
"""

import base64
import hashlib
import logging
import os
import re
import traceback
from collections.abc import Iterator
from functools import cache
from typing import Any
from urllib.parse import unquote

from retrain.errors import UsageError

HIDDEN = "***"
MIN_LENGTH = 6  # a shorter secret is only taken out of URLs: it may be an ordinary word

_MARK = re.compile(r"\*\*\*[0-9a-f]{16}")
_ROUNDS = 100_000  # 30 ms: it must be slow to guess a password from its mark
# The user and password of a URL; its group is the scheme.
_LOGIN = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#\s]+)@")
_PARAMETER = re.compile(
    r"([?&;#][^=&;#\s]*(?:auth|code|cred|key|pass|pwd|secret|sig|token)[^=&;#\s]*=)([^&;#\s]+)",
    re.IGNORECASE,
)
_VARIABLE = re.compile(
    r"(?:^|_)(?:TOKEN|SECRET|PASSWORD|PASSWD|API_KEY|ACCESS_KEY|SECRET_KEY|PRIVATE_KEY"
    r"|ACCOUNT_KEY|AUTH_STRING|WEBHOOK_URL)$"
)

_secrets: dict[str, str] = {}  # by mark


def hide(value: Any) -> Any:
    """Replaces the secrets of all URLs in a JSON-able value by their marks.

    The same secret always has the same mark, so a digest over the result depends on the secret.
    """
    if isinstance(value, str):
        return _replace(value, _mark)
    if isinstance(value, dict):
        return {name: hide(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(hide, value))
    return value


def reveal(text: str) -> str:
    """Puts the secrets back that `hide` has replaced in this process.

    Raises:
        UsageError: The text has a mark whose secret this process does not know.
    """

    def secret(mark: re.Match[str]) -> str:
        if mark[0] not in _secrets:
            raise UsageError(f"{text} has {mark[0]} in the place of a password: put the real one.")
        return _secrets[mark[0]]

    return _MARK.sub(secret, text)


def redact(text: str) -> str:
    """Takes secrets out of a text: those of URLs, of the configuration and of the environment."""
    for secret in sorted(_known(), key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return _replace(text, lambda secret: HIDDEN)


def guard_logs() -> None:
    """Redacts all log records of this process from now on."""
    make = logging.getLogRecordFactory()
    if getattr(make, "redacts", False):
        return

    def make_redacted(*arguments: Any, **more: Any) -> logging.LogRecord:
        record = make(*arguments, **more)
        text = record.getMessage()
        if (redacted := redact(text)) != text:
            record.msg, record.args = redacted, ()
        if record.exc_info and record.exc_info[1]:
            text = "".join(traceback.format_exception(record.exc_info[1]))
            if (redacted := redact(text)) != text:
                record.exc_info, record.exc_text = None, redacted.rstrip()
        return record

    make_redacted.redacts = True  # type: ignore[attr-defined]
    logging.setLogRecordFactory(make_redacted)


def _replace(text: str, by: Any) -> str:
    if "://" not in text:
        return text

    def login(found: re.Match[str]) -> str:
        scheme, secret = found.groups()
        named = ":" in secret or scheme in ("http", "https")  # sftp://me@host has no secret
        return f"{scheme}://{by(secret)}@" if named and not _MARK.fullmatch(secret) else found[0]

    def parameter(found: re.Match[str]) -> str:
        return found[0] if _MARK.fullmatch(found[2]) else found[1] + by(found[2])

    return _PARAMETER.sub(parameter, _LOGIN.sub(login, text))


@cache
def _mark(secret: str) -> str:
    digest = hashlib.pbkdf2_hmac("sha256", secret.encode(), b"retrain", _ROUNDS).hex()
    mark = HIDDEN + digest[:16]
    _secrets[mark] = secret
    return mark


def _known() -> Iterator[str]:
    """The secrets of the configuration and of the environment, in the forms that texts have."""
    values = {value for name, value in os.environ.items() if _VARIABLE.search(name)}
    for value in (*_secrets.values(), *values):
        password = value.partition(":")[2]  # of user:password
        basic = base64.b64encode(unquote(value).encode()).decode()  # as HTTP sends it
        for form in (value, unquote(value), password, unquote(password), basic):
            if len(form) >= MIN_LENGTH:
                yield form
