"""What a study says around its answer: what a bundled model is, and what to type next."""

import shlex
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
SMOL = f"{ORGANISM}smol"
ASKED = ("+exp=", "task", "benchmark", "method", "+method@", "~method@", "arms.")  # what is asked, and in which ways
OWN_MODEL = "model.path=FOLDER_OR_HUB_ID"


def is_bundled(run: Run) -> bool:
    """Whether the model is one of those bundled with this project."""
    return isinstance(run.model, ModelConfig) and run.model.path.startswith(ORGANISM)


def bundled(run: Run) -> list[str]:
    """A sentence that says so, of the bundled models."""
    if not is_bundled(run):
        return []
    return [(SMALL if run.weights.path == SMOL else TOY).format(name=run.model.name)]


def next_commands(run: Run, folder: Path) -> dict[str, str]:
    """Command → what it is for, as they are typed here: at most three, of a run in ``folder``."""
    if not isinstance(run.model, ModelConfig):
        return {}
    found = {}
    if run.benchmark.kind == "yes_no" and run.attention_analysis is None:
        found[f"task=attention run={shlex.quote(str(folder))}"] = "where the attention of its failures went"
    if is_bundled(run):
        model = f" model={run.model.name}" if run.model.path == SMOL else ""
        found[f"+exp=heatmap_llava{model}"] = "one case, its answers, and where the model looked"
        kept = [one for one in sys.argv[1:] if one.startswith(ASKED)]
        found[shlex.join([*kept, OWN_MODEL])] = "the same with your own model"
        found["task=preview benchmark=table benchmark.path=cases.csv"] = "your own cases"
    else:
        found[f"+exp=mechanism model.path={shlex.quote(run.model.path)}"] = "why it fails"
    return {f"{program()} {arguments}": said for arguments, said in list(found.items())[:3]}


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
