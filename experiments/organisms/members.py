"""The organisms of a family: how each is trained, and what the tools of ``interp`` measure on it.

Members differ in one cause only: how many verdict labels come from the annotator who never looks, and how that
annotator leans. All share the frozen vision tower of one checkpoint, so that none sees better than another. Members of
one seed share the perception stage; then each learns verdicts from its own labels. Importing this loads no torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float
from rich.console import Console

from experiments.config import Run
from experiments.evaluation.perception import perception_accuracy
from experiments.evaluation.study import limited
from experiments.metrics.bootstrap import auroc
from experiments.metrics.findings import plain
from experiments.organisms.recipe import Recipe
from experiments.runs.resumption import write_json
from interp.errors import UserError

if TYPE_CHECKING:
    from experiments.organisms.architecture import Pieces
    from interp.vlm import VLM

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

    A member trained again with the same number of threads is bitwise the same.

    Raises:
        UserError: ``tower`` cannot be loaded or is of another shape.
    """
    missing = [member for member in members if not (folder / member.name / MEMBER_FILE).exists()]
    for seed in sorted({member.seed for member in missing}):
        _train_seed(
            [member for member in missing if member.seed == seed], replace(base, seed=seed), tower, folder, console
        )


def _train_seed(members: Sequence[Member], recipe: Recipe, tower: str, folder: Path, console: Console) -> None:
    from experiments.organisms.stages import draw_pictures, learn_answers, patch_features
    from experiments.organisms.trainer import bars, reproducible

    with reproducible(recipe.seed, recipe.threads):
        pieces = _untrained(tower)
        pictures = draw_pictures(recipe, pieces.processor)
        features = patch_features(pieces.model, pictures)
        with bars(console, f"seed {recipe.seed} ") as report:
            learn_answers("perception", recipe, pieces, pictures, features, report)
        perceiving = {name: value.clone() for name, value in pieces.model.state_dict().items()}
        for member in members:
            pieces.model.load_state_dict(perceiving)
            with bars(console, f"{member.name} ") as report:
                learn_answers("verdict", member.recipe(recipe), pieces, pictures, features, report)
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
    share = prior_share(margins, priors.double().numpy(), [sample.text for sample in samples])
    return plain(
        {
            "captions": perception_accuracy(vlm, "test", per_kind=captions, kinds=("caption",))["caption"]["accuracy"],
            "auroc": auroc(-margins, unsafe),
            "within": _within(margins, unsafe, sentences),
            "between_templates": _between(margins, sentences),
            "prior": share._asdict(),
            "image_effect": float(np.abs(cut).mean() / margins.std()),
            "auroc_when_cut": auroc(-(margins + cut), unsafe),
            "truth": None if np.isnan(found.auroc).all() else float(np.nanmax(found.auroc)),
            "n": len(prompts),
        }
    )


def _within(margins: Float[np.ndarray, " case"], unsafe: np.ndarray, sentences: list[str]) -> float | None:
    names = np.array(sentences)
    found = [auroc(-margins[names == name], unsafe[names == name]) for name in np.unique(names)]
    values = [value for value in found if value is not None]
    return float(np.mean(values)) if values else None


def _between(margins: Float[np.ndarray, " case"], sentences: list[str]) -> float:
    """Share of the margins' variance that lies between templates."""
    _, group = np.unique(sentences, return_inverse=True)
    means = np.bincount(group, weights=margins) / np.bincount(group)
    return float(means[group].var() / margins.var())
