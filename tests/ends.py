"""What pip is given for one end of the ranges in pyproject.toml.

``python tests/ends.py lowest`` or ``newest`` prints constraints, ``python tests/ends.py requirements`` what to install.
"""

import re
import sys
import tomllib
from pathlib import Path

PYPROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"
# The same at both ends: of other versions the package index has builds for CUDA alone, some 5 GB an environment.
TORCH = "torch==2.13.0"
EXTRAS = ("api", "serving", "explore")
TOOLS = ("pytest", "pytest-xdist", "beartype", "hypothesis")
LEAST = re.compile(r"([\w.-]+)(?:\[[\w,-]+\])?>=([\w.]+)")


def requirements() -> tuple[list[str], dict[str, list[str]]]:
    """What pyproject.toml asks for: always, and in each of its extras."""
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    return project["dependencies"], project["optional-dependencies"]


def lowest(lines: list[str]) -> list[str]:
    """``name==version`` for each ``name>=version``."""
    found = [LEAST.match(line) for line in lines]
    return [TORCH if one[1] == "torch" else f"{one[1]}=={one[2]}" for one in found if one is not None]


if __name__ == "__main__":
    always, extras = requirements()
    printed = {
        "requirements": [*always, *(line for name in EXTRAS for line in extras[name]), *TOOLS],
        "lowest": lowest([*always, *(line for extra in extras.values() for line in extra)]),
        "newest": [TORCH],  # pip alone takes the newest
    }
    print(*printed[sys.argv[1]], sep="\n")
