"""Changes the core modules one place at a time, and says which changes no test notices.

    python scripts/mutants.py [--only tasks/gate] [--sample 200] [--seed 0] [--jobs 2]

The changes are those of cosmic-ray. Each is made in a copy of the project, in which pytest then
runs the tests of the module (`CORE`). A change that lives is printed. `docs/mutants.md` says which
of them mean nothing, and why.
"""

import argparse
import difflib
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# The modules whose mistakes nobody would see, and the tests of each.
CORE = {
    "tasks/gate/any_two.py": ["gate/test_any_two.py"],
    "tasks/gate/comparison.py": ["gate/test_comparison.py"],
    "tasks/gate/draws.py": ["gate/test_paired.py"],
    "tasks/gate/paired.py": ["gate/test_paired.py"],
    "tasks/gate/pairs.py": ["gate/test_paired.py", "gate/test_comparison.py"],
    "tasks/gate/step.py": ["gate/test_rules.py", "gate/test_step.py", "gate/test_wording.py"],
    "tasks/gate/wording.py": ["gate/test_wording.py", "gate/test_step.py", "gate/test_any_two.py"],
    "tasks/data/metrics.py": ["data/test_metrics.py"],
    "tasks/data/predictions.py": [
        "gate/test_comparison.py", "gate/test_any_two.py", "data/test_predictions.py",
        "data/test_reference.py",
    ],
    "tasks/data/slices.py": ["gate/test_rules.py", "slice"],
    "tasks/validate/splits.py": ["validate/test_splits.py"],
    "tasks/train/sampler.py": ["train/test_sampler.py"],
    "tasks/train/selection.py": ["train/test_selection.py"],
    "tasks/train/optimizer.py": ["train/test_optimizer.py"],
    "tasks/drift/compare.py": ["drift/test_compare.py"],
    "retrain/store.py": ["test_store.py", "test_gc.py", "runs/test_dry_run.py"],
    "retrain/verify.py": ["test_verify.py"],
    "retrain/gc.py": ["test_gc.py"],
    "retrain/code.py": ["test_code.py"],
    "retrain/registry/ledger.py": ["registry"],
    "retrain/registry/decisions.py": ["registry"],
}  # fmt: skip
# One change of a kind at each place: the other way round, or one further.
OPERATORS = (
    "AddNot", "NumberReplacer", "ReplaceAndWithOr", "ReplaceOrWithAnd", "ReplaceTrueWithFalse",
    "ReplaceFalseWithTrue", "ReplaceBreakWithContinue", "ReplaceContinueWithBreak",
    "ReplaceUnaryOperator_Delete_Not", "ReplaceUnaryOperator_Delete_Invert",
    "ReplaceUnaryOperator_USub_UAdd", "ZeroIterationForLoop", "ExceptionReplacer",
    *(f"ReplaceBinaryOperator_{pair}" for pair in (
        "Add_Sub", "Sub_Add", "Mul_Div", "Div_Mul", "FloorDiv_Mul", "Mod_FloorDiv", "Pow_Mul",
        "BitAnd_BitOr", "LShift_RShift", "RShift_LShift",
    )),
    *(f"ReplaceComparisonOperator_{pair}" for pair in (
        "Eq_NotEq", "NotEq_Eq", "Lt_LtE", "Lt_GtE", "LtE_Lt", "LtE_Gt", "Gt_GtE", "Gt_LtE",
        "GtE_Gt", "GtE_Lt", "Is_IsNot", "IsNot_Is",
    )),
)  # fmt: skip


def mutants(path: str) -> Iterator[str]:
    """The code of a module with each of the changes; none twice."""
    from cosmic_ray import mutating, plugins

    code = Path(path).read_text(encoding="utf-8")
    seen = {code}
    for name in OPERATORS:
        operator, occurrence = plugins.get_operator(f"core/{name}")(), 0
        while (changed := mutating.mutate_code(code, operator, occurrence)) is not None:
            occurrence += 1
            if changed not in seen and "not TYPE_CHECKING" not in changed:
                yield changed
            seen.add(changed)


def copy_project(folder: Path) -> None:
    """Copies what git tracks."""
    files = subprocess.check_output(["git", "ls-files", "-z"])
    tar = ["tar", "c", "--null", "--files-from=-"]
    archive = subprocess.run(tar, input=files, capture_output=True, check=True).stdout
    folder.mkdir()
    subprocess.run(["tar", "x"], cwd=folder, input=archive, check=True)


def pass_tests(folder: Path, path: str, seconds: float) -> bool:
    """Whether the tests of a module pass in a copy of the project, in time."""
    tests = [f"tests/{path.split('/')[0]}/{test}" for test in CORE[path]]
    # Compiled modules are told apart by the second in which their source was written.
    environment = os.environ | {"PYTHONPATH": ".", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, timeout=seconds,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        return done.returncode == 0
    except subprocess.TimeoutExpired:
        return False


def try_all(folder: Path, chosen: Sequence[tuple[str, str]]) -> int:
    """Tries changed modules, by path and code, and prints those that live; how many these are."""
    copy_project(folder)
    limits, lived = {}, 0
    for path, code in chosen:
        file = folder / path
        before = file.read_text(encoding="utf-8")
        if path not in limits:
            began = time.monotonic()
            if not pass_tests(folder, path, 600):
                raise SystemExit(f"The tests of {path} fail without a change.")
            limits[path] = 30 + 5 * (time.monotonic() - began)
        file.write_text(code, encoding="utf-8")
        if pass_tests(folder, path, limits[path]):
            lived += 1
            lines = [text.splitlines() for text in (before, code)]
            difference = list(difflib.unified_diff(*lines, path, n=0, lineterm=""))
            print("\n".join([path, *difference[2:], ""]), flush=True)
        file.write_text(before, encoding="utf-8")
    return lived


def main() -> None:
    """Tries the mutants, and prints those that live."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="the beginning of a module's path")
    parser.add_argument("--sample", type=int, help="try so many, chosen at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    paths = [path for path in CORE if path.startswith(options.only)]
    chosen = [(path, code) for path in paths for code in mutants(path)]
    random.Random(options.seed).shuffle(chosen)
    chosen = chosen[: options.sample]
    with tempfile.TemporaryDirectory() as root, ThreadPoolExecutor(options.jobs) as pool:
        folders = [Path(root) / str(job) for job in range(options.jobs)]
        shares = [chosen[job :: options.jobs] for job in range(options.jobs)]
        killed = len(chosen) - sum(pool.map(try_all, folders, shares))
    share = killed / max(1, len(chosen))
    print(f"{killed:,} of {len(chosen):,} mutants were killed ({share:.0%}).")


if __name__ == "__main__":
    main()
