"""Read the options of a class or function and their defaults from its source, without importing it.

The options that Hydra composes come from here, so that each default is written once. Many of the modules import torch,
which a command that only lists or checks options cannot wait for.
"""

import ast
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import conf

ROOT = Path(conf.__file__).parents[1]
REQUIRED = "???"  # Hydra's mark for a value that the user must give


@cache
def defaults_of(target: str) -> dict[str, Any]:
    """Return option → default of a dataclass or function of this project.

    An option without a default has the value ``REQUIRED``. An option is left out if YAML cannot hold its default.

    Args:
        target: dotted path, such as ``mitigation.vcd.VCD``. A path outside this project has no options here.
    """
    definition, module = _definition(*target.rpartition(".")[::2])
    values: dict[str, Any] = {}
    for base in reversed(getattr(definition, "bases", [])):
        values |= defaults_of(f"{module}.{ast.unparse(base)}")
    for name, default in _options(definition):
        with suppress(ValueError):
            values[name] = REQUIRED if default is None else _value(default, module)
    return values


def _definition(module: str, name: str) -> tuple[ast.AST | None, str]:
    """Return the definition of a name at the top level of a module, and the module that has it."""
    node = _names(module).get(name)
    if isinstance(node, ast.ImportFrom) and node.module:
        return _definition(node.module, name)
    return node, module


@cache
def _names(module: str) -> dict[str, ast.AST]:
    """Return name → definition, import or value of each name at the top level of a module."""
    path = ROOT.joinpath(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    body = ast.parse(path.read_bytes()).body if path.is_file() else []
    names: dict[str, ast.AST] = {
        alias.name: node for node in body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    names |= {node.name: node for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    return names | {ast.unparse(node.targets[0]): node.value for node in body if isinstance(node, ast.Assign)}


def _options(definition: ast.AST | None) -> Iterator[tuple[str, ast.expr | None]]:
    """Yield name and default of each argument, or of each field of a dataclass; None if there is no default."""
    if isinstance(definition, ast.FunctionDef):
        arguments = definition.args
        names = [argument.arg for argument in (*arguments.args, *arguments.kwonlyargs)]
        values = [*arguments.defaults, *arguments.kw_defaults]
        yield from zip(names, [None] * (len(names) - len(values)) + values, strict=True)
    elif isinstance(definition, ast.ClassDef) and definition.decorator_list:
        for field in definition.body:
            if isinstance(field, ast.AnnAssign) and "ClassVar" not in ast.unparse(field.annotation):
                yield ast.unparse(field.target), field.value


def _value(node: ast.AST, module: str) -> Any:
    """Return the value of an expression.

    Raises:
        ValueError: YAML cannot hold it. The class sets it itself.
    """
    match node:
        case ast.Call(keywords=[ast.keyword(arg="default" | "default_factory", value=value), *_]):  # field(…)
            return _value(value, module)
        case ast.Lambda(body=body):
            return _value(body, module)
        case ast.Name(id="dict" | "list"):
            return {} if node.id == "dict" else []
        case ast.Name(id=name):
            definition, module = _definition(module, name)
            return _value(definition or ast.Pass(), module)
        case ast.List():
            return [_value(element, module) for element in node.elts]
        case ast.expr() if not isinstance(value := ast.literal_eval(node), tuple):
            return value
    raise ValueError(f"{node} is no value")
