"""``task=publish``: a finished run's arm as a model repository of the Hugging Face hub, with a model card.

``<run>/published/`` (or ``task.to``) holds ``README.md``, the card, ``settings.json``, and the files that make up the
arm: its adapter, what it learned, its own Python file. No case, picture or answer goes in. Nothing is sent unless
``task.push`` says so; without it the files that would be sent are listed.
"""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from experiments.config import Run
from experiments.evaluation import finished_runs
from experiments.evaluation.training import FOLDER as LEARNED
from experiments.report.arm_tables import arms_table, comparisons_table
from experiments.report.sentences.wording import INTERVALS
from experiments.report.table import Table, markdown, markdown_text, say
from experiments.report.words import with_sentences
from experiments.runs.provenance import HUB_ID, model_title, without_paths
from experiments.runs.saved_run import SavedRun, read_run
from interp.checkpoints.config import ORGANISM
from interp.errors import UserError
from interp.training_rows import FILE as ROWS
from mitigation.own_file import file_digest
from mitigation.vrtuning.checkpoint import CONFIG, RECORD, WEIGHTS, adapter_hash

PUBLISHED = "published"
CARD, SETTINGS = "README.md", "settings.json"
LEARNED_FILE = "learned.safetensors"
BASE_KEYS = {CONFIG: "base_model_name_or_path", RECORD: "base_path"}  # where an adapter's files name its model
BASELINE = "baseline"
FOLDERS = re.compile(r"(?<![\w.:/-])~?(?:/[^\s/'\",=\[\]{}]+)+/([^\s/'\",=\[\]{}]+)")  # of absolute paths in a command
TEMPLATE = """---
{{ card_data }}
---

# {{ title }}

{{ use }}

## Results
{% for one in summary %}
{{ one }}
{% endfor %}
{%- for title, table in tables %}
**{{ title }}**

{{ table }}
{% endfor %}
{{ intervals }} What each column is: docs/metrics.md of forestlens.

## Limits
{% for one in limits %}
- {{ one }}
{%- endfor %}

## Settings, and how it was made

```json
{{ settings }}```
"""
PEFT = """Plain PEFT, without forestlens:

```python
from peft import PeftModel
from transformers import AutoModelForImageTextToText, AutoProcessor

processor = AutoProcessor.from_pretrained("{base}", revision={revision!r})
model = AutoModelForImageTextToText.from_pretrained("{base}", revision={revision!r})
model = PeftModel.from_pretrained(model, "<this folder or owner/name>")
```"""
USES = {  # file → what the files are, and how they are used
    WEIGHTS: "A LoRA adapter (peft). `forestlens method=vrtuning method.adapter=<this folder>` answers with it, or in "
    "Python `mitigation.VRTuning(folder)`.",
    LEARNED_FILE: "What the method in the settings learned (safetensors), with its Python file if it is a user's own: "
    'read that before you run it. In Python `method.read(Path("learned.safetensors"))` answers with it.',
}
OWN_FILE = (
    "A method in a Python file: read it before you run it. `forestlens method=file method.path=<the file>` answers "
    "with it."
)
SETTINGS_ALONE = "The settings of a method of forestlens; there are no weights to it."
LIMITS = (
    "The numbers hold for these cases, this model and these settings alone. A method that changes how a model answers "
    "safety questions is no safety guarantee, and may let harmful requests through."
)
BUNDLED = "The model is a small one bundled with forestlens, trained on drawn pictures: evidence about no real model."


@dataclass(frozen=True)
class Publish:
    """The task. ``arm``: whose files (default: the arm under study); ``to``: an absent or empty folder.

    With ``push`` the files are sent to ``repo`` (owner/name), which is made where it is absent, ``private`` unless that
    is false. ``license`` goes into the card. ``base`` is the hub's name of a model that was loaded from a folder.
    """

    run: str | None = None
    arm: str | None = None
    to: str | None = None
    repo: str | None = None
    push: bool = False
    private: bool = True
    license: str | None = None
    base: str | None = None

    def __post_init__(self) -> None:
        for option, given in (("repo", self.repo), ("base", self.base)):
            if given is not None and not HUB_ID.fullmatch(given):
                raise UserError(f"task.{option}={given}: a repository of the hub is owner/name; give both")
        if self.push and self.repo is None:
            raise UserError("task.push=true: where to? Give task.repo=owner/name")

    def __call__(self, run: Run) -> None:
        """Writes the folder, lists its files, and sends them if told to.

        Raises:
            UserError: no finished run, no such arm, files that have changed since, an adapter of a model that is known
                by its folder alone, or the hub refuses.
        """
        saved = read_run(finished_runs.needed(self.run, "publish"))
        arm = self.arm or str(saved.environment.get("arm_under_study"))
        _check(saved, arm)
        target = finished_runs.target(self.to, saved.directory / PUBLISHED)
        if self.base:
            model = {**(saved.environment.get("model") or {}), "path": self.base}
            saved = replace(saved, environment={**saved.environment, "model": model})
        parts = parts_of(saved, arm)
        contents = {CARD: card(saved, arm, parts, self.license), SETTINGS: _as_json(settings(saved, arm, parts))}
        finished_runs.fill(target, {**parts, **contents, **_adapter_about(saved, arm, parts)})
        sent = f"to {self.repo} ({'private' if self.private else 'public'})"
        heading = f"sent {sent}" if self.push else f"would be sent {sent if self.repo else 'to task.repo=owner/name'}"
        say(*(
            f"  {path.name:<28} {path.stat().st_size:>12,} bytes  sha256:{finished_runs.sha256(path)[:12]}"
            for path in sorted(target.iterdir())
        ))  # fmt: skip
        if self.push:
            assert self.repo is not None
            heading = f"{heading}: {push(target, self.repo, private=self.private)}"
        how = "" if self.push else "; nothing was sent (task.push=true sends it)"
        say(f"{target}: {heading}{how}")


