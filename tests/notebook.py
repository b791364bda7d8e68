"""Runs a notebook's cells in one fresh namespace, as Jupyter would: ``python -m tests.notebook docs/tutorial.ipynb``.

Jupyter is not needed. Prints a line of JSON with the outputs of each code cell (text, and a PNG of a picture that a
cell ends with); with ``--write`` they are put into the notebook. Lines with a magic are left out.
"""

import ast
import base64
import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any


def shown(value: Any) -> dict[str, str]:
    """What Jupyter shows of the value a cell ends with."""
    if value is None:
        return {}
    buffer = io.BytesIO()
    if hasattr(value, "savefig"):
        value.savefig(buffer, format="png")
    elif hasattr(value, "save") and hasattr(value, "mode"):
        value.save(buffer, format="png")
    else:
        return {"text/plain": repr(value)}
    return {"image/png": base64.b64encode(buffer.getvalue()).decode(), "text/plain": f"<{type(value).__name__}>"}


def run(source: str, names: dict[str, Any]) -> list[dict[str, Any]]:
    """The outputs of one cell, in Jupyter's format."""
    lines = [line for line in source.splitlines() if not line.startswith("%")]
    tree = ast.parse("\n".join(lines))
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, "cell", "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": printed.getvalue().splitlines(True)})
    if data := shown(value):
        outputs.append({"output_type": "display_data", "metadata": {}, "data": data})
    return outputs


def main(path: Path, write: bool) -> None:
    """Runs all cells in order."""
    book = json.loads(path.read_text(encoding="utf-8"))
    names: dict[str, Any] = {"__name__": "__main__"}
    count = 0
    for cell in book["cells"]:
        if cell["cell_type"] == "code":
            count += 1
            outputs = run("".join(cell["source"]), names)
            print(json.dumps(outputs), flush=True)
            cell.update(outputs=outputs, execution_count=count)
    if write:
        path.write_text(json.dumps(book, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), "--write" in sys.argv)
