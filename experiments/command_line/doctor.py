"""``task=doctor``: say what is missing on this machine, and how to get it.

Imports nothing at the top that may be missing.
"""

import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path

from experiments.config import Run
from interp.errors import UserError

OK, NOTE, MISSING = "✓ ok", "! note", "✗ missing"
Finding = tuple[str, str]  # state, detail
EXTRAS = {  # module → (extra, what it is for)
    "httpx2": ("api", "models behind a server"),
    "starlette": ("explore", "forestlens explore and task=serve"),
    "gguf": ("smol", "model=smol_organism"),
    "torchvision": ("processors", "pictures of Qwen-VL, InternVL and SmolVLM"),
    "bitsandbytes": ("quantised", "weights in 4 bits"),
    "submitit": ("slurm", "sweeps on a cluster"),
}
CUDA_TORCH = "pip install torch --index-url https://download.pytorch.org/whl/cu128"


@dataclass(frozen=True)
class Doctor:
    """The task: print a line for each check."""

    def __call__(self, run: Run) -> None:
        """Check everything and print it.

        Raises:
            UserError: a package or the model is missing.
        """
        states = []
        for check in (packages, gpu, disk, model, extras):
            try:
                findings = list(check(run))
            except Exception as error:  # the others go on
                findings = [(MISSING, f"could not be checked: {type(error).__name__}: {error}")]
            for state, detail in findings:
                print(f"{check.__name__:<9} {state:<10} {detail}")
                states.append(state)
        if missing := states.count(MISSING):
            raise UserError(f"missing: {missing}; the lines marked ✗ say how to get what is missing")
        print(f"Everything needed is here ({states.count(NOTE)} notes). Next: forestlens +exp=vcd_llava")


def packages(_: Run) -> Iterator[Finding]:
    """Compare every package that is needed with the versions that this project asks for."""
    from packaging.requirements import Requirement

    listed = [Requirement(line) for line in requires("forestlens") or ()]
    needed = [package for package in listed if not package.marker or package.marker.evaluate({"extra": ""})]
    wrong = []
    for package in needed:
        try:
            here = f"here: {version(package.name)}"
        except PackageNotFoundError:
            here = "not installed"
        if not package.specifier.contains(here.removeprefix("here: "), prereleases=True):
            wrong.append(f"'{package.name}{package.specifier}' ({here})")
    if wrong:
        yield MISSING, f"pip install {', '.join(wrong)}, or `make install` in the clone"
    else:
        yield OK, f"{len(needed)} of {len(needed)}, in {sys.prefix} (Python {sys.version.split()[0]})"


def gpu(_: Run) -> Iterator[Finding]:
    """Look for what torch can compute on."""
    import torch

    detail = f"torch {torch.__version__}"
    for number in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        free, total = (size / 2**30 for size in torch.cuda.mem_get_info(number))
        yield OK, f"{torch.cuda.get_device_name(number)}: {free:.1f} of {total:.1f} GiB free; {detail}"
    if not torch.cuda.is_available():
        driver = f"there is a driver, but {detail} cannot use it: {CUDA_TORCH}"
        yield NOTE, driver if shutil.which("nvidia-smi") else f"none; {detail} on the CPU is too slow for 7B"


def disk(run: Run) -> Iterator[Finding]:
    """Measure the room for runs, and for weights from the hub."""
    from huggingface_hub.constants import HF_HUB_CACHE

    for purpose, folder, needed in (("runs", run.output_root, 1), ("weights; 7B need 14", HF_HUB_CACHE, 14)):
        path = Path(folder).expanduser().absolute()
        free = shutil.disk_usage(next(part for part in (path, *path.parents) if part.exists())).free / 2**30
        yield (OK if free > needed else NOTE), f"{free:.0f} GiB free for {purpose} ({folder})"


def model(run: Run) -> Iterator[Finding]:
    """Look for the run's model in its folder, in the cache or on the hub. The token is never shown."""
    from huggingface_hub import get_token

    from interp.checkpoints.config import find

    try:
        source = find(run.weights)
    except UserError as error:
        yield MISSING, str(error)
    else:
        yield OK, f"{run.weights.path}: {source.path} is " + ("here" if source.local_only else "on the hub")
    yield OK, "a token is set" if get_token() else "no token: gated models need one (`hf auth login` or HF_TOKEN)"


def extras(_: Run) -> Iterator[Finding]:
    """Name the extras that are not installed and that only some commands need."""
    for module, (extra, purpose) in EXTRAS.items():
        if find_spec(module) is None:
            yield NOTE, f"for {purpose}: pip install -e '.[{extra}]' in the clone"
