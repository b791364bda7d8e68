"""The public names of a package, written once: in the imports that its ``__init__.py`` makes for type checkers."""

import ast
from pathlib import Path


def module_of(file: str) -> dict[str, str]:
    """Public name → the module that has it, by the ``if TYPE_CHECKING`` of ``file``, a package's ``__init__.py``."""
    tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}
