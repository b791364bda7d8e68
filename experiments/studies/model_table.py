"""Every model configuration, what is proved and what not: ``task=model_table``. Needs no model and no run directory.

What works is read from ``interp/contract.json``, which the contract tests write after putting one small random model of
each family through them.
"""

import json
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from rich.console import Console

import interp
from experiments.config import Run, options_of, written
from experiments.report.table import Column, Table, terminal
from interp.errors import UserError

CONTRACT = Path(interp.__file__).parent / "contract.json"
# What a family that is said to be proved can do, against plain forwards of it (tests/contract/battery.py).
PROVED = ("baseline", "generate", "score", "segments", "lens", "record")
BRANCHES = ("vcd_sequential", "vcd_paired")  # of which one must work
SERVED = "over an API"  # in place of a family
REMOTE = (
    "Over an API the server answers, and nobody here sees inside the model or changes it; the tests ask a stand-in."
)
GATED = "gated"  # a licence to be accepted on the model's page of the hub


@dataclass(frozen=True)
class ModelTable:
    """The task: prints the table."""

    def __call__(self, run: Run) -> None:
        """Prints.

        Raises:
            UserError: the contract's results or a configuration cannot be read.
        """
        contract = read_contract(CONTRACT)
        shown = (models(configurations()), limits(contract))
        closing = f"What was run and is not listed works.{not_run(contract)} {provenance(contract)} {REMOTE}"
        console = Console(highlight=False, markup=False)
        for table in shown:
            console.print(terminal(table))
        console.print(closing)


def configurations() -> list[dict[str, Any]]:
    """The nodes of all model configurations: those with weights first, then those behind an API, each by name."""
    found = []
    for name in options_of("model"):
        own = written("model", name)
        base = str(own.pop("defaults")[0]).partition("@")[0]  # what Hydra composes, without a Hydra
        node = OmegaConf.to_container(OmegaConf.merge(written("model", base), own), resolve=True)
        assert isinstance(node, dict)
        found.append({str(key): value for key, value in node.items()})
    return sorted(found, key=_remote)


def _remote(node: dict[str, Any]) -> bool:
    return "base_url" in node


def read_contract(path: Path) -> dict[str, Any]:
    """The contract tests' results; without families where they have never been written."""
    if not path.is_file():
        return {"families": {}}
    try:
        contract = json.loads(path.read_text(encoding="utf-8"))
        assert isinstance(contract["families"], dict)
    except (ValueError, KeyError, TypeError, AssertionError) as error:
        raise UserError(f"cannot read {path}; the contract tests write it; run `make contract`") from error
    return dict(contract)


def models(nodes: list[dict[str, Any]]) -> Table:
    """What each model is and needs."""
    rows = []
    for node in nodes:
        gib, remote = node.get("memory_gib"), _remote(node)
        family = SERVED if remote else str(node.get("family") or "")
        licence = [str(node.get("terms" if remote else "licence", "")), *([GATED] if node.get("gated") else [])]
        path = str(node["model" if remote else "path"])
        size = "-" if gib is None else f"{gib:g}"
        rows.append({"model": str(node["name"]), "family": family, "hub id": path, "GiB": size,
                     "licence": "; ".join(licence)})  # fmt: skip
    columns = [
        Column("model", "left", fold=22),
        Column("family", "left", fold=12),
        Column("hub id", "left", fold=22),
        Column("GiB"),
        Column("licence", "left", fold=16),
    ]
    return Table.of("Models", rows, columns=columns)


def limits(contract: dict[str, Any]) -> Table:
    """What does not work on the small model of a family, or only so far, and why; what was run and is absent works."""
    rows = [
        {"family": family, "what": name, "works": "yes" if cell["works"] else "no",
         "why, or how far": str(cell.get("reason") or "")}
        for family, entry in contract["families"].items()
        for name, cell in entry["capabilities"].items()
        if not cell["works"] or cell.get("reason")
    ]  # fmt: skip
    columns = [Column("family", "left"), Column("what", "left"), Column("works", "left"),
               Column("why, or how far", "left", fold=32)]  # fmt: skip
    return Table.of("What does not work on a family, or only so far", rows, columns=columns)


def not_run(contract: dict[str, Any]) -> str:
    """Which capabilities were not asked of which families, in words."""
    every = {name: None for entry in contract["families"].values() for name in entry["capabilities"]}
    by_names: dict[str, list[str]] = {}
    for family, entry in contract["families"].items():
        if absent := [name for name in every if name not in entry["capabilities"]]:
            by_names.setdefault(", ".join(absent), []).append(family)
    return "".join(f" Not run: {names} of {', '.join(families)}." for names, families in by_names.items())


def provenance(contract: dict[str, Any]) -> str:
    """What the table was measured on, and what has never been run."""
    real = "No model from the hub was run on its real weights where this project was built."
    if not contract["families"]:
        return f"{real} The contract tests have not run: `make contract` fills the table."
    tested, here = str(contract.get("transformers")), version("transformers")
    other = "" if tested == here else f" Installed here is transformers {here}: `make contract` tests it."
    return (
        f"{real} What works was found on one small random model of each family, with transformers {tested} and torch "
        f"{contract.get('torch')}.{other} {proved_families(contract)}"
    )


def lacking(contract: dict[str, Any]) -> dict[str, list[str]]:
    """Kind of model → what of ``PROVED`` its small models cannot do: nothing where it is proved."""
    found: dict[str, list[str]] = {}
    for family, entry in contract["families"].items():
        works = {name for name, cell in entry.get("capabilities", {}).items() if cell.get("works")}
        missing = [name for name in PROVED if name not in works]
        missing += [] if works & set(BRANCHES) else ["VCD"]
        found.setdefault(entry.get("model_type", family), []).extend(missing)
    return found


def proved_families(contract: dict[str, Any]) -> str:
    """How many kinds of models are proved, what the others lack, and which have no small model here, and why."""
    kinds, without = lacking(contract), contract.get("without_row", {})
    exceptions = [f"{kind} (no {', '.join(names)})" for kind, names in kinds.items() if names]
    others = f" Not whole: {'; '.join(exceptions)}." if exceptions else ""
    rest = "".join(f" Not asked, since {why}: {', '.join(names)}." for why, names in without.items())
    return (
        f"Of {len(kinds) + sum(map(len, without.values()))} kinds of models {len(kinds) - len(exceptions)} work in "
        f"{', '.join(PROVED)} and VCD in a branch, each held against plain forwards.{others}{rest} Any other model: "
        "task=prove says what works on it."
    )
