"""Every model configuration and what works on it: ``task=model_table``. Needs no model, no torch and no run directory.

What works is read from ``interp/contract.json``, which the contract tests write after putting one small random model of
each family through them.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from rich.console import Console

import conf
import interp
from experiments.config import Run
from experiments.report.table import Cell, Column, Row, Table, markdown, terminal
from interp.checkpoints.config import ORGANISM
from interp.errors import UserError

MODELS = Path(conf.__file__).parent / "model"
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
PROVED = ("baseline", "generate", "score", "segments", "lens", "record")
BRANCHES = ("vcd_sequential", "vcd_paired")  # of which one must work
"""What a family that is said to be proved can do, against plain forwards of it (``tests/contract/battery.py``)."""
SERVED = "over an API"  # in place of a family
WORKS, NOT_HERE, NOT_RUN = "yes", "n/a", "not run"
CALLED = "The tests ask a stand-in server; no provider was called from where this project was built."
REMOTE = "Reached over an API: the server answers, and nobody here sees inside the model or changes it."
UNTRIED = "No contract test of this family has run."
GATED = "Gated: accept its licence on its hub page, then log in with `hf auth login` or set HF_TOKEN."


@dataclass(frozen=True)
class Support:
    """Whether something works, and the numbers of the notes that say how far, or why not."""

    answer: str
    notes: tuple[int, ...] = ()

    def __str__(self) -> str:
        return " ".join([self.answer, *(f"[{number}]" for number in self.notes)])


@dataclass(frozen=True)
class ModelRow:
    """One configuration: who it is, and by capability whether it works."""

    name: Support
    family: str
    path: str
    memory_gib: float | None
    licence: str
    works: dict[str, Support]


@dataclass
class NumberedNotes:
    """Sentences, numbered from 1 as they first come up; equal ones have one number."""

    sentences: list[str] = field(default_factory=list)

    def number(self, sentence: str) -> int:
        """The number of ``sentence``."""
        if sentence not in self.sentences:
            self.sentences.append(sentence)
        return self.sentences.index(sentence) + 1


@dataclass(frozen=True)
class ModelTable:
    """The task: prints the table, and writes it to ``markdown`` and ``json`` where these paths are given."""

    markdown: str | None = None
    json: str | None = None

    def __call__(self, run: Run) -> None:
        """Prints and writes.

        Raises:
            UserError: the contract's results or a configuration cannot be read, or a file not be written.
        """
        contract = read_contract(CONTRACT)
        notes = NumberedNotes()
        models = [model_row(config, contract, notes) for config in configurations(MODELS)]
        closing = provenance(contract)
        console = Console(highlight=False, markup=False)
        for table in tables(models):
            console.print(terminal(table))
        for number, sentence in enumerate(notes.sentences, start=1):
            console.print(f"[{number}] {sentence}")
        console.print(closing)
        if self.markdown:
            _write(self.markdown, as_markdown(models, notes, closing))
        if self.json:
            _write(self.json, json.dumps(as_json(models, notes, contract), indent=1, ensure_ascii=False) + "\n")


def configurations(folder: Path) -> list[dict[str, Any]]:
    """The nodes of all model configurations: those with weights first, then those behind an API, each by name."""
    found = []
    for path in sorted(folder.glob("*.yaml")):
        own = OmegaConf.load(path)
        assert isinstance(own, DictConfig)
        base = str(own.pop("defaults")[0]).partition("@")[0]  # what Hydra composes, without a Hydra
        node = OmegaConf.to_container(OmegaConf.merge(OmegaConf.load(folder / f"{base}.yaml"), own), resolve=True)
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


def model_row(node: dict[str, Any], contract: dict[str, Any], notes: NumberedNotes) -> ModelRow:
    """One row; what its notes say is added to ``notes``."""
    name = str(node["name"])
    if _remote(node):
        outside, inside = Support(NOT_HERE, (notes.number(REMOTE),)), Support(WORKS, (notes.number(CALLED),))
        works = {capability: inside if capability == "generate" else outside for capability in CAPABILITIES}
        return ModelRow(Support(name), "", str(node["model"]), None, str(node.get("terms", "")), works)
    family = str(node.get("family") or "")
    results = contract["families"].get(family)
    sentences = [GATED] if node.get("gated") else []
    bundled = str(node["path"]).startswith(ORGANISM)  # its weights are here, and all tests run them
    sentences += [] if results is None or bundled else results.get("notes", [])
    return ModelRow(
        Support(name, tuple(notes.number(sentence) for sentence in sentences)),
        family,
        str(node["path"]),
        node.get("memory_gib"),
        str(node.get("licence", "")),
        {capability: _support(results, capability, notes) for capability in CAPABILITIES},
    )


def _support(results: dict[str, Any] | None, capability: str, notes: NumberedNotes) -> Support:
    found = None if results is None else results["capabilities"].get(capability)
    if found is None:
        return Support(NOT_RUN, (notes.number(UNTRIED),) if results is None else ())
    reason = found.get("reason")
    return Support(WORKS if found["works"] else NOT_HERE, () if reason is None else (notes.number(reason),))


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


def tables(models: Sequence[ModelRow]) -> tuple[Table, Table]:
    """What each model is and needs, and what works on each family: 80 columns each, with headings in one piece."""
    about = [
        Column("model", "left", fold=22),
        Column("family", "left", fold=12),
        Column("hub id", "left", fold=22),
        Column("GiB"),
        Column("licence", "left", fold=16),
    ]
    works = [Column("family", "left", fold=12)]
    works += [
        Column(name, "left", short=name.replace(" ", "\n"), fold=max(map(len, name.split())))
        for name in CAPABILITIES.values()
    ]
    families = {one.family or SERVED: one for one in sorted(models, key=lambda one: (not one.family, one.family))}
    return (
        Table("Models", about, [_about(model) for model in models]),
        Table("What works on which family", works, [_works(family, one) for family, one in families.items()]),
    )


def _about(model: ModelRow) -> Row:
    memory = "-" if model.memory_gib is None else f"{model.memory_gib:g}"
    return Row([Cell(text) for text in (str(model.name), model.family or SERVED, model.path, memory, model.licence)])


def _works(family: str, model: ModelRow) -> Row:
    return Row([Cell(family), *(Cell(str(model.works[capability])) for capability in CAPABILITIES)])


def as_markdown(models: Sequence[ModelRow], notes: NumberedNotes, closing: str) -> str:
    """The tables as a page of Markdown."""
    listed = [f"{number}. {sentence}" for number, sentence in enumerate(notes.sentences, start=1)]
    about, works = map(markdown, tables(models))
    return "\n\n".join(["# Models", about, works, "\n".join(listed), closing]) + "\n"


def as_json(models: Sequence[ModelRow], notes: NumberedNotes, contract: dict[str, Any]) -> dict[str, Any]:
    """The table as JSON can say it; notes are numbered from 1."""
    rows = [
        {
            "name": model.name.answer,
            "notes": list(model.name.notes),
            "family": model.family or None,
            "path": model.path,
            "memory_gib": model.memory_gib,
            "licence": model.licence,
            "works": {name: {"answer": one.answer, "notes": list(one.notes)} for name, one in model.works.items()},
        }
        for model in models
    ]
    tested = {key: contract.get(key) for key in ("transformers", "torch")}
    return {"tested_with": tested, "real_weights": False, "models": rows, "notes": notes.sentences}


def _write(path: str, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {path} ({error.strerror}); give a file in a folder that exists") from error
