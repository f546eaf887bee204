"""Writes what is generated from the code: the pages of commands and parameters, and the schema.

python scripts/reference.py
"""

import json
import re
from pathlib import Path

from retrain.cli import main  # noqa: F401  which adds the commands to `app`
from retrain.cli.command import app
from retrain.cli.params import json_schema, markdown_page

ROOT = Path(__file__).parents[1]
OF_EVERY_COMMAND = "Options of every command"


def pages() -> dict[str, str]:
    """The texts of the generated files, by their paths below the project's folder."""
    return {
        "docs/commands.md": commands(),
        "docs/parameters.md": markdown_page(),
        "params.schema.json": json.dumps(json_schema(), indent=1) + "\n",
    }


def commands() -> str:
    """The page of all commands, as their help says it."""
    text = app.generate_docs(usage_name="retrain")
    text = re.sub(r"## Table of Contents\n.*?(?=\n[^-\n])", "", text, count=1, flags=re.DOTALL)
    overview, *sections = re.split(r"(?=^## )", text, flags=re.MULTILINE)
    block = re.compile(rf"\n\*\*{OF_EVERY_COMMAND}\*\*:\n\n(?:\*.*\n)+")
    sections = [block.sub("", section) for section in sections]
    title = "# Commands\n\nMade by `make docs` from the help of the command line.\n"
    return title + overview.partition("\n")[2] + "".join(sections)


if __name__ == "__main__":
    for name, content in pages().items():
        (ROOT / name).write_text(content, encoding="utf-8")
