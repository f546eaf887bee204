from PIL import Image

from retrain.search.plot import plot
from retrain.search.table import row, table
from retrain.search.trials import COMPLETE, FAILED, PRUNED, Trial
from tests.retrain.search.test_space import LR, space_of

SPACE = {
    "train.lr": LR,
    "train.lora": {"choices": [None, {"r": 4}]},
    "train.plateau.patience": {"low": 1, "high": 5},
    "train.early_stopping.patience": {"low": 1, "high": 5},
}
OVERRIDES = {"train.early_stopping": {"patience": 5}}


def trial(number, lr, state, accuracy=None):
    values = {
        "train.early_stopping.patience": 2, "train.lora": {"r": 4} if number % 2 else None,
        "train.lr": lr, "train.plateau.patience": number,
    }  # fmt: skip
    best = accuracy and {"epoch": number, "val_accuracy": accuracy}
    return Trial(number, values, state, best, [accuracy] if accuracy else [], None)


TRIALS = [
    trial(1, 0.001, COMPLETE, 0.5),
    trial(2, 0.1, FAILED),
    trial(3, 0.01, PRUNED, 0.25),
    trial(4, 0.0005, COMPLETE, 0.75),
]


def test_the_plot_has_a_panel_for_each_parameter_and_takes_any_trials(tmp_path):
    space = space_of(SPACE, **OVERRIDES)
    for number, trials in enumerate((TRIALS, TRIALS[1:2], [])):
        file = tmp_path / f"{number}.png"
        plot(trials, space, "val_accuracy", file)
        with Image.open(file) as image:
            assert image.size[1] > 600  # two rows


def test_the_table_has_a_row_for_each_trial_and_short_names_where_they_are_clear():
    names = [parameter.name for parameter in space_of(SPACE, **OVERRIDES)]
    headings, first, second, *_ = table([row(each) for each in TRIALS], names, "val_accuracy")
    assert headings == [
        "trial", "train.early_stopping.patience", "lora", "lr", "train.plateau.patience",
        "val_accuracy", "best epoch", "epochs", "state",
    ]  # fmt: skip
    assert first == ["1", "2", '{"r": 4}', "0.001", "1", "0.5000", "1", "1", "complete"]
    assert second == ["2", "2", "null", "0.1", "2", "", "", "0", "failed"]
