"""Digests of the code that a step's output depends on."""

import ast
import hashlib
import importlib.util
import re
import sys
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from functools import cache, lru_cache
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]  # of the project: all code below it is the project's

# `retrain` decides where and when a step runs, never what it writes, so it is not followed.
NOT_FOLLOWED = ("retrain", "tests")
OWN = ("flows", "models", "retrain", "tasks")  # the project's own packages: not of a user

# Fields of a syntax tree that describe how code was written, not what it does.
INCIDENTAL = {"ctx", "kind", "type_comment", "type_ignores"}

BLOCKS = ("body", "finalbody", "orelse")  # fields that hold statements
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
EMPTY = "Module()"
PARSES = 5  # how often a text is parsed if Python fails


def code_digests(modules: Iterable[str], root: Path | None = None) -> dict[str, str]:
    """Digests the modules that a step runs: those named, and the project's that they import.

    Comments, formatting, docstrings and code for type checkers do not count. All imports are
    followed, inside functions too, to every module below the project's root that is not installed
    there; a user's code that imports by `importlib` has all modules of its package. The digests are
    the same in all versions of Python.

    Args:
        modules: Dotted names, such as `tasks.preprocess.step`.
        root: The folder that holds the packages, for a copy of some of them; the project's own if
            None.

    Returns:
        The SHA-256 (hex) of each module by its dotted name, in order of the names. A module without
        code, such as a package with only a docstring, has none.
    """
    found = _follow(modules, NOT_FOLLOWED, root)
    return dict(sorted((name, digest) for name, digest, _ in found if digest))


def libraries_of(modules: Iterable[str]) -> tuple[str, ...]:
    """The installed distributions that modules of a user's import.

    Nothing is imported. Modules of the user's that they import are followed, and the project's own
    are not: a step names the libraries of these itself. What is not installed is left out.

    Args:
        modules: Dotted names of modules that there are.

    Returns:
        The names of the distributions, in order.
    """
    imported = {name.split(".")[0] for _, _, names in _follow(modules, OWN, None) for name in names}
    outside = {name for name in imported - sys.stdlib_module_names if source_of(name) is None}
    installed = _installed() if outside else {}  # it takes a fifth of a second
    libraries: set[str] = set()
    for name in outside:
        distributions = {_normalised(distribution) for distribution in installed.get(name, ())}
        # Others may add to a package: mlflow-tracing has a part of mlflow's.
        libraries |= distributions & {_normalised(name)} or distributions
    return tuple(sorted(libraries))


_installed = cache(packages_distributions)


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _follow(
    modules: Iterable[str],
    not_followed: Collection[str],
    root: Path | None,
) -> Iterator[tuple[str, str | None, tuple[str, ...]]]:
    """Reads modules, and those of the project that they import.

    Args:
        modules: Dotted names.
        not_followed: Packages that are not read, unless a module of theirs is among the first.
        root: The folder that holds the packages; the project's own if None.

    Yields:
        The name of each module, its digest, and the names that it imports.
    """
    named = tuple(modules)
    visited, waiting = set[str](), list(named)
    while waiting:
        name = waiting.pop()
        if name in visited:
            continue
        visited.add(name)
        source = source_of(name, root)
        if source is None:
            assert name not in named, f"{name} is no module of the project"
            continue
        package = name if source.name == "__init__.py" else name.rpartition(".")[0]
        digest, imported = _read(source.read_text(encoding="utf-8"), package)
        waiting += (module for module in imported if module.split(".")[0] not in not_followed)
        if any(module.split(".")[0] == "importlib" for module in imported):
            waiting += _beside(name, root)  # it may import any of them by a name
        yield name, digest, imported


def _beside(name: str, root: Path | None) -> Iterator[str]:
    """The modules of the user's package that a module is in; none beside the project's own."""
    top = name.split(".")[0]
    if top in (*OWN, *NOT_FOLLOWED):
        return
    for place in _places(top, root):
        for file in sorted(place.rglob("*.py")):
            inside = file.relative_to(place).with_suffix("").parts
            yield ".".join((top, *(inside[:-1] if inside[-1] == "__init__" else inside)))


@lru_cache(maxsize=256)  # steps share modules
def _read(text: str, package: str) -> tuple[str | None, tuple[str, ...]]:
    """The SHA-256 (hex) of what a module does, and what it imports, modules or what is in them.

    The digest of one that holds nothing is None.
    """
    imports: list[ast.Import | ast.ImportFrom] = []
    canonical = _canonical(_parse(text), imports)
    digest = hashlib.sha256(canonical.encode()).hexdigest() if canonical != EMPTY else None
    return digest, tuple(
        {name: None for statement in imports for name in _imported(statement, package)}
    )


