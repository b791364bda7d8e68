"""``task=doctor``: what is installed here, what is missing and how to get it, and whether the bundled model runs.

Imports nothing at the top that may be what is missing.
"""

import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import partial
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from experiments.config import Run, written
from interp.checkpoints.config import ORGANISM, ModelConfig
from interp.errors import UserError

DISTRIBUTION = "forestlens"
REAL = "llava_1_5_7b"  # whose hub page is asked for where the run's own model is bundled
REAL_GIB = 14.0  # its weights on disk
FEW_GIB = 1.0  # of disk: less than this is worth a word
KNOWN = {  # a case of IconWorld → the bundled model's margin logit(Yes) − logit(No), on a CPU in float32
    "test-plain-000-slash-unsafe": -2.1402,
    "test-plain-000-slash-safe": -1.5316,
    "test-plain-001-high-unsafe": -2.3906,
    "test-plain-001-high-safe": -2.5737,
}
TOLERANCE = 0.02  # of a margin: other processors round otherwise
OPTIONAL = {  # module → (extra, what it is for)
    "httpx2": ("api", "models behind a server"),
    "bitsandbytes": ("quantised", "weights in 4 bits"),
    "torchvision": ("processors", "pictures of Qwen-VL, InternVL and SmolVLM"),
    "submitit": ("slurm", "sweeps on a cluster"),
    "deepspeed": ("deepspeed", "training over several GPUs"),
}
CUDA_TORCH = "pip install torch --index-url https://download.pytorch.org/whl/cu128"


class State(Enum):
    """How a check ended, as an icon and a word."""

    OK = ("✓ ok", "green")
    NOTE = ("! note", "yellow")
    MISSING = ("✗ missing", "red")


class Finding(NamedTuple):
    """One line of the doctor's: how something stands, and how to get what is missing."""

    state: State
    detail: str


@dataclass(frozen=True)
class Doctor:
    """The task: prints a line a check; takes some ten seconds, most of them for the bundled model."""

    def __call__(self, run: Run) -> None:
        """Checks everything and prints it.

        Raises:
            UserError: something is missing without which nothing runs.
        """
        checks: dict[str, Callable[[], Iterator[Finding]]] = {
            "python": python,
            "packages": packages,
            "transformers": transformers,
            "GPU": gpu,
            "memory": memory,
            "disk": partial(disk, run),
            "hub": partial(hub, run),
            "optional": optional,
            "SmolLM2": language_model,
            "a run": bundled_model,
        }
        console = Console()
        missing, notes = [], 0
        for name, check in checks.items():
            table = Table(box=None, show_header=False, pad_edge=False)
            for width in (12, 9):
                table.add_column(width=width, no_wrap=True)
            table.add_column(overflow="fold")
            try:
                findings = list(check())
            except Exception as error:  # the others go on
                message = " ".join(str(error).split()) or "no message"
                findings = [Finding(State.MISSING, f"could not be checked: {type(error).__name__}: {message}")]
            for finding in findings:
                word, colour = finding.state.value
                table.add_row(name, Text(word, style=colour), Text(finding.detail))
                notes += finding.state is State.NOTE
                missing += [name] if finding.state is State.MISSING else []
            console.print(table)
        if missing:
            counted = f"{len(missing)} thing{'s are' if len(missing) > 1 else ' is'} missing"
            raise UserError(f"{counted} ({', '.join(missing)}); the lines above say how to get what is missing")
        summary = "Everything needed is here" + (
            f", with {notes} note{'s' * (notes > 1)}; nothing bundled needs them." if notes else "."
        )
        console.print(f"{summary} Next: forestlens +exp=vcd_llava", highlight=False)


def python() -> Iterator[Finding]:
    """The interpreter, and where this project was installed from."""
    here = ".".join(map(str, sys.version_info[:3]))
    yield Finding(State.OK, f"{here} in {sys.prefix}; {DISTRIBUTION} {_version(DISTRIBUTION) or '(not installed)'}")


def packages() -> Iterator[Finding]:
    """Whether every package that is needed is here, in a version that was asked for."""
    from packaging.requirements import Requirement

    needed = [Requirement(line) for line in requires(DISTRIBUTION) or ()]
    needed = [
        requirement
        for requirement in needed
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""})
    ]
    wrong = []
    for requirement in needed:
        here = _version(requirement.name)
        if here is None:
            wrong.append(f"'{requirement.name}{requirement.specifier}' (not installed)")
        elif not requirement.specifier.contains(here, prereleases=True):
            wrong.append(f"'{requirement.name}{requirement.specifier}' (here: {here})")
    if wrong:
        yield Finding(State.MISSING, f"pip install {', '.join(wrong)}, or `make install` in the clone")
    else:
        yield Finding(State.OK, f"{len(needed)} of {len(needed)}, in versions that fit")


def transformers() -> Iterator[Finding]:
    """The version of transformers beside the one that the contract tests ran with."""
    here = _version("transformers")
    contract = files("interp").joinpath("contract.json").read_text(encoding="utf-8")
    tested = json.loads(contract)["transformers"]
    if here == tested:
        yield Finding(State.OK, f"{here}, with which every model family was tested")
    else:
        yield Finding(
            State.NOTE,
            f"{here}; the families were tested with {tested}: `make contract` tests them with this one, or "
            f"pip install transformers=={tested}",
        )


