"""``+exp=train_organism``: the recipe in, a checkpoint with its model card out."""

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from experiments.organism.architecture import build_model, build_processor, build_tokenizer
from experiments.organism.card import model_card
from experiments.organism.evaluate import evaluate
from experiments.organism.lessons import vocabulary_texts
from experiments.organism.recipe import Recipe
from experiments.organism.stages import Encoder, Report, draw_pool, patch_features, train_language, train_vision
from experiments.schema import Run
from experiments.store import open_run, write_json
from interp.errors import UserError
from interp.vlm import load


def run(run: Run, *, recipe: Recipe, to: str | None) -> None:
    """Trains, evaluates on development and test, and writes checkpoint, card and ``metrics.json``.

    The checkpoint goes to ``to``, or to ``checkpoint/`` in the run's directory. A non-empty ``to`` is refused.
    """
    if to is not None and Path(to).exists() and any(Path(to).iterdir()):
        raise UserError(f"task.to={to}: is not empty; name a new folder, so that no checkpoint is overwritten")
    console = Console()
    with open_run(run.output_root, run.name, run.config, run.config_hash, fresh=True) as store:
        folder = Path(to) if to is not None else store.path / "checkpoint"
        started = time.monotonic()
        train(recipe, folder, console)
        minutes = (time.monotonic() - started) / 60
        vlm = load(str(folder))
        results = {split: evaluate(vlm, split) for split in ("development", "test")}  # type: ignore[arg-type]
        write_json(store.path / "metrics.json", results)
        (folder / "README.md").write_text(model_card(recipe, results, minutes), encoding="utf-8")
        if to is None:
            shutil.copy(folder / "README.md", store.path / "README.md")
        for split, result in results.items():
            baseline = result["arms"]["baseline"]
            shown = {key: round(value, 3) for key, value in baseline["accuracy"].items() if value is not None}
            console.print(f"{split}: {json.dumps(shown)} AUROC {baseline['auroc']:.3f}", highlight=False)
        console.print(f"trained in {minutes:.1f} minutes: {folder}", highlight=False, soft_wrap=True)


def train(recipe: Recipe, folder: Path, console: Console) -> None:
    """All three stages, and the checkpoint in bfloat16 safetensors with its processor in ``folder``.

    Bitwise the same on one machine with the same number of threads.
    """
    with reproducible(recipe), bars(console) as report:
        tokenizer = build_tokenizer(vocabulary_texts())
        processor, model = build_processor(tokenizer), build_model(tokenizer)
        pool = draw_pool(recipe, processor)
        train_vision(recipe, model, pool, report)
        features = patch_features(model, pool)
        encoder = Encoder(processor)
        for stage in ("perception", "verdict"):
            train_language(stage, recipe, model, encoder, pool, features, report)
    model.bfloat16().save_pretrained(folder)
    processor.save_pretrained(folder)


@contextmanager
def reproducible(recipe: Recipe) -> Iterator[None]:
    """The recipe's seed and threads, and deterministic algorithms, for as long as it is open."""
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(recipe.threads)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(recipe.seed)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(deterministic)


@contextmanager
def bars(console: Console, prefix: str = "") -> Iterator[Report]:
    """What the stages report to: a bar for each, with its loss."""
    columns = (TextColumn("{task.description:<24}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        known: dict[str, TaskID] = {}

        def report(stage: str, step: int, steps: int, loss: float) -> None:
            if stage not in known:
                known[stage] = progress.add_task(stage, total=steps)
            progress.update(known[stage], completed=step + 1, description=f"{prefix}{stage} (loss {loss:.3f})")

        yield report
