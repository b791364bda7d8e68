"""``task=publish``: a finished run's arm as a model repository of the Hugging Face hub, with a model card.

``<run>/published/`` holds ``README.md`` (the card), ``settings.json`` and the files of the arm. These
are its adapter, what it learned, and its Python file. No case, picture or answer goes in, and nothing is sent.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from experiments.config import Run
from experiments.evaluation import finished_runs
from experiments.evaluation.fitting import FOLDER as LEARNED
from experiments.report.arms import arms_of, differences, levels
from experiments.report.saved_run import SavedRun, read_run
from experiments.report.tables import markdown, page, say, summary
from experiments.runs.record_fields import HUB_ID, model_title, without_paths
from experiments.runs.results_table import Results
from interp.checkpoints.config import ORGANISM
from interp.errors import UserError
from interp.tensor_file import FILE as ROWS
from mitigation.own_file import file_digest
from mitigation.vrtuning.checkpoint import CONFIG, RECORD, WEIGHTS, adapter_hash

PUBLISHED = "published"
CARD, SETTINGS = "README.md", "settings.json"
LEARNED_FILE = "learned.safetensors"
BASE_KEYS = {CONFIG: "base_model_name_or_path", RECORD: "base_path"}  # where an adapter's files name its model
BASELINE = "baseline"
FOLDERS = re.compile(r"(?<![\w.:/-])~?(?:/[^\s/'\",=\[\]{}]+)+/([^\s/'\",=\[\]{}]+)")  # of absolute paths in a command


@dataclass(frozen=True)
class Publish:
    """The task. ``arm``: whose files (default: the arm under study).

    ``license`` goes into the card. ``base`` is the hub's name of a model that was loaded from a folder.
    """

    run: str | None = None
    arm: str | None = None
    license: str | None = None
    base: str | None = None

    def __post_init__(self) -> None:
        if self.base is not None and not HUB_ID.fullmatch(self.base):
            raise UserError(f"task.base={self.base}: a model of the hub is owner/name; give both")

    def __call__(self, run: Run) -> None:
        """Write the folder, and list its files.

        Raises:
            UserError: no finished run, no such arm, files that have changed since, an adapter of a model without a
                public name.
        """
        saved = read_run(finished_runs.needed(self.run, "publish"))
        arm = self.arm or str(saved.environment.get("arm_under_study"))
        _check(saved, arm)
        target = saved.directory / PUBLISHED
        if self.base:
            saved = replace(saved, environment={**saved.environment, "model": {**_model(saved), "path": self.base}})
        parts = parts_of(saved, arm)
        contents = {CARD: card(saved, arm, parts, self.license), SETTINGS: _as_json(settings(saved, arm, parts))}
        finished_runs.fill(target, {**parts, **contents, **_adapter_about(saved, arm, parts)})
        say(*(
            f"  {path.name:<28} {path.stat().st_size:>12,} bytes  sha256:{finished_runs.sha256(path)[:12]}"
            for path in sorted(target.iterdir())
        ))  # fmt: skip
        say(f"{target}: nothing was sent; send it by: hf upload owner/name {target}")


def parts_of(saved: SavedRun, arm: str) -> dict[str, Path]:
    """Return the files that the arm consists of, by their published names.

    These are its adapter, what it learned, and its own Python file.

    Raises:
        UserError: a file has changed since the run or is gone, or the arm learned in folds.
    """
    return {**_adapter(saved, arm), **_learned(saved, arm), **_own_file(saved, arm)}


def _check(saved: SavedRun, arm: str) -> None:
    if not saved.environment.get("finished"):
        raise UserError(f"run={saved.directory} is not finished; run its command again, and task=publish after it")
    names = arms_of(saved.results, saved.metrics)
    if arm not in names or arm not in ((saved.environment.get("config") or {}).get("arms") or {}):
        others = ", ".join(name for name in names if name != BASELINE) or "none"
        raise UserError(
            f"run={saved.directory} has no results of an arm {arm}; it has {others}; name one: task.arm=NAME"
        )
    if arm == BASELINE:
        raise UserError("the baseline is the unchanged model, so nothing can be published; give task.arm=NAME")


def _node(saved: SavedRun, arm: str) -> dict[str, Any]:
    return dict(saved.environment["config"]["arms"][arm])


def _model(saved: SavedRun) -> dict[str, Any]:
    return saved.environment.get("model") or {}


def _adapter(saved: SavedRun, arm: str) -> dict[str, Path]:
    """Return the files of the arm's adapter, from the run or from the folder that the arm names."""
    wanted = (_model(saved).get("adapters") or {}).get(arm)
    if not wanted:
        return {}
    named = Path(str(_node(saved, arm).get("adapter"))).expanduser()
    for folder in [*saved.directory.glob("adapters/*/adapter"), named, named / "adapter"]:
        if all((folder / name).is_file() for name in (WEIGHTS, CONFIG)) and adapter_hash(folder) == wanted:
            return {name: folder / name for name in (WEIGHTS, CONFIG, RECORD, ROWS) if (folder / name).is_file()}
    raise UserError(
        f"{arm} answered with the adapter {wanted}, which is neither in run={saved.directory} nor at {named}; bring it "
        "back, or run the study again"
    )


