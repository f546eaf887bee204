"""Writes what is generated from the code: the pages of commands and parameters, and the schema.

python scripts/reference.py
"""

import json
import re
import sys
from pathlib import Path
from unittest.mock import patch

from retrain.cli import main  # noqa: F401  which adds the commands to `app`
from retrain.cli.command import app
from retrain.cli.params import json_schema, parameters

ROOT = Path(__file__).parents[1]
OF_EVERY_COMMAND = "Options of every command"


def pages() -> dict[str, str]:
    """The texts of the generated files, by their paths below the project's folder."""
    return {
        "docs/commands.md": commands_page(),
        "docs/parameters.md": parameters_page(),
        "params.schema.json": json.dumps(json_schema(), indent=1) + "\n",
    }


def commands_page() -> str:
    """The page of all commands, as their help says it."""
    with patch.object(sys, "argv", ["retrain"]):  # which Cyclopts puts into some usages
        text = app.generate_docs(usage_name="retrain")
    text = re.sub(r"## Table of Contents\n.*?(?=\n[^-\n ])", "", text, count=1, flags=re.DOTALL)
    overview, *sections = re.split(r"(?=^## )", text, flags=re.MULTILINE)
    block = re.compile(rf"\n\*\*{OF_EVERY_COMMAND}\*\*:\n\n(?:\*.*\n)+")
    sections = [block.sub("", section) for section in sections]
    title = "# Commands\n\nMade by `make docs` from the help of the command line.\n"
    return title + overview.partition("\n")[2] + "".join(sections)


def parameters_page() -> str:
    """The parameters as a page, with a table for each section."""
    lines = [
        "# The parameters of a workload",
        "",
        "Made by `make docs` from the code.",
        "",
    ]
    heading = None
    for parameter in parameters():
        section = parameter.name.partition(".")[0]
        new_heading = f"{section} of the family {parameter.family}" if parameter.family else section
        if new_heading != heading:
            heading = new_heading
            lines += [
                "",
                f"## {heading}",
                "",
                "| parameter | values | default | |",
                "|---|---|---|---|",
            ]
        cells = [f"`{parameter.name}`", parameter.values, parameter.default_in_words]
        cells.append(parameter.description)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    for name, content in pages().items():
        (ROOT / name).write_text(content, encoding="utf-8")
