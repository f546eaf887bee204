"""Changes the core modules one place at a time, and says which changes no test notices.

    python scripts/mutants.py [--only tasks/gate] [--sample 200] [--seed 0] [--jobs 2]

The changes are those of cosmic-ray. Each is made in a copy of the project, in which pytest then
runs the tests of the module (`CORE`), in a fork of a process that has imported the libraries. A
change that lives is printed. `docs/mutants.md` says which of them mean nothing, and why.
"""

import argparse
import difflib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

# The modules whose mistakes nobody would see, and the tests of each.
CORE = {
    "tasks/gate/accuracies.py": ["gate/test_paired.py"],
    "tasks/gate/any_two.py": ["gate/test_any_two.py"],
    "tasks/gate/comparison.py": ["gate/test_comparison.py"],
    "tasks/gate/draws.py": ["gate/test_paired.py"],
    "tasks/gate/paired.py": ["gate/test_paired.py"],
    "tasks/gate/pairs.py": ["gate/test_paired.py", "gate/test_comparison.py"],
    
    "tasks/gate/step.py": ["gate/test_step.py"],
    "tasks/gate/wording.py": ["gate/test_wording.py", "gate/test_step.py", "gate/test_any_two.py"],
    "tasks/data/metrics.py": ["data/test_metrics.py"],
    "tasks/data/predictions.py": ["gate/test_comparison.py", "gate/test_any_two.py"],
    "tasks/data/slices.py": ["gate/test_rules.py", "slice"],
    "tasks/validate/splits.py": ["validate/test_splits.py"],
    "tasks/train/sampler.py": ["train/test_sampler.py"],
    "tasks/train/selection.py": ["train/test_selection.py"],
    "tasks/train/optimizer.py": ["train/test_optimizer.py"],
    "tasks/drift/compare.py": ["drift/test_compare.py"],
    "retrain/store.py": ["test_store.py"],
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
LIBRARIES = ("numpy", "pandas", "pyarrow.parquet", "pydantic", "pytest", "scipy.stats", "yaml")


@dataclass(frozen=True)
class Mutant:
    """A changed module.

    Attributes:
        path: Of the module.
        tests: Those that should notice.
        code: Of the module, changed.
    """

    path: str
    tests: tuple[str, ...]
    code: str

    def __str__(self) -> str:
        before = Path(self.path).read_text(encoding="utf-8").splitlines()
        lines = difflib.unified_diff(before, self.code.splitlines(), self.path, n=0, lineterm="")
        return "\n".join(list(lines)[2:])


def mutants(path: str, tests: Sequence[str]) -> Iterator[Mutant]:
    """All changes of a module; none twice."""
    from cosmic_ray import mutating, plugins

    code = Path(path).read_text(encoding="utf-8")
    seen = {code}
    for name in OPERATORS:
        operator, occurrence = plugins.get_operator(f"core/{name}")(), 0
        while (changed := mutating.mutate_code(code, operator, occurrence)) is not None:
            occurrence += 1
            if changed not in seen and "not TYPE_CHECKING" not in changed:
                yield Mutant(path, tuple(tests), changed)
            seen.add(changed)


def run_tests(tests: Sequence[str], seconds: float) -> bool:
    """Runs tests in a fork, which imports the modules anew; whether they pass in time."""
    import pytest

    if not (child := os.fork()):
        os.setpgid(0, 0)
        quiet = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(quiet, stream)
        os._exit(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *tests]))
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status == 0
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


def serve() -> None:
    """Tries the mutants that come in, in the copy of the project that is the present folder."""
    for library in LIBRARIES:
        __import__(library)
    for line in sys.stdin:
        path, changed, seconds, *tests = line.rstrip("\n").split("\t")
        before = Path(path).read_bytes()
        Path(path).write_bytes(Path(changed).read_bytes())
        lives = run_tests(tests, float(seconds))
        Path(path).write_bytes(before)
        print(int(lives), flush=True)


@dataclass
class Copy:
    """A copy of the project, with a process that tries mutants in it."""

    folder: Path

    def __post_init__(self) -> None:
        """Copies what git tracks, and starts the process."""
        files = subprocess.check_output(["git", "ls-files", "-z"])
        tar = subprocess.run(
            ["tar", "c", "--null", "--files-from=-"], input=files, capture_output=True, check=True
        )
        self.folder.mkdir()
        subprocess.run(["tar", "x"], cwd=self.folder, input=tar.stdout, check=True)
        # Compiled modules are told apart by the second in which their source was written.
        environment = os.environ | {"PYTHONPATH": ".", "PYTHONDONTWRITEBYTECODE": "1"}
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--serve"], cwd=self.folder, env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def survives(self, mutant: Mutant, seconds: float) -> bool:
        """Whether no test notices a mutant."""
        assert self.process.stdin
        assert self.process.stdout
        changed = self.folder.parent / f"{self.folder.name}.py"
        changed.write_text(mutant.code, encoding="utf-8")
        fields = (mutant.path, str(changed), str(seconds), *mutant.tests)
        print(*fields, sep="\t", file=self.process.stdin, flush=True)
        return self.process.stdout.readline() == "1\n"


def time_limits(copy: Copy, chosen: Sequence[Mutant]) -> dict[tuple[str, ...], float]:
    """How long the tests of a module may take: five times as long as without a change."""
    limits = {}
    for tests, path in {mutant.tests: mutant.path for mutant in chosen}.items():
        began = time.monotonic()
        unchanged = Mutant(path, tests, Path(path).read_text(encoding="utf-8"))
        if not copy.survives(unchanged, 600):
            raise SystemExit(f"{' '.join(tests)} fail without a change.")
        limits[tests] = 10 + 5 * (time.monotonic() - began)
    return limits


def main() -> None:
    """Tries the mutants, and prints those that live."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="the beginning of a module's path")
    parser.add_argument("--sample", type=int, help="try so many, chosen at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve()
        return
    chosen = [
        mutant
        for path, tests in CORE.items()
        if path.startswith(options.only)
        for mutant in mutants(path, [f"tests/{path.split('/')[0]}/{test}" for test in tests])
    ]
    random.Random(options.seed).shuffle(chosen)
    chosen = chosen[: options.sample]
    with tempfile.TemporaryDirectory() as folder:
        copies = [Copy(Path(folder) / str(number)) for number in range(options.jobs)]
        limits = time_limits(copies[0], chosen)

        def attempt(copy: Copy, some: Sequence[Mutant]) -> list[Mutant]:
            lived = []
            for mutant in some:
                if copy.survives(mutant, limits[mutant.tests]):
                    lived.append(mutant)
                    print(f"{mutant.path}\n{mutant}\n", flush=True)
            return lived

        shares = [chosen[number :: options.jobs] for number in range(options.jobs)]
        with ThreadPoolExecutor(options.jobs) as pool:
            lived = sum(len(some) for some in pool.map(attempt, copies, shares))
        for copy in copies:
            assert copy.process.stdin
            copy.process.stdin.close()
            copy.process.wait()
    killed = len(chosen) - lived
    print(
        f"{killed:,} of {len(chosen):,} mutants were killed ({killed / max(1, len(chosen)):.0%})."
    )


if __name__ == "__main__":
    main()
