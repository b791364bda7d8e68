"""Names say what a thing is: no pronouns and other words that say nothing (CONTRIBUTING, "Language")."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FORBIDDEN = {
    *("one", "found", "own", "some", "of", "at", "place", "asked"),
    *("kept", "whole", "now", "then", "known", "said", "shown", "taken"),
}


def bindings(tree: ast.AST) -> Iterator[str]:
    """Yield the names of variables, arguments, attributes and functions; comprehensions and lambdas are free."""
    parts = [node.target for node in ast.walk(tree) if isinstance(node, ast.comprehension)]
    parts += [node.args for node in ast.walk(tree) if isinstance(node, ast.Lambda)]
    free = {id(node) for part in parts for node in ast.walk(part)}
    for node in ast.walk(tree):
        if id(node) in free:
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name


def test_no_name_in_the_product_says_nothing() -> None:
    files = [path for folder in ("interp", "mitigation", "experiments") for path in (ROOT / folder).rglob("*.py")]
    named = [(str(path.relative_to(ROOT)), name) for path in files for name in bindings(ast.parse(path.read_text()))]
    assert len(files) > 200
    assert not [each for each in named if each[1] in FORBIDDEN]


@pytest.mark.parametrize(
    "code", ["found = 1", "def f(one): ...", "def of(): ...", "self.kept = 1", "for at in x: ...", "with x as own: ..."]
)
def test_a_forbidden_name_is_seen(code: str) -> None:
    assert FORBIDDEN & set(bindings(ast.parse(code)))


def test_comprehensions_are_free() -> None:
    assert not FORBIDDEN & set(bindings(ast.parse("x = [one for one in y]; z = lambda some: some")))
