"""How `retrain --help` looks: groups without frames, one line for a command, an example each."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cyclopts.help import HelpPanel
    from rich.console import Console, ConsoleOptions

NAME_WIDTH = 10  # of the longest command, so that the groups' columns are below each other

# Beside the name of a group of commands.
EXAMPLES = {
    "Train": "retrain train vit --set train.epochs=3",
    "Decide": 'retrain approve vit --reason "checked by hand"',
    "Use": "retrain predict vit --input photos --output answers.parquet",
    "Improve": "retrain suspects vit",
    "Look": "retrain status vit",
    "Keep": "retrain doctor",
    "Servers": "retrain up",
}


class PlainHelp:
    """Shows the help of a command; cyclopts calls it for each part of it."""

    def __call__(self, console: "Console", options: "ConsoleOptions", panel: "HelpPanel") -> None:
        """Shows a group of commands, of arguments or of options."""
        from attrs import evolve
        from cyclopts.help import specs
        from rich.padding import Padding
        from rich.text import Text

        if not panel.entries:
            return
        title = str(panel.title)
        example = EXAMPLES.get(title, "")
        console.print(Text.assemble((f"{title:<{NAME_WIDTH + 4}}", "bold"), (example, "dim")))
        if panel.format == "command":
            names, *others = specs.get_default_command_columns(console, options, panel.entries)
            columns = (evolve(names, width=NAME_WIDTH), *others)
        else:
            columns = specs.get_default_parameter_columns(console, options, panel.entries)
        table = specs.TableSpec().build(columns, panel.entries)
        console.print(Padding(table, (0, 0, 1, 2)))

    def render_usage(self, console: "Console", options: "ConsoleOptions", usage: Any) -> None:
        """Shows how a command is called."""
        console.print(f"Usage: {usage}".rstrip(), end="\n\n", markup=False, highlight=False)
