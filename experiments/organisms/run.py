"""``task=train_organism``, ``task=train_smol_organism``: trains an organism, measures it, writes it with its card."""

import json
import shutil
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from experiments.config import Run
from experiments.organisms.architecture import build_llava, build_smol
from experiments.organisms.card import model_card
from experiments.organisms.evaluate import SPLITS, evaluate
from experiments.organisms.recipe import Recipe
from experiments.organisms.stages import train
from experiments.organisms.trainer import bars, reproducible
from experiments.runs.directory import open_run, write_json
from interp.checkpoints.composed import SMOLLM2, fetched
from interp.errors import UserError
from interp.vlm import load


def run(run: Run, *, recipe: Recipe, to: str | None) -> None:
    """Trains, evaluates on development, test and new sentences, and writes checkpoint, card and ``metrics.json``.

    A second launch goes on from the last saved step. The checkpoint goes to ``to``, or to ``checkpoint/`` in the run's
    directory.

    Raises:
        UserError: the second organism's language model has not been fetched, or ``to`` is not empty.
    """
    if to is not None and Path(to).exists() and any(Path(to).iterdir()):
        raise UserError(f"task.to={to}: is not empty; name a new folder, so that no checkpoint is overwritten")
    base = fetched(SMOLLM2, "training starts from it") if recipe.organism == "smol" else None
    console = Console()
    with open_run(run.output_root, run.name, run.config, run.config_hash, fresh=run.fresh) as store:
        folder = Path(to) if to is not None else store.path / "checkpoint"
        kept = store.path / "training"
        kept.mkdir(exist_ok=True)
        started = time.monotonic()
        with reproducible(recipe.seed, recipe.threads), bars(console) as report:
            pieces = build_llava() if base is None else build_smol(base, rank=recipe.rank)
            train(recipe, pieces, kept, report)
            pieces.save(folder)
        minutes = (time.monotonic() - started) / 60
        vlm = load(str(folder), device="cpu", dtype=None if base is None else "bfloat16")
        results: dict[str, Any] = {split: evaluate(vlm, split, recipe.organism, seed=run.seed) for split in SPLITS}
        write_json(store.path / "metrics.json", results)
        (folder / "README.md").write_text(model_card(recipe, results, minutes), encoding="utf-8")
        if to is None:
            shutil.copy(folder / "README.md", store.path / "README.md")
        for split, result in results.items():
            shown = {name: round(arm["auroc"], 3) for name, arm in result["arms"].items()}
            console.print(f"{split}: AUROC {json.dumps(shown)}", highlight=False)
        console.print(f"trained in {minutes:.1f} minutes: {folder}", highlight=False, soft_wrap=True)