def parts_of(saved: SavedRun, arm: str) -> dict[str, Path]:
    """The files that the arm consists of, by the names they get: adapter, what it learned, its own Python file.

    Raises:
        UserError: one of them has changed since the run, is gone, or was learned in folds.
    """
    return {**_adapter(saved, arm), **_learned(saved, arm), **_own_file(saved, arm)}


def _check(saved: SavedRun, arm: str) -> None:
    if not saved.environment.get("finished"):
        raise UserError(f"run={saved.directory} is not finished; type its command again, and publish it then")
    if arm not in saved.metrics["arms"] or arm not in ((saved.environment.get("config") or {}).get("arms") or {}):
        known = ", ".join(name for name in saved.metrics["arms"] if name != BASELINE) or "none"
        raise UserError(
            f"run={saved.directory} has no results of an arm {arm}; it has {known}; name one: task.arm=NAME"
        )
    if arm == BASELINE:
        raise UserError("the baseline is the model as it is, of which there is nothing to publish; give task.arm=NAME")


def _node(saved: SavedRun, arm: str) -> dict[str, Any]:
    return dict(saved.environment["config"]["arms"][arm])


def _adapter(saved: SavedRun, arm: str) -> dict[str, Path]:
    """The files of the arm's adapter: of those that this run trained, or in the folder that the arm names."""
    wanted = ((saved.environment.get("model") or {}).get("adapters") or {}).get(arm)
    if not wanted:
        return {}
    named = Path(str(_node(saved, arm).get("adapter"))).expanduser()
    places = [*saved.directory.glob("adapters/*/adapter"), named, named / "adapter"]
    for folder in places:
        if all((folder / name).is_file() for name in (WEIGHTS, CONFIG)) and adapter_hash(folder) == wanted:
            return {name: folder / name for name in (WEIGHTS, CONFIG, RECORD, ROWS) if (folder / name).is_file()}
    raise UserError(
        f"{arm} answered with the adapter {wanted}, which is neither in run={saved.directory} nor at {named}; bring it "
        "back, or run the study again"
    )


def _adapter_about(saved: SavedRun, arm: str, parts: Mapping[str, Path]) -> dict[str, str]:
    """The JSON files of an adapter, with the base model's name and no path of this machine."""
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
    return str((saved.environment.get("model") or {}).get("path") or "")


def _public(base: str) -> bool:
    """Whether it names a model that others can load: of the hub, or a bundled one."""
    return base.startswith(ORGANISM) or (HUB_ID.fullmatch(base) is not None and not Path(base).exists())


def _learned(saved: SavedRun, arm: str) -> dict[str, Path]:
    path = saved.directory / LEARNED / f"{arm}.safetensors"
    if path.is_file():
        return {LEARNED_FILE: path}
    if list(path.parent.glob(f"{arm}-without-fold-*.safetensors")):
        raise UserError(
            f"{arm} was learned in folds in run={saved.directory}, so there is no single file of it; publish a run "
            "on a benchmark with a development split"
        )
    return {}


def _own_file(saved: SavedRun, arm: str) -> dict[str, Path]:
    """The user's own Python file, as it was when the run asked it."""
    asked = (saved.environment.get("code") or {}).get(arm)
    if not asked:
        return {}
    path = Path(str(_node(saved, arm).get("path"))).expanduser()
    if not path.is_file() or file_digest(path.read_bytes()) != asked:
        raise UserError(
            f"{arm} was answered by {path} with the digest {asked}, and that file has changed or is gone; bring it "
            "back, or run the study again"
        )
    return {path.name: path}


