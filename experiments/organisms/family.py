"""``+exp=organism_family``: how much does each mitigation gain as verdicts depend less on the picture?

Organisms with a known and graded cause (``members.py``) are trained, the same mitigations are chosen and compared on
each, and what the tools of ``interp`` say of an organism is set beside the cause that was put in. In the run's
directory: ``members/<name>/`` (checkpoints), ``<name>/<time>/`` (the study of each), ``family.json``, ``family.md`` and
``figures/``. An interrupted run goes on where it was. Importing this module loads neither torch nor transformers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from rich.console import Console

from experiments.config import Run
from experiments.organisms.members import Member, measure_traits, train_members
from experiments.organisms.recipe import Recipe
from experiments.runs.analyses import unfinished
from experiments.runs.resumption import RunStore, open_run, read_object
from interp.checkpoints.config import ModelConfig
from interp.errors import UserError

RESULT = "family.json"


@runtime_checkable
class MitigationStudy(Protocol):
    """What the family needs of the study that tries mitigations: it leaves ``mitigations.json`` in its directory."""

    rivals: list[str]

    def __call__(self, run: Run) -> Path: ...


@dataclass(frozen=True)
class OrganismFamily:
    """The task. ``biases`` maps a kind of leaning to shares of blind labels, each trained with every one of ``seeds``.

    ``recipe`` is common to all, ``tower`` the checkpoint whose vision tower they have, ``mitigations`` what is tried on
    each. ``checkpoints`` is where members are looked for and kept (None: in the run's directory); ``captions`` says how
    many captions are asked of each.
    """

    biases: dict[str, list[float]]
    seeds: list[int]
    recipe: Recipe
    mitigations: Any  # a MitigationStudy
    tower: str = "organism:llava"
    checkpoints: str | None = None
    captions: int = 200

    def __post_init__(self) -> None:
        """Checks the family.

        Raises:
            UserError: it is empty or has a member twice, or ``mitigations`` is no study of mitigations.
        """
        names = [member.name for member in self.members()]
        if not names or len(set(names)) < len(names):
            raise UserError(
                f"task.biases={self.biases}, task.seeds={self.seeds}: give each at least one value, and once"
            )
        if self.captions < 1:
            raise UserError(f"task.captions={self.captions}: must be at least 1")
        if not isinstance(self.mitigations, MitigationStudy):
            raise UserError(f"task.mitigations={self.mitigations!r}: is no Mitigations; give it that _target_")

    def members(self) -> list[Member]:
        """Kind by kind, from mild to total, seed by seed."""
        return [Member(k, bias, seed) for k, biases in self.biases.items() for bias in biases for seed in self.seeds]

    def __call__(self, run: Run) -> None:
        """Trains, evaluates and measures what is missing, then writes the table and the figure."""
        console = Console()
        if run.benchmark.name != "iconworld":
            raise UserError(f"benchmark {run.benchmark.name}: the family lives in IconWorld; leave benchmark=iconworld")
        described = {"family": [repr(m) for m in self.members()], "recipe": repr(self.recipe), "tower": self.tower,
                     "mitigations": repr(self.mitigations), "captions": self.captions}  # fmt: skip
        run = replace(run, config=run.config | described)
        with open_run(run.output_root, run.name, run.config, run.config_hash, fresh=run.fresh) as store:
            folder = Path(self.checkpoints) if self.checkpoints else store.path / "members"
            train_members(self.members(), self.recipe, self.tower, folder, console)
            found = read_object(store.path / RESULT).get("members", {})
            for member in self.members():
                if member.name not in found:
                    found[member.name] = self._measure(run, member, folder / member.name, store)
                    store.write_json(RESULT, {"members": found})
            self._conclude(run, found, store, console)

    def _measure(self, run: Run, member: Member, checkpoint: Path, store: RunStore) -> dict[str, Any]:
        """The member's table and traits."""
        model = ModelConfig(member.name, str(checkpoint))
        own = replace(run, model=model, name=member.name, output_root=str(store.path), fresh=False,
                      config=run.config | {"model": repr(model), "name": member.name})  # fmt: skip
        study = self.mitigations(own)
        table = read_object(study / "mitigations.json")
        if "arms" not in table or unfinished(study):
            raise UserError(
                f"the mitigations of {member.name} are not compared, and the report in {study} says why; mend the "
                "cause and run the same command again, which goes on from here"
            )
        from interp.loading import load

        vlm = load(own.weights)
        with vlm.batches.by(own.batch_rule, on_lowered=partial(_say_memory, member.name)):
            traits = measure_traits(vlm, own, captions=self.captions)
        return {
            "kind": member.kind,
            "bias": member.bias,
            "seed": member.seed,
            "study": str(study.relative_to(store.path)),
            "arms": {name: _needed(arm) for name, arm in table["arms"].items()},
            "traits": traits,
        }

    def _conclude(self, run: Run, found: Mapping[str, Any], store: RunStore, console: Console) -> None:
        from experiments.organisms.family_tables import conclude

        for line in conclude(store, found, rival=self.mitigations.rivals[0] if self.mitigations.rivals else "vcd"):
            console.print(line, highlight=False, soft_wrap=isinstance(line, str))
        store.finish()


def _say_memory(member: str, rows: int) -> None:
    Console().print(f"{member}: out of memory; asking {rows} at once from here on", highlight=False)


def _needed(arm: Mapping[str, Any]) -> dict[str, Any]:
    """Of an arm's row what the family's table needs."""
    return {key: arm[key] for key in ("accuracy", "auroc", "flip_rate", "versus", "wins", "chosen", "n", "n_of")}
