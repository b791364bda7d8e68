"""Every model configuration and what works on it: ``task=model_table``. Needs no model, no torch and no run directory.

What works is read from ``interp/contract.json``, which the contract tests write after putting one small random model of
each family through them.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from rich.console import Console

import interp
from experiments.config import Run, options_of, written
from experiments.report.table import Cell, Column, Row, Table, markdown, terminal
from interp.checkpoints.config import ORGANISM
from interp.errors import UserError

CONTRACT = Path(interp.__file__).parent / "contract.json"
CAPABILITIES = {  # capability in the contract's words → column
    "generate": "generate",
    "attention": "attention",
    "maps": "maps",
    "vcd_sequential": "VCD sequential",
    "vcd_paired": "VCD paired",
    "vcd_lazy": "VCD lazy",
    "lora": "LoRA",
    "captum": "captum",
    "two_devices": "two devices",
}
# What a family that is said to be proved can do, against plain forwards of it (tests/contract/battery.py).
PROVED = ("baseline", "generate", "score", "segments", "lens", "record")
BRANCHES = ("vcd_sequential", "vcd_paired")  # of which one must work
SERVED = "over an API"  # in place of a family
WORKS, NOT_HERE, NOT_RUN = "yes", "n/a", "not run"
CALLED = "The tests ask a stand-in server; no provider was called from where this project was built."
REMOTE = "Reached over an API: the server answers, and nobody here sees inside the model or changes it."
UNTRIED = "No contract test of this family has run."
GATED = "Gated: accept its licence on its hub page, then log in with `hf auth login` or set HF_TOKEN."


@dataclass(frozen=True)
class ModelTable:
    """The task: prints the table, and writes it to ``markdown`` where this path is given."""

    markdown: str | None = None

    def __call__(self, run: Run) -> None:
        """Prints and writes.

        Raises:
            UserError: the contract's results or a configuration cannot be read, or a file not be written.
        """
        contract = read_contract(CONTRACT)
        about, works, notes = tables(configurations(), contract)
        closing = provenance(contract)
        console = Console(highlight=False, markup=False)
        for table in (about, works):
            console.print(terminal(table))
        for number, sentence in enumerate(notes, start=1):
            console.print(f"[{number}] {sentence}")
        console.print(closing)
        if self.markdown:
            listed = "\n".join(f"{number}. {sentence}" for number, sentence in enumerate(notes, start=1))
            page = "\n\n".join(["# Models", markdown(about), markdown(works), listed, closing])
            try:
                Path(self.markdown).write_text(f"{page}\n", encoding="utf-8")
            except OSError as error:
                raise UserError(
                    f"cannot write {self.markdown} ({error.strerror}); give a file in a folder that exists"
                ) from error


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


def tables(nodes: Sequence[dict[str, Any]], contract: dict[str, Any]) -> tuple[Table, Table, list[str]]:
    """What each model is and needs, what works on each family (80 columns each), and the notes that cells number.

    Notes say how far something works, or why not; equal ones have one number, from 1.
    """
    notes: dict[str, int] = {}

    def noted(text: str, *sentences: str) -> str:
        return " ".join([text, *(f"[{notes.setdefault(one, len(notes) + 1)}]" for one in sentences)])

    about, works = [], {}
    for node in nodes:
        family = SERVED if _remote(node) else str(node.get("family") or "")
        results = contract["families"].get(family)
        name = noted(str(node["name"]), *_about_weights(node, results))
        gib, licence = node.get("memory_gib"), node.get("terms" if _remote(node) else "licence", "")
        path = node["model" if _remote(node) else "path"]
        about.append(_row([name, family, str(path), "-" if gib is None else f"{gib:g}", str(licence)]))
        if _remote(node):
            outside, inside = noted(NOT_HERE, REMOTE), noted(WORKS, CALLED)
            cells = [inside if capability == "generate" else outside for capability in CAPABILITIES]
        else:
            cells = [noted(*_capability(results, capability)) for capability in CAPABILITIES]
        works[family] = _row([family, *cells])
    columns = [
        Column("model", "left", fold=22),
        Column("family", "left", fold=12),
        Column("hub id", "left", fold=22),
        Column("GiB"),
        Column("licence", "left", fold=16),
    ]
    capabilities = [
        Column(name, "left", short=name.replace(" ", "\n"), fold=max(map(len, name.split())))
        for name in CAPABILITIES.values()
    ]
    rows = [works[family] for family in sorted(works, key=lambda family: (family == SERVED, family))]
    first = Table("Models", columns, about)
    second = Table("What works on which family", [Column("family", "left", fold=12), *capabilities], rows)
    return first, second, list(notes)


def _row(texts: Sequence[str]) -> Row:
    return Row([Cell(text) for text in texts])


def _about_weights(node: dict[str, Any], results: dict[str, Any] | None) -> list[str]:
    """Sentences on getting a model's weights, and on what the family's tests leave open."""
    bundled = str(node.get("path")).startswith(ORGANISM)  # its weights are here, and all tests run them
    return [*([GATED] if node.get("gated") else []), *([] if results is None or bundled else results.get("notes", []))]


def _capability(results: dict[str, Any] | None, capability: str) -> list[str]:
    """Whether it works, and the note that says how far, or why not."""
    if results is None:
        return [NOT_RUN, UNTRIED]
    if (found := results["capabilities"].get(capability)) is None:
        return [NOT_RUN]
    return [WORKS if found["works"] else NOT_HERE, *([] if found.get("reason") is None else [found["reason"]])]


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
