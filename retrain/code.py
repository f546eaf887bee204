"""What a step's code is, as far as its output depends on it."""

import ast
import hashlib
import importlib.util
from collections.abc import Iterable, Iterator
from pathlib import Path

# `retrain` decides where and when a step runs, never what it writes, so it is not followed.
FOLLOWED = ("tasks", "models")


def code_digests(modules: Iterable[str], root: Path | None = None) -> dict[str, str]:
    """Digests the modules that a step runs: those named, and ours that they import.

    Comments, formatting and docstrings do not count. Imports are followed wherever they stand,
    inside functions too.

    Args:
        modules: Dotted names, such as `tasks.preprocess.step`.
        root: The folder that holds the packages; where Python would import them from if None.

    Returns:
        The SHA-256 (hex) of each module by its dotted name, in order of the names.
    """
    digests: dict[str, str] = {}
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        if name in digests:
            continue
        source = _source(name, root)
        assert source is not None, f"{name} has no source"
        tree = ast.parse(source.read_text(encoding="utf-8"))
        is_package = source.name == "__init__.py"
        waiting += _imports(tree, name if is_package else name.rpartition(".")[0], root)
        digests[name] = hashlib.sha256(_meaning(tree).encode()).hexdigest()
    return dict(sorted(digests.items()))


def _source(name: str, root: Path | None) -> Path | None:
    """The file of a module, found without importing anything; None when there is none."""
    package, *parts = name.split(".")
    if root is None:
        spec = importlib.util.find_spec(package)
        assert spec is not None and spec.submodule_search_locations, f"{package} is no package"
        root = Path(spec.submodule_search_locations[0]).parent
    place = Path(root, package, *parts)
    candidates = (place / "__init__.py", place.with_suffix(".py"))
    return next((path for path in candidates if path.is_file()), None)


def _imports(tree: ast.Module, package: str, root: Path | None) -> Iterator[str]:
    """The modules of ours that a module imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = importlib.util.resolve_name("." * node.level + base, package)
            # `from models import vit` names a module; `from models.vit import Settings` does not.
            names = [base, *(f"{base}.{alias.name}" for alias in node.names)]
        else:
            continue
        for name in names:
            if name.split(".")[0] in FOLLOWED and _source(name, root):
                yield name


def _meaning(tree: ast.Module) -> str:
    """A module without what does not change what it does."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                node.body = node.body[1:]
    return ast.dump(tree)