def _parse(text: str) -> ast.Module:
    # In some versions of Python 3.11 and 3.12 it fails when another thread parses at the same time
    # (python/cpython#106905).
    for _ in range(PARSES - 1):
        with suppress(SystemError):
            return ast.parse(text)
    return ast.parse(text)


def source_of(name: str, root: Path | None = None) -> Path | None:
    """The file of a module of the project, found without importing it; None for other modules.

    Args:
        name: The dotted name of the module.
        root: The folder that holds the packages; the project's own if None.
    """
    top, *parts = name.split(".")
    paths = [place.joinpath(*parts) for place in _places(top, root)]
    files = [file for path in paths for file in (path / "__init__.py", path.with_suffix(".py"))]
    return next((file for file in files if file.is_file()), None)


def _places(top: str, root: Path | None) -> list[Path]:
    """The folders of a package of the project; for a module, its file without the suffix."""
    if root is not None:
        return [root / top]
    spec = None if top in sys.stdlib_module_names else importlib.util.find_spec(top)
    if spec is None:
        return []
    if spec.submodule_search_locations is not None:
        return [place for place in map(Path, spec.submodule_search_locations) if _is_own(place)]
    file = Path(spec.origin or "")
    return [file.with_suffix("")] if spec.has_location and _is_own(file.parent) else []


def _is_own(folder: Path) -> bool:
    folder = folder.resolve()
    # An environment may lie below the root too.
    installed = {"site-packages", "dist-packages"} & set(folder.parts)
    return folder.is_relative_to(ROOT) and not installed


def _imported(node: ast.Import | ast.ImportFrom, package: str) -> list[str]:
    """The modules that a statement imports, and the names that it imports from them."""
    names = [alias.name for alias in node.names]
    if isinstance(node, ast.Import):
        return names
    base = node.module or ""
    if node.level:
        base = importlib.util.resolve_name("." * node.level + base, package)
    # `from models import vit` names a module; `from models.vit import Settings` does not.
    return [base, *(f"{base}.{name}" for name in names)]


def _canonical(node: object, imports: list[ast.Import | ast.ImportFrom]) -> str:
    """What a syntax tree does, as text that is the same in all versions of Python.

    The text of `ast.dump` is not: versions differ in which fields there are and which empty ones
    are shown.

    Args:
        node: The tree, or a value in it.
        imports: Receives the statements that import.
    """
    if isinstance(node, list):
        return f"[{','.join([_canonical(element, imports) for element in node])}]"
    if not isinstance(node, ast.AST):
        return ascii(node)  # `repr` escapes letters that this version of Python does not know
    if isinstance(node, ast.Import | ast.ImportFrom):
        imports.append(node)
    values = []
    for name in _shown(node._fields):
        value = getattr(node, name, None)
        if isinstance(value, list):
            value = _effective(value, node, name)
        if value is not None and value != []:
            values.append(f"{name}={_canonical(value, imports)}")
    return f"{type(node).__name__}({','.join(values)})"


@cache
def _shown(fields: tuple[str, ...]) -> list[str]:
    return sorted(set(fields) - INCIDENTAL)


def _effective(values: list[Any], node: ast.AST, name: str) -> list[Any]:
    """The values of a field without those that do not change the code's behaviour."""
    if isinstance(node, ast.JoinedStr):
        return _joined(values)
    if name not in BLOCKS:
        return values
    statements = list(_executed(values))
    if statements and isinstance(node, DOCUMENTED):
        first = statements[0]
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
            return statements[1:]
    return statements


def _executed(statements: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements without those for type checkers only."""
    for statement in statements:
        if (
            isinstance(statement, ast.If)
            and isinstance(statement.test, ast.Name)
            and statement.test.id == "TYPE_CHECKING"
        ):
            yield from _executed(statement.orelse)
        else:
            yield statement


def _joined(values: list[ast.expr]) -> list[ast.expr]:
    """The parts of an f-string: the text between two values in one piece in all versions."""
    pieces: list[ast.expr] = []
    for piece in values:
        last = pieces[-1] if pieces else None
        if isinstance(piece, ast.Constant) and isinstance(last, ast.Constant):
            pieces[-1] = ast.Constant(str(last.value) + str(piece.value))
        elif not isinstance(piece, ast.Constant) or piece.value:
            pieces.append(piece)
    return pieces
