"""The bundled organisms' recipes as ``conf/recipe`` has them, with changes."""

from dataclasses import replace
from functools import cache
from typing import Any

from experiments.studies.organisms.recipe import Recipe
from tests.experiments.compose import run_of

TASKS = {"llava": "train_organism", "smol": "train_smol_organism"}


@cache
def bundled(organism: str) -> Recipe:
    """As the task trains it."""
    recipe: Recipe = run_of(f"task={TASKS[organism]}").task.keywords["recipe"]  # type: ignore[attr-defined]
    return recipe


def changed(organism: str, steps: int | None = None, shares: dict[str, float] | None = None, **fields: Any) -> Recipe:
    """With ``steps`` in every stage, other ``shares`` and other ``fields``."""
    recipe = bundled(organism)
    taken = recipe.steps if steps is None else dict.fromkeys(recipe.steps, steps)
    return replace(recipe, steps=taken, shares=recipe.shares | (shares or {}), **fields)