def gpu() -> Iterator[Finding]:
    """torch, and what it can compute on."""
    import torch

    detail = f"torch {torch.__version__}"
    if torch.cuda.is_available():
        for number in range(torch.cuda.device_count()):
            free, total = (size / 2**30 for size in torch.cuda.mem_get_info(number))
            name = torch.cuda.get_device_name(number)
            yield Finding(State.OK, f"{name}: {free:.1f} of {total:.1f} GiB free; {detail}")
    elif shutil.which("nvidia-smi") and torch.version.cuda is None:
        yield Finding(State.NOTE, f"there is a driver, but {detail} was built without CUDA: {CUDA_TORCH}")
    elif shutil.which("nvidia-smi"):
        cuda = torch.version.cuda
        yield Finding(State.NOTE, f"{detail} for CUDA {cuda} finds no device: does the driver know CUDA {cuda}?")
    else:
        yield Finding(State.NOTE, f"none; {detail} on the CPU is enough for the bundled model, not for 7B")


def memory() -> Iterator[Finding]:
    """Main memory that is free."""
    import psutil

    here = psutil.virtual_memory()
    yield Finding(State.OK, f"{here.available / 2**30:.1f} of {here.total / 2**30:.1f} GiB free")


def disk(run: Run) -> Iterator[Finding]:
    """Room for runs, and for weights from the hub."""
    from huggingface_hub.constants import HF_HUB_CACHE

    outputs, cache = _existing(Path(run.output_root)), _existing(Path(HF_HUB_CACHE))
    for what, folder, needed, purpose in (
        ("runs", outputs, FEW_GIB, f"output_root={run.output_root}"),
        ("hub's cache", cache, REAL_GIB, f"{HF_HUB_CACHE}; LLaVA-1.5-7B takes {REAL_GIB:.0f} GiB; HF_HOME moves it"),
    ):
        free = shutil.disk_usage(folder).free / 2**30
        yield Finding(State.OK if free > needed else State.NOTE, f"{free:.0f} GiB free for {what} ({purpose})")


def hub(run: Run) -> Iterator[Finding]:
    """Whether the run's model, or LLaVA-1.5-7B in place of a bundled one, can be had. The token is never shown."""
    from huggingface_hub import get_token

    from interp.checkpoints.hub import find

    config = run.model if isinstance(run.model, ModelConfig) and not run.model.path.startswith(ORGANISM) else _real()
    token = "a token is set" if get_token() else "no token is set: gated models need one (`hf auth login` or HF_TOKEN)"
    try:
        source = find(config)
    except UserError as error:
        yield Finding(State.NOTE, str(error))
    else:
        where = (
            "a local folder" if Path(source.path).is_dir() else "in the cache" if source.local_only else "on the hub"
        )
        yield Finding(State.OK, f"{config.path} is {where}")
    yield Finding(State.OK, token)


def optional() -> Iterator[Finding]:
    """What is not here and only some commands need."""
    absent = {extra: purpose for module, (extra, purpose) in OPTIONAL.items() if find_spec(module) is None}
    if not absent:
        yield Finding(State.OK, "all extras are here")
    for extra, purpose in absent.items():
        yield Finding(State.NOTE, f"for {purpose}: pip install -e '.[{extra}]' in the clone")


def language_model() -> Iterator[Finding]:
    """Whether ``model=smol_organism`` was made of its language model."""
    from interp.checkpoints.cache import GET, organism_folder, read_record

    folder = organism_folder()
    record = read_record(folder)
    if record is None:
        yield Finding(State.NOTE, f"for model=smol_organism {GET}: it is not at {folder}")
    elif not record.exact:
        detail = f"{folder} is made of {record.source}, not of what model=smol_organism was trained on"
        yield Finding(State.NOTE, detail)
    else:
        yield Finding(State.OK, f"for model=smol_organism, at {folder}")


def bundled_model() -> Iterator[Finding]:
    """Asks the bundled model four questions, with its attention recorded, and compares its margins with known ones."""
    started = time.perf_counter()
    from experiments.benchmarks.iconworld import IconWorld
    from experiments.benchmarks.images import open_image
    from interp import Prompt, Queries, image_share, load, record_attention

    vlm = load(f"{ORGANISM}llava")
    cases = [case for case in IconWorld().load().samples if case.id in KNOWN]
    prompts = [Prompt(case.prompt, open_image(case.image), key=case.id) for case in cases if case.image]
    with record_attention(vlm, queries=Queries.VERDICT) as record:
        answers = vlm.generate(prompts, max_new_tokens=8)
    share = float(image_share(record.masses)["share"].mean())
    off = max(abs(float(margin) - KNOWN[case.id]) for margin, case in zip(answers.margins, cases, strict=True))
    detail = f"{len(cases)} answers of the bundled model on {vlm.device} in {time.perf_counter() - started:.0f} s"
    if off > TOLERANCE or not 0 < share < 1:
        yield Finding(
            State.MISSING,
            f"{detail}, but its margins are off by {off:.3f} (at most {TOLERANCE} expected): this torch computes "
            "something else here; install the versions of constraints.txt (`make install`)",
        )
    else:
        yield Finding(State.OK, f"{detail}, as they should be (margins within {TOLERANCE}); attention recorded")


def _real() -> ModelConfig:
    node = written("model", REAL)
    return ModelConfig(name=REAL, path=node.path, family=node.family)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    folder = folder.expanduser().absolute()
    return next(place for place in (folder, *folder.parents) if place.exists())