def settings(saved: SavedRun, arm: str, parts: Mapping[str, Path]) -> dict[str, Any]:
    """What decides the arm's answers and how they came about, for people and programs, without a path of this machine.

    ``training`` is an adapter's record (``mitigation.vrtuning.checkpoint``).
    """
    environment, config = saved.environment, saved.environment["config"]
    model, benchmark = environment.get("model") or {}, environment.get("benchmark") or {}
    found = {
        "arm": arm,
        "method": _node(saved, arm),
        "model": {key: model.get(key) for key in ("name", "path", "revision", "dtype")},
        "benchmark": {key: benchmark.get(key) for key in ("name", "manifest", "n")},
        **{key: config[key] for key in ("seed", "protocol", "max_new_tokens", "limit") if key in config},
        **{key: environment.get(key) for key in ("judge", "commit", "dirty", "versions", "device")},
    }
    if RECORD in parts:
        found["training"] = json.loads(parts[RECORD].read_text(encoding="utf-8"))
    return dict(without_paths(found)) | {"command": FOLDERS.sub(r"\1", str(environment.get("command")))}


def card(saved: SavedRun, arm: str, parts: Mapping[str, Path], license: str | None = None) -> str:
    """The model card: what it is, results with intervals and statements, limits, settings; Markdown."""
    from huggingface_hub import ModelCard, ModelCardData

    model, base = saved.environment.get("model") or {}, _base(saved)
    bundled = base.startswith(ORGANISM)
    words = with_sentences({**saved.metrics, "study": arm}, {**saved.environment, "arm_under_study": arm})
    metrics = _about(saved.metrics, arm)
    tables: list[Table] = [arms_table(metrics)]
    tables += [comparisons_table(metrics)] if metrics["comparisons"] else []
    data = ModelCardData(
        base_model=base if _public(base) and not bundled else None,
        library_name="peft" if WEIGHTS in parts else None,
        license=license,
        tags=["forestlens", "safety", "vision-language", *(["lora"] if WEIGHTS in parts else [])],
    )
    made = ModelCard.from_template(
        data,
        template_str=TEMPLATE,
        title=markdown_text(f"{arm} for {model_title(model)}"),
        use="\n\n".join(_uses(parts, base, model.get("revision"))),
        summary=[markdown_text(one) for one in words["summary"]],
        intervals=markdown_text(INTERVALS.format(study=saved.metrics.get("study"))),
        tables=[(table.title, markdown(table)) for table in tables],
        limits=[markdown_text(one) for one in [*(words.get("caveats") or ()), *([BUNDLED] if bundled else []), LIMITS]],
        settings=_as_json(settings(saved, arm, parts)),
    )
    return str(made.content)


def _uses(parts: Mapping[str, Path], base: str, revision: str | None) -> list[str]:
    """What the files are and how they are used; of an adapter of a model on the hub, in plain PEFT too."""
    use = next((use for name, use in USES.items() if name in parts), OWN_FILE if parts else SETTINGS_ALONE)
    plain = WEIGHTS in parts and _public(base) and not base.startswith(ORGANISM)
    return [use, *([PEFT.format(base=base, revision=revision)] if plain else [])]


def _about(metrics: Mapping[str, Any], arm: str) -> dict[str, Any]:
    """The metrics of ``arm`` and of what it is compared with; no other arm enters its card."""
    compared = {name: one for name, one in (metrics.get("comparisons") or {}).items() if name == arm}
    kept = {arm, *(str(one["against"]) for one in compared.values())}
    arms = {name: block for name, block in metrics["arms"].items() if name in kept}
    return {**metrics, "study": arm, "arms": arms, "comparisons": compared, "not_applicable": {}}


def _as_json(value: Any) -> str:
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False, default=str) + "\n"


def push(folder: Path, repo: str, *, private: bool) -> str:
    """Sends the files of ``folder`` to the hub's repository ``repo`` in one commit; the repository's address.

    The token is huggingface_hub's own (HF_TOKEN, or that of ``hf auth login``), the hub HF_ENDPOINT's.

    Raises:
        UserError: no token, or the hub refuses or cannot be reached.
    """
    from huggingface_hub import HfApi, get_token

    if get_token() is None:
        raise UserError("no token for the hub; set HF_TOKEN, or type hf auth login, and run the same command again")
    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT"))
    try:
        url = api.create_repo(repo, private=private, exist_ok=True)
        message = f"Published from a run of forestlens: {folder.parent.name}"
        api.upload_folder(repo_id=repo, folder_path=folder, commit_message=message)
    except Exception as error:  # whatever its client of HTTP raises
        said = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"task.repo={repo}: the hub refused or was not reached ({said}); check name and token"
        ) from error
    return str(url)
