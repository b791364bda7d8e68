"""What a study says around its answer: what a bundled model is, and how this program was started."""

import shutil
import sys
from pathlib import Path

from experiments.config import Run
from interp.checkpoints.config import ORGANISM, ModelConfig

TOY = (
    "{name} is a toy: a small model trained here to overlook the picture, so that every tool can be tried. Its numbers "
    "say nothing of a real model."
)
SMALL = (
    "{name} is a small model, made here from a pretrained language model so that its failures can be taken apart. Its "
    "numbers say nothing of larger models."
)
THINKING = (
    "{name} is a toy: a small model trained here to overlook the picture, and then to think before it answers. Its "
    "numbers say nothing of a real model."
)
OTHERS = {f"{ORGANISM}smol": SMALL, f"{ORGANISM}thinking": THINKING}


def bundled(run: Run) -> list[str]:
    """A sentence that says so, of the models bundled with this project."""
    if not (isinstance(run.model, ModelConfig) and run.model.path.startswith(ORGANISM)):
        return []
    return [OTHERS.get(run.model.path, TOY).format(name=run.model.name)]


def program() -> str:
    """How this program was started: ``forestlens``, with its folder where that is not on the path."""
    started = Path(sys.argv[0])
    if started.stem != "forestlens":
        return "python -m experiments.run"
    if shutil.which("forestlens"):
        return "forestlens"
    try:
        return str(started.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(started)
