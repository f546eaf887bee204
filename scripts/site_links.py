"""A hook of MkDocs: links from a page to a file of the project outside `docs/`.

On a code host such a link opens the file. The site does not hold the file, so there its path stands
in place of the link. A file that is not there stops the build.
"""

import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"\[[^\]]*\]\(\.\./([^)#]+)(?:#[^)]*)?\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Puts the path in the place of each link that leads out of `docs/`.

    Raises:
        PluginError: A link leads to nothing.
    """

    def path_of(link: re.Match[str]) -> str:
        if not (ROOT / link[1]).exists():
            raise PluginError(f"{link[0]} leads to nothing.")
        return f"`{link[1]}`"

    return LINK.sub(path_of, markdown)
