"""Organisms that differ in one cause only: how many verdict labels come from the annotator who never looks, and how.

All share the frozen vision tower of one checkpoint, so that none sees better than another. Members with the same seed
share the perception stage; from there each is taught verdicts with its own labels.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from rich.console import Console

from experiments.model_organism.recipe import Recipe
from experiments.runs.directory import write_json
from interp.errors import UserError

Kind = Literal["template", "uniform"]
KINDS: tuple[str, ...] = get_args(Kind)
MADE = "member.json"  # the last file of a checkpoint: what is without it is made again


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
        if self.kind not in KINDS:
            raise UserError(f"kind={self.kind!r}: must be one of {', '.join(KINDS)}")
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
        return replace(base, seed=self.seed, truth_share=truth, context_truth_share=truth, leanings=leanings)


def train_members(members: Sequence[Member], base: Recipe, tower: str, folder: Path, console: Console) -> None:
    """A checkpoint in ``folder/<name>`` for every member that has none, with the vision tower of ``tower``.

    A member trained again with the same number of threads is bitwise the same.

    Raises:
        UserError: ``tower`` cannot be loaded or is of another shape.
    """
    missing = [member for member in members if not (folder / member.name / MADE).exists()]
    for seed in sorted({member.seed for member in missing}):
        _train_seed(
            [member for member in missing if member.seed == seed], replace(base, seed=seed), tower, folder, console
        )


def _train_seed(members: Sequence[Member], recipe: Recipe, tower: str, folder: Path, console: Console) -> None:
    from experiments.model_organism.train import Encoder, bars, draw_pool, patch_features, reproducible, train_language

    with reproducible(recipe):
        processor, model = _untrained(tower)
        pool = draw_pool(recipe, processor)
        features, encoder = patch_features(model, pool), Encoder(processor)
        with bars(console, f"seed {recipe.seed} ") as report:
            train_language("perception", recipe, model, encoder, pool, features, report)
        perceiving = {name: value.clone() for name, value in model.state_dict().items()}
        for member in members:
            model.load_state_dict(perceiving)
            with bars(console, f"{member.name} ") as report:
                train_language("verdict", member.recipe(recipe), model, encoder, pool, features, report)
            model.save_pretrained(folder / member.name)
            processor.save_pretrained(folder / member.name)
            write_json(folder / member.name / MADE, {"member": repr(member), "tower": tower, "recipe": repr(recipe)})


def _untrained(tower: str):  # type: ignore[no-untyped-def]  # transformers' processor and model
    """An untrained organism with the frozen vision tower of the checkpoint ``tower``."""
    from experiments.model_organism.architecture import build_model, build_processor, build_tokenizer
    from experiments.model_organism.data import vocabulary_texts
    from interp.vlm import load

    processor = build_processor(build_tokenizer(vocabulary_texts()))
    model = build_model(processor.tokenizer)
    trained = load(tower, dtype="float32", device="cpu").model.model
    try:
        model.model.vision_tower.load_state_dict(trained.vision_tower.state_dict())
    except (AttributeError, RuntimeError) as error:
        raise UserError(
            f"task.tower={tower}: its vision tower is not of the organism's shape; give an organism's checkpoint"
        ) from error
    model.model.vision_tower.requires_grad_(False)
    return processor, model
