"""Skeletons of a method, a benchmark or a judge of one's own: ``forestlens new KIND NAME``.

Each is a commented Python file with its test, and for what is chosen by name also the file of settings that
``--config-dir`` finds. The test passes as it stands. Templates are in ``skeletons/``: one file a kind, and its test.
"""

import importlib.util
import keyword
import re
import sys
from importlib.resources import files
from pathlib import Path

from interp.errors import UserError

METHODS = ("method", "learned_method")  # chosen by method.path, without a file of settings
KINDS = (*METHODS, "benchmark", "judge")
FOLDER = "mine"  # given as --config-dir
USAGE = f"forestlens new {'|'.join(KINDS)} NAME"


def new(arguments: list[str], *, into: Path | None = None) -> str:
    """Writes the skeleton that ``arguments``, KIND and NAME, ask for; what to type next.

    ``into`` is the folder for the files, by default the working directory.

    Raises:
        UserError: the kind is unknown, the name cannot be a module's or belongs to another one, or a file is there.
    """
    if len(arguments) != 2 or arguments[0] not in KINDS:
        raise UserError(f"new {' '.join(arguments)}: a skeleton has a kind and a name; type {USAGE}")
    kind, name = arguments
    folder = into or Path.cwd()
    _check_name(name)
    written = {folder / f"{name}.py": f"{kind}.py", folder / f"test_{name}.py": f"test_{kind}.py"}
    if kind not in METHODS:
        written[folder / FOLDER / kind / f"{name}.yaml"] = f"{kind}.yaml"
    if there := next((path for path in written if path.exists()), None):
        raise UserError(f"{there} exists and is left as it is; choose another name, or remove it")
    templates = files("experiments.command_line") / "skeletons"
    for path, template in written.items():
        text = (templates / f"{template}.txt").read_text(encoding="utf-8")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("MODULE_NAME", name).replace("CLASS_NAME", _class_name(name)), encoding="utf-8")
    chosen = f"method=file method.path={name}.py" if kind in METHODS else f"--config-dir {FOLDER} {kind}={name}"
    listed = "\n".join(f"  {path.relative_to(folder)}" for path in written)
    next_steps = f"  {sys.executable} -m pytest test_{name}.py\n  forestlens {chosen} limit=20"
    return f"Written:\n{listed}\nNext (pytest comes by pip install pytest):\n{next_steps}\n"


def _check_name(name: str) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name) or name.startswith("test_"):
        raise UserError(
            f"new … {name}: becomes a Python module; take lower-case letters, digits and _, begin with a letter, and "
            "not with test_"
        )
    spec = importlib.util.find_spec(name) if name not in sys.builtin_module_names else True
    if spec is not None and getattr(spec, "origin", None) != str(Path.cwd() / f"{name}.py"):
        raise UserError(f"new … {name}: a module of this name is installed, and would hide yours; choose another name")


def _class_name(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))
