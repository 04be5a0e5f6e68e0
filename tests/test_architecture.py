"""Packages import what stands to their left in docs/architecture.md, and nothing else."""

import ast
from collections.abc import Iterator
from pathlib import Path

import equicolor

ROOT = Path(equicolor.__file__).parent
# Those of one level do not import each other, unless it is said below.
LEVELS = (
    {"_checks", "_files", "_observed", "_packages", "_random", "_text"},
    {"devices"},
    {"color_kernels"},
    {"color", "light"},
    {"results", "reporting"},
    {"groups", "data"},
    {"nn", "testing"},
    {"models"},
    {"training", "evaluation"},
    {"conversion"},
    {"canonicalization"},
    {"analysis"},
    {"paper"},
    {"cli"},
)
EXCEPTIONS = {
    ("evaluation", "training"): {"run_folder", "seen"},
    ("training", "evaluation"): {"", "images"},
}


def imports() -> Iterator[tuple[str, str, str]]:
    """Who imports which module of which other package, inside functions too."""
    for file in ROOT.rglob("*.py"):
        own, *_ = file.relative_to(ROOT).with_suffix("").parts
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                assert not any(alias.name.startswith("equicolor.") for alias in node.names), file
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("equicolor"):
                _, *parts = str(node.module).split(".")
                for name, *rest in [parts] if parts else [[alias.name] for alias in node.names]:
                    if name != own:
                        yield own, name, ".".join(rest)


def level(name: str) -> int:
    return next(index for index, names in enumerate(LEVELS) if name in names)


def test_nothing_imports_to_its_right() -> None:
    listed = [
        each for each in imports() if not each[0].startswith("__") and each[1] != "__version__"
    ]
    assert len(listed) > 100
    wrong = {
        f"{own} imports {other}.{module}"
        for own, other, module in listed
        if module not in EXCEPTIONS.get((own, other), set()) and level(own) <= level(other)
    }
    assert not wrong


def test_every_exception_is_needed() -> None:
    found = {(own, other, module) for own, other, module in imports()}
    for (own, other), modules in EXCEPTIONS.items():
        assert {module for o, p, module in found if (o, p) == (own, other)} == modules
