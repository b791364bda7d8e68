"""``python -m tests.contract [FAMILY …]`` writes rows of ``interp/contract.json``; ``--compare`` only compares them."""

import json
import sys
from importlib.metadata import version
from typing import Any

from interp.loading import CONTRACT
from tests.contract.facts import WITHOUT_ROW
from tests.contract.rows import row
from tests.families import FAMILIES
from tests.read_families import READ


def main(names: list[str], *, compare: bool) -> str:
    """Check the families ``names`` (default: all), and write their rows unless one is wrong. Return what is wrong."""
    before = json.loads(CONTRACT.read_text(encoding="utf-8"))
    rows = {name: row(name) for name in names or [*FAMILIES, *READ]}
    errors = [f"{name}: {error}" for name, each in rows.items() if (error := each.pop("wrong"))]
    changed = [
        f"{name}: {line}" for name, each in rows.items() for line in differences(each, before["families"].get(name))
    ]
    print(*changed, f"{len(changed)} differences", sep="\n")
    if not errors and not compare:
        kept = {} if not names else before["families"]
        CONTRACT.write_text(written(dict(sorted({**kept, **rows}.items()))), encoding="utf-8")
    return "\n".join(errors)


def differences(row: dict[str, Any], before: dict[str, Any] | None) -> list[str]:
    """Return a line for each part of a row that is not as in the table."""
    if before is None:
        return ["has no row"]
    return [f"{part}: {before.get(part)} → {value}" for part, value in row.items() if before.get(part) != value]


def written(families: dict[str, Any]) -> str:
    """Return the file: a line for each part of a row, without empty parts but ``refused``."""
    versions = {"transformers": version("transformers"), "torch": version("torch").partition("+")[0]}
    table: dict[str, Any] = {**versions, "without_row": WITHOUT_ROW, "families": families}
    return _nested(table, 3) + "\n"


def _nested(value: Any, depth: int, indent: str = "") -> str:
    if depth == 0 or not isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    inner = indent + " "
    lines = [f"{inner}{json.dumps(name)}: {_nested(each, depth - 1, inner)}" for name, each in value.items()]
    return "{\n" + ",\n".join(lines) + f"\n{indent}}}"


if __name__ == "__main__":
    wrong = main([name for name in sys.argv[1:] if name != "--compare"], compare="--compare" in sys.argv)
    sys.exit(wrong or 0)
