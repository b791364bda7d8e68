"""``+exp=organism_family``: how much does each mitigation gain as verdicts depend less on the picture?

Organisms with a known and graded cause are trained, the same mitigations are chosen and compared on each, and what the
tools of ``interp`` say of an organism is set beside the cause that was put in. Members differ in one cause only: how
many verdict labels come from the annotator who never looks, and how that annotator leans. All share the frozen vision
tower of one checkpoint, so that none sees better than another. In the run's directory: ``members/<name>/``
(checkpoints), ``<name>/<time>/`` (the study of each), ``family.json`` and ``family.md``. An interrupted run goes on
where it was. Importing this module loads neither torch nor transformers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from rich.console import Console

from experiments.config import Run
from experiments.evaluation.perception import perception_accuracy
from experiments.evaluation.study import limited
from experiments.metrics.bootstrap import auroc
from experiments.metrics.findings import plain
from experiments.organisms.family_tables import conclude
from experiments.organisms.recipe import Recipe
from experiments.runs.analyses import unfinished
from experiments.runs.resumption import RunStore, open_run, read_object, write_json
from experiments.studies.mitigation_selection.study import Mitigations
from interp.checkpoints.config import ModelConfig
from interp.errors import UserError

if TYPE_CHECKING:
    from experiments.organisms.architecture import Pieces
    from interp.vlm import VLM

RESULT = "family.json"
KEPT = ("accuracy", "auroc", "flip_rate", "versus", "wins", "chosen", "n", "n_of")  # of an arm's row
LEANING_KINDS = ("template", "uniform")
MEMBER_FILE = "member.json"  # the last file of a checkpoint; a checkpoint without it is trained again


@dataclass(frozen=True)
class Member:
    """One organism. ``bias`` is the share of verdict labels from the text-only annotator, a fraction of 1.

    Its leaning on risky sentences is set by the ``template``, as in the bundled organism, or ``uniform``.
    """

    kind: str
    bias: float
    seed: int

    def __post_init__(self) -> None:
        """Checks kind and bias.

        Raises:
            UserError: a value is outside its range.
        """
        if self.kind not in LEANING_KINDS:
            raise UserError(f"kind={self.kind!r}: must be one of {', '.join(LEANING_KINDS)}")
        if not 0 <= self.bias <= 1:
            raise UserError(f"bias={self.bias}: a share of labels lies between 0 and 1")

    @property
    def name(self) -> str:
        """The name of its folder."""
        return f"{self.kind}-{100 * self.bias:g}-seed{self.seed}"

    def recipe(self, base: Recipe) -> Recipe:
        """``base`` with this member's cause. Prompt variants are labelled alike, so that there is no other cause."""
        truth = 1 - self.bias
        leanings = base.leanings if self.kind == "template" else {}
        shares = base.shares | {"truth": truth, "context_truth": truth}
        return replace(base, seed=self.seed, shares=shares, leanings=leanings)


def train_members(members: Sequence[Member], base: Recipe, tower: str, folder: Path, console: Console) -> None:
    """A checkpoint in ``folder/<name>`` for every member that has none, with the vision tower of ``tower``.

    Members of one seed share the perception stage; then each learns verdicts from its own labels. A member trained
    again with the same number of threads is bitwise the same.

    Raises:
        UserError: ``tower`` cannot be loaded or is of another shape.
    """
    from experiments.organisms.stages import draw_pictures, learn_answers, patch_features
    from experiments.organisms.trainer import Trainer, bars, reproducible

    missing = [member for member in members if not (folder / member.name / MEMBER_FILE).exists()]
    for seed in sorted({member.seed for member in missing}):
        recipe = replace(base, seed=seed)
        with reproducible(seed, recipe.threads):
            pieces = _untrained(tower)
            with bars(console, f"seed {seed} ") as report:
                trainer = Trainer(recipe, pieces, report)
                pictures = draw_pictures(trainer)
                features = patch_features(trainer, pictures)
                learn_answers("perception", trainer, pictures, features)
            perceiving = {name: value.clone() for name, value in pieces.model.state_dict().items()}
            for member in (one for one in missing if one.seed == seed):
                pieces.model.load_state_dict(perceiving)
                with bars(console, f"{member.name} ") as report:
                    own = replace(trainer, recipe=member.recipe(recipe), report=report)
                    learn_answers("verdict", own, pictures, features)
                pieces.model.save_pretrained(folder / member.name)
                pieces.processor.save_pretrained(folder / member.name)
                made = {"member": repr(member), "tower": tower, "recipe": repr(recipe)}
                write_json(folder / member.name / MEMBER_FILE, made)