def _adapter_about(saved: SavedRun, arm: str, parts: Mapping[str, Path]) -> dict[str, str]:
    """Return an adapter's JSON files with the base model's public name and no path of this machine."""
    base = _base(saved)
    about = {name: key for name, key in BASE_KEYS.items() if name in parts}
    if about and not _public(base):
        raise UserError(
            f"the adapter of {arm} was trained on the model in the folder {base}, which nobody else has; give its name "
            "on the hub: task.base=owner/name"
        )
    written = {name: json.loads(parts[name].read_text(encoding="utf-8")) for name in about}
    return {name: _as_json(without_paths(written[name]) | {key: base}) for name, key in about.items()}


def _base(saved: SavedRun) -> str:
    return str(_model(saved).get("path") or "")


def _public(base: str) -> bool:
    """Return whether others can load the model: from the hub, or because it is bundled."""
    return base.startswith(ORGANISM) or (HUB_ID.fullmatch(base) is not None and not Path(base).exists())


def _learned(saved: SavedRun, arm: str) -> dict[str, Path]:
    path = saved.directory / LEARNED / f"{arm}.safetensors"
    if not path.is_file() and list(path.parent.glob(f"{arm}-without-fold-*.safetensors")):
        raise UserError(
            f"{arm} was learned in folds in run={saved.directory}, so there is no single file of it; publish a run "
            "on a benchmark with a development split"
        )
    return {LEARNED_FILE: path} if path.is_file() else {}


def _own_file(saved: SavedRun, arm: str) -> dict[str, Path]:
    """Return the user's own Python file if it is the one that the run used."""
    wanted = (saved.environment.get("code") or {}).get(arm)
    if not wanted:
        return {}
    path = Path(str(_node(saved, arm).get("path"))).expanduser()
    if not path.is_file() or file_digest(path.read_bytes()) != wanted:
        raise UserError(
            f"{arm} was answered by {path} with the digest {wanted}, and that file has changed or is gone; bring it "
            "back, or run the study again"
        )
    return {path.name: path}


def settings(saved: SavedRun, arm: str, parts: Mapping[str, Path]) -> dict[str, Any]:
    """Return what decides the arm's answers and how they were made, without a path of this machine.

    ``training`` is an adapter's record (``mitigation.vrtuning.checkpoint``).
    """
    environment, config = saved.environment, saved.environment["config"]
    benchmark = environment.get("benchmark") or {}
    contents = {
        "arm": arm,
        "method": _node(saved, arm),
        "model": {key: _model(saved).get(key) for key in ("name", "path", "revision", "dtype")},
        "benchmark": {key: benchmark.get(key) for key in ("name", "manifest", "n")},
        **{key: config[key] for key in ("seed", "protocol", "max_new_tokens", "limit") if key in config},
        **{key: environment.get(key) for key in ("judge", "commit", "dirty", "versions", "device")},
    }
    if RECORD in parts:
        contents["training"] = json.loads(parts[RECORD].read_text(encoding="utf-8"))
    return dict(without_paths(contents)) | {"command": FOLDERS.sub(r"\1", str(environment.get("command")))}


def card(saved: SavedRun, arm: str, parts: Mapping[str, Path], license: str | None = None) -> str:
    """Return the model card in Markdown: what it is, results with intervals and claims, limits, settings.

    It has the arm and the baseline, and no other arm.
    """
    from huggingface_hub import ModelCardData

    base = _base(saved)
    bundled, public = base.startswith(ORGANISM), _public(base)
    design = {**saved.metrics, "study": arm, "contrasts": [], "not_applicable": {}}
    sides = (arm, design["baseline"])
    results = Results(row for row in saved.results if row.arm in sides and row.against in ("", design["baseline"]))
    words = summary(results, design, {**saved.environment, "arm_under_study": arm})
    tables = [levels(results, design), differences(results, design)]
    data = ModelCardData(
        base_model=base if public and not bundled else None,
        library_name="peft" if WEIGHTS in parts else None,
        license=license,
        tags=["forestlens", "safety", "vision-language", *(["lora"] if WEIGHTS in parts else [])],
    )
    return page(
        "card.md.j2",
        card_data=data.to_yaml(),
        title=f"{arm} for {model_title(_model(saved))}",
        adapter=WEIGHTS in parts,
        learned=LEARNED_FILE in parts,
        file=bool(parts),
        base=base,
        revision=_model(saved).get("revision"),
        public=public,
        bundled=bundled,
        headline=words.headline,
        notes=words.notes,
        tables=[frame for frame in tables if frame is not None],
        table=markdown,
        settings=_as_json(settings(saved, arm, parts)),
    )


def _as_json(value: Any) -> str:
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False, default=str) + "\n"
