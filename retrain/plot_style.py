"""The style of all plots that the project draws."""

BLUE, RED, GREY = "#1f6f9f", "#b3261e", "#8a8f98"
STYLE = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "figure.dpi": 120,
    "figure.titleweight": "bold",
    "font.size": 9,
    "grid.color": "#e3e6ea",
    "legend.frameon": False,
    "text.parse_math": False,  # a class may be named `$x^{$`
}
