"""Mutated copies of `params.yaml`."""

import io
from pathlib import Path

from ruamel.yaml import YAML

from tests.fuzz.case import Maker, Random, choose, damaged

PARAMS = (Path(__file__).parents[2] / "params.yaml").read_text(encoding="utf-8")
NUMBERS = (
    "train.epochs", "train.lr", "train.seed", "train.batch_size", "train.augment.shift",
    "images.size", "model.layers", "model.hidden_size", "model.heads", "scale.workers",
    "checks.min_side", "checks.max_bad_fraction", "evaluate.batch_size", "gate.margin",
)  # fmt: skip
# Of each kind: which parameters get which values, and whether that is right.
CHANGES: dict[str, tuple[tuple[str, ...], list, bool | None]] = {
    "harmless changes": (("train.epochs", "train.seed", "evaluate.batch_size"), [1, 99], True),
    "unknown key": (("surprise", "data.surprise", "train.surprise", "gate.surprise"), [1], False),
    "wrong type": (
        (*NUMBERS, "data.path", "gate.metric"),
        [[1, 2], {"a": 1}, [[]], [None]],
        False,
    ),
    "out of range": (
        ("train.epochs", "images.size", "checks.max_bad_fraction", "scale.workers"),
        [-1, -(10**30), float("nan"), float("inf"), float("-inf")],
        False,
    ),
    "huge number": (NUMBERS, [10**9, 10**19, 10**400, 1e300], None),
}
_LINES = [line for line in PARAMS.splitlines() if line.startswith("      ")]
_NESTED = [text for n in (50, 100_000) for text in ("[" * n + "]" * n, "{a: " * n + "1" + "}" * n)]
_LEVELS = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10)]
_BILLION = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(_LEVELS)  # in ten lines
# Of each kind: texts of which one is tried, and whether that is right.
TEXTS: dict[str, tuple[list[str], bool | None]] = {
    "comments and line ends": (
        [f"# a comment\n{PARAMS}", PARAMS.replace("\n", "\r\n"), f"{PARAMS}\n\n"],
        True,
    ),
    "wrong syntax": (
        [
            PARAMS.replace("    data:", "\tdata:"),
            *(
                PARAMS.replace("path: data/digits", f"path: {value}")
                for value in (
                    "[data/digits",
                    '"data/digits',
                    "!!python/object/apply:os.getcwd []",
                    "*nowhere",
                    "'a\0b'",
                )
            ),
            PARAMS.replace("workloads:", "workload:"),
            PARAMS.replace("  vit:", "  ? [a, b]\n  :"),
            "", "workloads:", "workloads: []", "workloads:\n  vit: 5", "- vit", "5", "\ufeff\ufeff",
            "%YAML 9.9\n---\n",
        ],
        False,
    ),
    "deep nesting": ([PARAMS.replace("data/digits", nested) for nested in _NESTED], False),
    "aliases of aliases": (
        [_BILLION + PARAMS, _BILLION + PARAMS.replace("data/digits", "*a9")],
        None,
    ),
    "a line twice": ([PARAMS.replace(line, f"{line}\n{line}", 1) for line in _LINES], None),
}  # fmt: skip


def _changed(names: tuple[str, ...], values: list, good: bool | None) -> Maker:
    def make(rng: Random):
        yaml, file = YAML(), io.StringIO()
        tree = yaml.load(PARAMS)
        *sections, key = choose(rng, names).split(".")
        place = tree["workloads"]["vit"]
        for section in sections:
            place = place.setdefault(section, {})
        place[key] = choose(rng, values)
        yaml.dump(tree, file)
        return ".yaml", file.getvalue().encode(), good

    return make


def _text(texts: list[str], good: bool | None) -> Maker:
    return lambda rng: (".yaml", choose(rng, texts).encode(), good)


MAKERS: dict[str, Maker] = {
    **{kind: _changed(*change) for kind, change in CHANGES.items()},
    **{kind: _text(*text) for kind, text in TEXTS.items()},
    **damaged(lambda rng: (".yaml", PARAMS.encode(), None)),
}