def _untrained(tower: str) -> "Pieces":
    """An untrained organism with the frozen vision tower of the checkpoint ``tower``."""
    from experiments.organisms.architecture import build_llava
    from interp.loading import load

    pieces = build_llava()
    trained = load(tower, dtype="float32", device="cpu").model.model
    try:
        pieces.model.model.vision_tower.load_state_dict(trained.vision_tower.state_dict())
    except (AttributeError, RuntimeError) as error:
        raise UserError(
            f"task.tower={tower}: its vision tower is not of the organism's shape; give an organism's checkpoint"
        ) from error
    return pieces


def measure_traits(vlm: "VLM", run: Run, *, captions: int) -> dict[str, Any]:
    """``vlm`` on ``run``'s cases; rates are fractions of 1, margins in logits.

    ``captions``: share named right. ``auroc`` and ``within``: of the margin over all cases, and within each template
    (the mean over those with both kinds): what a threshold of its own for each could reach. ``between_templates``:
    share of the margins' variance. ``prior``: ``PriorShare`` against the mean of four neutral pictures.
    ``image_effect``: mean size of the margin's change when the verdict may not look at the image, over the margins'
    standard deviation; ``auroc_when_cut``: the AUROC then. ``truth``: held-out AUROC of a linear probe for the truth at
    the verdict, at the best layer. Everything is measured on the scored cases of IconWorld's test split, without
    knowledge of how the organism was made.
    """
    from experiments.evaluation.training import examples
    from interp.hooks.residual import residuals
    from interp.tools.knockout import knockout_effect
    from interp.tools.probes import probe
    from mitigation.prior_correction import prior_margins, prior_share

    samples = [s for s in limited(run.benchmark.load().samples, run.limit) if s.subset != "control"]
    prompts, safe = examples(samples)
    unsafe = ~np.array(safe)
    margins = vlm.batches.scores(prompts).double().numpy()
    priors = vlm.batches.measured(prompts, lambda some: prior_margins(vlm, [prompts[at] for at in some], "neutral"))
    sentences = [sample.tags["template"] for sample in samples]
    cut = knockout_effect(vlm, prompts, [("image", "verdict")]).moved[0].numpy()
    read = residuals(vlm, prompts)
    balance = (sentences, [sample.tags["concept"] for sample in samples])
    found = probe(read.values[0], safe, [sample.cluster for sample in samples], balance=balance, shuffles=1)
    frame = pd.DataFrame({"sentence": sentences, "margin": margins, "unsafe": unsafe})
    by_sentence = [auroc(-one["margin"].to_numpy(), one["unsafe"].to_numpy()) for _, one in frame.groupby("sentence")]
    means = frame.groupby("sentence")["margin"].transform("mean")
    inside = [value for value in by_sentence if value is not None]
    share = prior_share(margins, priors.double().numpy(), [sample.text for sample in samples])
    return plain(
        {
            "captions": perception_accuracy(vlm, "test", per_kind=captions, kinds=("caption",))["caption"]["accuracy"],
            "auroc": auroc(-margins, unsafe),
            "within": float(np.mean(inside)) if inside else None,
            "between_templates": float(means.var(ddof=0) / margins.var()),
            "prior": share._asdict(),
            "image_effect": float(np.abs(cut).mean() / margins.std()),
            "auroc_when_cut": auroc(-(margins + cut), unsafe),
            "truth": None if np.isnan(found.auroc).all() else float(np.nanmax(found.auroc)),
            "n": len(prompts),
        }
    )


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
    mitigations: Mitigations
    tower: str = "organism:llava"
    checkpoints: str | None = None
    captions: int = 200

    def __post_init__(self) -> None:
        """Checks the family.

        Raises:
            UserError: it is empty or has a member twice.
        """
        names = [member.name for member in self.members()]
        if not names or len(set(names)) < len(names):
            raise UserError(
                f"task.biases={self.biases}, task.seeds={self.seeds}: give each at least one value, and once"
            )
        if self.captions < 1:
            raise UserError(f"task.captions={self.captions}: must be at least 1")

    def members(self) -> list[Member]:
        """Kind by kind, from mild to total, seed by seed."""
        return [Member(k, bias, seed) for k, biases in self.biases.items() for bias in biases for seed in self.seeds]

    def __call__(self, run: Run) -> None:
        """Trains, evaluates and measures what is missing, then writes the table."""
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
            rival = self.mitigations.rivals[0] if self.mitigations.rivals else "vcd"
            for line in conclude(store, found, rival=rival):
                console.print(line, highlight=False, soft_wrap=isinstance(line, str))
            store.finish()

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
            "arms": {name: {key: arm[key] for key in KEPT} for name, arm in table["arms"].items()},
            "traits": traits,
        }


def _say_memory(member: str, rows: int) -> None:
    Console().print(f"{member}: out of memory; asking {rows} at once from here on", highlight=False)
