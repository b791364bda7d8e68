"""The table of what works on each family (``interp/contract.json``), made of what the contract tests found.

A test says what it shows with ``@pytest.mark.contract("generate")``; its family is its parameter. Where a family cannot
do it the test has the library refuse it, and calls ``record_property("not_applicable", sentence)`` with that refusal;
what works within bounds gets ``record_property("limit", sentence)``. Knows nothing of models.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

COMMITTED = Path(__file__).resolve().parents[2] / "interp" / "contract.json"
CAPABILITIES = (
    "load",
    "baseline",
    "segments",
    "generate",
    "score",
    "attention",
    "maps",
    "vcd_sequential",
    "vcd_paired",
    "residuals",
    "lens",
    "record",
    "patch",
    "sublayers",
    "heads",
    "knockout",
    "direct_attribution",
    "lora",
    "captum",
    "save_load",
    "two_devices",
)
NAMED_ALONE = ("attention", "maps", "lora", "captum", "save_load", "two_devices")
"""What is asked of the families of ``tests.families`` alone, not of those of ``tests.read_families``."""
FAILS = "fails: "


@dataclass(frozen=True)
class Found:
    """What one test showed of one family."""

    family: str
    capabilities: tuple[str, ...]
    test: str
    passed: bool
    error: str = ""
    not_applicable: str = ""
    limit: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)


def table(found: Iterable[Found], versions: Mapping[str, Any]) -> dict[str, Any]:
    """The file's contents: versions, then by family its facts and capabilities. A capability works if all tests say so.

    Of several tests that show one capability the entry names the one that says most: a failure, a refusal, a limit, or
    else the first.
    """
    families: dict[str, dict[str, Any]] = {}
    for one in sorted(found, key=_telling):
        entry = families.setdefault(one.family, {"model_type": "", "notes": [], "capabilities": {}})
        entry.update(one.facts)
        for name in one.capabilities:
            entry["capabilities"].setdefault(name, _cell(one))
    for entry in families.values():
        entry["capabilities"] = {
            name: entry["capabilities"][name] for name in CAPABILITIES if name in entry["capabilities"]
        }
    return {**versions, "families": dict(sorted(families.items()))}


def _telling(one: Found) -> tuple[bool, bool, bool, str]:
    return one.passed, not one.not_applicable, not one.limit, one.test


def _cell(one: Found) -> dict[str, Any]:
    reason = FAILS + one.error if not one.passed else one.not_applicable or one.limit or None
    return {"works": one.passed and not one.not_applicable, "reason": reason, "test": one.test}


def merged(found: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``before`` with the cells of ``found``; both were made with the same versions."""
    families = dict(before["families"])
    for name, entry in found["families"].items():
        cells = families.get(name, {}).get("capabilities", {}) | entry["capabilities"]
        ordered = {capability: cells[capability] for capability in CAPABILITIES if capability in cells}
        facts = {key: value for key, value in entry.items() if value}
        families[name] = entry | families.get(name, {}) | facts | {"capabilities": ordered}
    return {**before, "families": dict(sorted(families.items()))}


def differences(found: Mapping[str, Any], committed: Mapping[str, Any]) -> list[str]:
    """A line for each cell that is not as committed; cells that were not run are left out."""
    lines = []
    for family, entry in found["families"].items():
        before = committed["families"].get(family, {"capabilities": {}})["capabilities"]
        for name, cell in entry["capabilities"].items():
            was, now = (_words(one) for one in (before.get(name), cell))
            if was != now:
                lines.append(f"{family} {name}: {was} → {now}")
    return lines


def untested(found: Mapping[str, Any], committed: Mapping[str, Any]) -> list[str]:
    """A line for each committed cell that no test of this run was about."""
    cells = {name: entry["capabilities"] for name, entry in found["families"].items()}
    return [
        f"{family} {name}: no test of it ran"
        for family, entry in committed["families"].items()
        for name in entry["capabilities"]
        if name not in cells.get(family, {})
    ]


def _words(cell: Mapping[str, Any] | None) -> str:
    if cell is None:
        return "not in the table"
    reason = f" ({cell['reason']})" if cell["reason"] else ""
    return ("works" if cell["works"] else "does not") + reason


def contradiction(one: Found, committed: Mapping[str, Any]) -> str:
    """What a passed test's finding has against the committed table, "" where nothing."""
    cells = committed["families"].get(one.family, {"capabilities": {}})["capabilities"]
    for name in one.capabilities:
        cell = cells.get(name)
        if cell is None:
            return f"{one.family} {name} is not in it"
        if one.not_applicable and cell["works"]:
            return f"{one.family} {name} works there, and is refused here: {one.not_applicable}"
        if cell["test"] == one.test and not cell["works"] and not one.not_applicable:
            return f"{one.family} {name} is refused there, and works here: {cell['reason']}"
    return ""


def drawn(contents: Mapping[str, Any]) -> list[str]:
    """The table in letters, a row a family: + works, (+) within bounds, − does not, ! fails, ? was not run."""
    rows = [["", *CAPABILITIES]]
    for family, entry in contents["families"].items():
        rows.append([family, *(_mark(entry["capabilities"].get(name)) for name in CAPABILITIES)])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _mark(cell: Mapping[str, Any] | None) -> str:
    if cell is None:
        return "?"
    if cell["works"]:
        return "(+)" if cell["reason"] else "+"
    return "!" if cell["reason"].startswith(FAILS) else "−"
