"""Mutated copies of `params.yaml`."""

import io
from pathlib import Path

from ruamel.yaml import YAML

from tests.fuzz.case import Maker, Random, choose, flipped, truncated

PARAMS = (Path(__file__).parents[2] / "params.yaml").read_text(encoding="utf-8")
SECTIONS = ("data", "checks", "images", "model", "train", "scale", "evaluate", "gate")


def _changed(section: str, key: str, value: object) -> bytes:
    yaml = YAML()
    tree = yaml.load(PARAMS)
    place = tree["workloads"]["vit"]
    for name in (*section.split("."),):
        place = place.setdefault(name, {}) if name else place
    place[key] = value
    file = io.StringIO()
    yaml.dump(tree, file)
    return file.getvalue().encode()


def _harmless(rng: Random):
    changes = {
        ("train", "lr"): float(rng.uniform(1e-5, 1e-2)),
        ("train", "epochs"): int(rng.integers(1, 100)),
        ("train", "seed"): int(rng.integers(0, 2**31)),
        ("train", "batch_size"): int(rng.integers(16, 256)),
        ("checks", "max_bad_fraction"): float(rng.uniform(0, 0.9)),
        ("gate.min", "accuracy"): float(rng.uniform(0, 1)),
        ("evaluate", "batch_size"): int(rng.integers(1, 1000)),
    }
    section, key = choose(rng, list(changes))
    text = _changed(section, key, changes[section, key])
    dressed = [text, b"# a comment\n" + text, text.replace(b"\n", b"\r\n"), text + b"\n\n"]
    return ".yaml", choose(rng, dressed), True


def _unknown_key(rng: Random):
    return ".yaml", _changed(choose(rng, ["", *SECTIONS]), "surprise", 1), False


def _wrong_type(rng: Random):
    section, key = choose(
        rng,
        [("train", "epochs"), ("train", "lr"), ("images", "size"), ("checks", "min_side"),
         ("data", "path"), ("gate", "metric"), ("evaluate", "batch_size"), ("model", "layers")],
    )  # fmt: skip
    value = choose(rng, [[1, 2], {"a": 1}, [[]], True, [None]])
    return ".yaml", _changed(section, key, value), False


def _out_of_range(rng: Random):
    section, key = choose(
        rng,
        [("train", "epochs"), ("train", "batch_size"), ("images", "size"), ("checks", "min_side"),
         ("checks", "max_bad_fraction"), ("evaluate", "batch_size"), ("scale", "workers")],
    )  # fmt: skip
    value = choose(rng, [-1, -(10**30), float("nan"), float("inf"), float("-inf")])
    return ".yaml", _changed(section, key, value), False


def _huge_number(rng: Random):
    section, key = choose(
        rng,
        [("train", "epochs"), ("train", "lr"), ("train", "seed"), ("train", "batch_size"),
         ("images", "size"), ("model", "layers"), ("model", "hidden_size"), ("model", "heads"),
         ("checks", "max_side"), ("checks", "min_images_per_class"), ("scale", "workers"),
         ("scale", "memory_gb"), ("gate", "margin"), ("train.augment", "shift")],
    )  # fmt: skip
    return ".yaml", _changed(section, key, choose(rng, [10**9, 10**19, 10**400, 1e300])), None


def _deep(rng: Random):
    depth = int(choose(rng, [50, 1000, 100_000]))
    nested = choose(rng, ["[" * depth + "]" * depth, "{a: " * depth + "1" + "}" * depth])
    return ".yaml", PARAMS.replace("data/digits", nested).encode(), False


def _aliases(rng: Random):
    """Ten lines that stand for a billion values."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    for level in range(1, 10):
        lines.append(f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]")
    used = PARAMS.replace("data/digits", "*a9") if rng.random() < 0.5 else PARAMS
    return ".yaml", ("\n".join(lines) + "\n" + used).encode(), None


def _twice(rng: Random):
    line = choose(rng, [line for line in PARAMS.splitlines() if line.startswith("      ")])
    return ".yaml", PARAMS.replace(line, f"{line}\n{line}", 1).encode(), None


def _syntax(rng: Random):
    text = choose(
        rng,
        [
            PARAMS.replace("    data:", "\tdata:"),
            PARAMS.replace("path: data/digits", "path: [data/digits"),
            PARAMS.replace("path: data/digits", 'path: "data/digits'),
            PARAMS.replace("path: data/digits", "path: !!python/object/apply:os.getcwd []"),
            PARAMS.replace("path: data/digits", "path: *nowhere"),
            PARAMS.replace("path: data/digits", "path: 'a\0b'"),
            PARAMS.replace("workloads:", "workload:"),
            PARAMS.replace("  vit:", "  1:"),
            PARAMS.replace("  vit:", "  ? [a, b]\n  :"),
            "",
            "workloads:",
            "workloads: []",
            "workloads:\n  vit: 5",
            "- vit",
            "5",
            "\ufeff\ufeff",
            "%YAML 9.9\n---\n",
        ],
    )
    return ".yaml", text.encode(), False


def _bytes(mutate) -> Maker:
    return lambda rng: (".yaml", mutate(rng, PARAMS.encode()), None)


MAKERS: dict[str, Maker] = {
    "harmless changes": _harmless,
    "unknown key": _unknown_key,
    "wrong type": _wrong_type,
    "out of range": _out_of_range,
    "huge number": _huge_number,
    "deep nesting": _deep,
    "aliases of aliases": _aliases,
    "a line twice": _twice,
    "wrong syntax": _syntax,
    "truncated": _bytes(truncated),
    "flipped bytes": _bytes(flipped),
    "noise": lambda rng: (".yaml", rng.bytes(int(rng.integers(1, 2000))), False),
}
