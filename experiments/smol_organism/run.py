"""``task=train_smol_organism``: trains the second organism, measures it, and writes its parts with a model card."""

import json
import shutil
import time
from pathlib import Path

from rich.console import Console

from experiments.config import Run
from experiments.model_organism.train import bars, reproducible
from experiments.runs.directory import open_run, write_json
from experiments.smol_organism.architecture import build, save
from experiments.smol_organism.card import model_card
from experiments.smol_organism.evaluate import evaluate
from experiments.smol_organism.recipe import Recipe
from experiments.smol_organism.train import train
from interp.checkpoints.composed import SMOLLM2, fetched
from interp.errors import UserError
from interp.vlm import load

SPLITS = ("development", "test", "new_sentences")


def run(run: Run, *, recipe: Recipe, to: str | None) -> None:
    """Trains and measures, and writes the parts, the card and ``metrics.json``; a second launch goes on from the last
    saved step.

    The parts go to ``to``, or to ``checkpoint/`` in the run's directory. A non-empty ``to`` is refused.

    Raises:
        UserError: the language model has not been fetched, or ``to`` is not empty.
    """
    if to is not None and Path(to).exists() and any(Path(to).iterdir()):
        raise UserError(f"task.to={to}: is not empty; name a new folder, so that no checkpoint is overwritten")
    base = fetched(SMOLLM2, "training starts from it")
    console = Console()
    with open_run(run.output_root, run.name, run.config, run.config_hash, fresh=run.fresh) as store:
        folder = Path(to) if to is not None else store.path / "checkpoint"
        kept = store.path / "training"
        kept.mkdir(exist_ok=True)
        started = time.monotonic()
        with reproducible(recipe.seed, recipe.threads), bars(console) as report:
            pieces = build(base, rank=recipe.rank, alpha=2.0 * recipe.rank)
            train(recipe, pieces, kept, report)
            save(pieces, folder)
        minutes = (time.monotonic() - started) / 60
        vlm = load(str(folder), device="cpu", dtype="bfloat16")
        results = {split: evaluate(vlm, split, seed=run.seed) for split in SPLITS}  # type: ignore[arg-type]
        write_json(store.path / "metrics.json", results)
        (folder / "README.md").write_text(model_card(recipe, results), encoding="utf-8")
        if to is None:
            shutil.copy(folder / "README.md", store.path / "README.md")
        for split, result in results.items():
            shown = {name: round(arm["auroc"], 3) for name, arm in result["arms"].items()}
            console.print(f"{split}: AUROC {json.dumps(shown)}", highlight=False)
        console.print(f"trained in {minutes:.0f} minutes: {folder}", highlight=False, soft_wrap=True)
