"""Finds passwords and tokens in URLs, which keys, records and logs would otherwise keep.

Where a person names data by a URL, one with a login is refused: it belongs into the configuration
of the library that opens the URL. The URLs of servers in the environment may need one; they are
shown without it.
"""

import re

_LOGIN = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#\s]+)@")
_PARAMETER = re.compile(
    r"[?&;#][^=&;#\s]*(?:auth|credentials?|key|pass|passwd|password|pwd|secret|sig|signature|token)=",
    re.IGNORECASE,
)


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
