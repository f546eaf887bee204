"""The plot of a search: how it went on, and the metric against each parameter."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retrain.plot_style import BLUE, GREEN, ORANGE, STYLE
from retrain.search.patch import as_yaml
from retrain.search.space import Parameter
from retrain.search.trials import COMPLETE, PRUNED, Trial

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {COMPLETE: BLUE, PRUNED: ORANGE}
BEST = GREEN
COLUMNS = 3


def plot(trials: Sequence[Trial], space: Sequence[Parameter], metric: str, file: Path) -> None:
    """Draws the trials that have reached anything.

    Args:
        trials: In order.
        space: What was searched.
        metric: The name of the metric.
        file: A PNG file; its folder exists.
    """
    import matplotlib
    from matplotlib.figure import Figure

    shown = [trial for trial in trials if trial.best and metric in trial.best]
    rows = -(-(len(space) + 1) // COLUMNS)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(4.2 * COLUMNS, 3.2 * rows), layout="constrained")
        axes = figure.subplots(rows, COLUMNS, squeeze=False).flat
        _over_trials(axes[0], shown, metric)
        for parameter, each in zip(space, axes[1:], strict=False):
            _against(each, shown, parameter, metric)
        for unused in axes[len(space) + 1 :]:
            unused.set_axis_off()
        figure.savefig(file)


def _over_trials(axes: "Axes", trials: Sequence[Trial], metric: str) -> None:
    from matplotlib.ticker import MaxNLocator

    _points(axes, trials, [trial.number for trial in trials], metric)
    leaders: list[Trial] = []
    for trial in trials:
        better = not leaders or trial.reached[-1] > leaders[-1].reached[-1]
        leaders.append(trial if better else leaders[-1])
    values = [_value(trial, metric) for trial in leaders]
    numbers = [trial.number for trial in trials]
    axes.step(numbers, values, where="post", color=BEST, label="best so far")
    axes.set_xlabel("trial")
    axes.set_ylabel(metric)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend()


def _against(axes: "Axes", trials: Sequence[Trial], parameter: Parameter, metric: str) -> None:
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

    values = [trial.values[parameter.name] for trial in trials]
    if choices := parameter.searched.choices:
        _points(axes, trials, [choices.index(value) for value in values], metric)
        axes.set_xticks(range(len(choices)), [as_yaml(each)[:20] for each in choices])
    else:
        _points(axes, trials, values, metric)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=parameter.is_whole))
    if parameter.searched.log:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(parameter.name)
    axes.set_ylabel(metric)


def _points(axes: "Axes", trials: Sequence[Trial], x: Sequence[Any], metric: str) -> None:
    for state, colour in COLOURS.items():
        chosen = [n for n, trial in enumerate(trials) if trial.state == state]
        if chosen:
            y = [_value(trials[n], metric) for n in chosen]
            axes.scatter([x[n] for n in chosen], y, s=18, color=colour, label=state)


def _value(trial: Trial, metric: str) -> float:
    assert trial.best
    return float(trial.best[metric])
