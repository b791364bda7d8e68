"""The fields of predictions.jsonl and environment.json.

A line of predictions.jsonl is a record: one answer of one arm to one case. environment.json has the run's provenance:
commit, versions, device, command. Neither has environment variables, which may hold keys.
"""

import math
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.runs.launch import Launch
from experiments.runs.store import PREDICTIONS, complete_lines, read_object
from experiments.types import Judgement, Sample, Status
from interp.errors import UserError

if TYPE_CHECKING:
    from interp.vlm import VLM, Generation


RECORD_KEYS = ("case", "arm", "status", "verdict", "response", "margin", "subset", "gold", "text")
WAY_OUT = "repeat the run's command, which finishes what is missing without repeating what is there"
BEGINS = 12  # tokens of an answer in words that its record keeps, for refusal margins
OF_JUDGES = ("verdict", "judge", "explanation", "votes")


def current(lines: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the current records: a later one of a case and arm replaces the earlier one, at its position."""
    return list({(record["case"], record["arm"]): record for record in lines}.values())


def ordered(lines: Iterable[dict[str, Any]], arms: Sequence[str]) -> list[dict[str, Any]]:
    """Return records by arm, in the order of ``arms``, and by case, numbers in an id by their value.

    So the order does not depend on the process that wrote a record. Other arms come last, by their first record.
    """
    lines = list(lines)
    order = {arm: rank for rank, arm in enumerate(dict.fromkeys([*arms, *(record["arm"] for record in lines)]))}
    return sorted(lines, key=lambda record: (order[record["arm"]], _natural(str(record["case"]))))


def _natural(identity: str) -> list[str | int]:
    parts = re.split(r"(\d+)", identity)
    return [int(part) if number % 2 else part for number, part in enumerate(parts)]


def status_of(generation: "Generation", index: int) -> Status:
    """Return the status of one request: the generation's own, or else by its text and whether it ended."""
    if generation.statuses is not None:
        return Status(generation.statuses[index])
    if not generation.texts[index]:
        cut = bool(generation.thoughts and generation.thoughts[index]) and not generation.finished[index]
        return Status.TRUNCATED if cut else Status.EMPTY
    return Status.ANSWERED if generation.finished[index] else Status.TRUNCATED


def answered(
    sample: Sample,
    arm: str,
    generation: "Generation",
    index: int,
    *,
    status: Status,
    response: str,
    judgement: Judgement | None,
    judge: str,
    published_verdict: str | None,
) -> dict[str, Any]:
    """Return the record of answer ``index`` of a generation; a field that says nothing is left out.

    ``judgement`` is None if a refusal judge had nothing to read. ``published_verdict`` is the verdict of the published
    yes/no rule, None for refusal benchmarks. A margin that is not finite becomes null. ``margin_is`` says of a margin
    that replies only bound whether it is ``exact``, a ``bound`` or ``undecided`` (0 lies between the bounds).
    ``verdict_step`` counts the tokens before the token that the margin is read at. Of an answer in words,
    ``answer_tokens`` are the first tokens, and ``answer_prefix`` the tokens of the thought before them.
    ``interp.generation.Generation`` explains the other fields.
    """

    def of_row(name: str, default: Any = None) -> Any:
        rows = getattr(generation, name)
        return default if rows is None else rows[index]

    margin, thought = float(generation.margins[index]), of_row("thoughts", "")
    start = (of_row("verdict_steps") or of_row("thought_tokens", 0)) if thought else 0
    tokens = [int(token) for token in generation.token_ids[index]] if sample.gold in ("comply", "refuse") else []
    begins = tokens[start : start + BEGINS]
    unshifted, bounds = of_row("unshifted"), of_row("bounds")
    fields = {
        "sampled": generation.sampled,
        "branch": generation.branch,
        "branch_margins": {name: _finite(each) for name, each in of_row("branch_margins", {}).items()},
        "steps": {name: writable(text) for name, text in of_row("steps", {}).items()},
        "prompt": writable(of_row("prompts", "")),
        "reason": writable(of_row("reasons", "")),
        "thought": writable(thought),
        "thought_tokens": of_row("thought_tokens", 0) if thought else 0,
        "answer_prefix": tokens[:start] if begins else [],
        "answer_tokens": begins,
        "verdict_step": of_row("verdict_steps", 0),
    }
    return {
        **_common(sample, arm),
        "status": status.value,
        **judge_fields(judgement, judge),
        "published_verdict": published_verdict,
        "response": writable(response),
        "margin": _finite(margin),
        **({} if unshifted is None else {"margin_unshifted": _finite(float(unshifted))}),
        **({} if bounds is None else _bounded(margin, *bounds)),
        **{name: value for name, value in fields.items() if value},
    }


def _bounded(margin: float, low: float, high: float) -> dict[str, Any]:
    if low == high or math.isnan(low):
        return {} if math.isnan(low) else {"margin_is": "exact"}
    kind = "bound" if math.isfinite(margin) else "undecided"
    return {"margin_is": kind, "margin_low": _finite(low), "margin_high": _finite(high)}


def _finite(margin: float) -> float | None:
    return margin if math.isfinite(margin) else None


def judge_fields(judgement: Judgement | None, judge: str) -> dict[str, Any]:
    """Return the fields of a record that rejudging replaces (``OF_JUDGES``)."""
    if judgement is None:
        return {"verdict": None, "judge": judge}
    more = {"explanation": writable(judgement.explanation or ""), "votes": list(judgement.votes or ())}
    return {"verdict": judgement.verdict.value, "judge": judge} | {name: value for name, value in more.items() if value}


def failed(sample: Sample, arm: str, status: Status, reason: str) -> dict[str, Any]:
    """Return the record of a case without an answer, with the reason in words."""
    absent = dict.fromkeys(("verdict", "published_verdict", "response", "margin"))
    return _common(sample, arm) | {"status": status.value, **absent, "reason": writable(reason)}


def _common(sample: Sample, arm: str) -> dict[str, Any]:
    """Return the fields of every record; whoever asked fills in the settings."""
    described = description(sample)
    first = {"case": sample.id, "arm": arm, "settings": "", "subset": described.pop("subset")}
    scenario = {"scenario": described.pop("scenario"), "gold": sample.gold}
    return {**first, **scenario, **described, "text": writable(sample.text)}


def description(sample: Sample) -> dict[str, Any]:
    """Return the fields of a record that say where a case belongs, and do not change its answer."""
    return {
        "subset": sample.subset,
        "scenario": sample.scenario,
        "cluster": sample.cluster,
        "pair": sample.pair,
        "tags": dict(sample.tags),
        **({"alarming": True} if sample.alarming else {}),
        **({"subset_name": writable(sample.subset_name)} if sample.subset_name else {}),
    }


def writable(text: str) -> str:
    """Return the text as valid UTF-8: a lone surrogate, which foreign JSON may contain, becomes "?"."""
    return text.encode("utf-8", errors="replace").decode("utf-8")


def timestamp() -> str:
    """Return the current time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def read_records(run_dir: Path, keys: Sequence[str] = ("case", "arm")) -> list[dict[str, Any]]:
    """Read the records of a run, by arm and case, each with ``keys``; of several with one (case, arm) the last counts.

    The arms are in the order of the run's configuration.

    Raises:
        UserError: there are none, or a line is not a record with ``keys``.
    """
    lines = []
    for path, number, record in complete_lines(run_dir / PREDICTIONS):
        where = f"{path}, line {number}"
        if isinstance(record, ValueError):
            raise UserError(f"{where}: not JSON ({record}); {WAY_OUT}")
        if not isinstance(record, dict) or (absent := [key for key in keys if key not in record]):
            lacks = f"lacks {', '.join(absent)}" if isinstance(record, dict) else "is no JSON object"
            raise UserError(f"{where}: {lacks}; every prediction is a record with these; {WAY_OUT}")
        if record.get("status", Status.ANSWERED) not in list(Status):
            raise UserError(f"{where}: status {record['status']!r} is not one of {', '.join(Status)}; {WAY_OUT}")
        lines.append(record)
    if not lines:
        raise UserError(f"{run_dir / PREDICTIONS} is missing or empty; give the directory of a finished run")
    configured = (read_object(run_dir / "environment.json").get("config") or {}).get("arms") or {}
    return ordered(current(lines), list(configured))


HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")  # owner/name
SHOWN = 8  # characters of a hash, beside the name
PACKAGES = "torch transformers tokenizers accelerate peft trl numpy pillow scipy statsmodels"


def machine(vlm: "VLM | None") -> dict[str, Any]:
    """Return commit, versions, device, threads and processes of this launch; ``vlm`` is None if no model is asked.

    The device is the GPU's name, "remote" for a model behind an API, or "none" without a model. The commit is None
    outside a checkout.
    """
    import torch

    here = getattr(vlm, "device", None)
    device = ("none" if vlm is None else "remote") if here is None else str(here)
    return {
        "commit": _git("rev-parse", "HEAD"),
        "dirty": bool(_git("status", "--porcelain")),
        "versions": {"python": platform.python_version()} | {package: version(package) for package in PACKAGES.split()},
        "device": torch.cuda.get_device_name(here) if device.startswith("cuda") else device,
        "threads": torch.get_num_threads(),
        "processes": Launch.current().size,
    }


def model_title(model: Mapping[str, Any] | None) -> str:
    """Return what a run's model is called: its name and the first eight characters of its weights' hash, if any.

    ``model`` is the entry of environment.json: ``name``, and ``revision``, which is a hub's commit or ``sha256:…``.
    """
    name = str((model or {}).get("name") or "the model")
    return f"{name}{_in_brackets(_short_hash((model or {}).get('revision')))}"


def arm_title(model: Mapping[str, Any] | None, arm: str) -> str:
    """Return what a run's arm is called: its name, with the hash of the adapter that it puts on the weights, if any.

    An arm of responses made elsewhere is followed by what answered, unless that is what the run itself is called after.
    """
    adapter = ((model or {}).get("adapters") or {}).get(arm)
    responses = ((model or {}).get("responses") or {}).get(arm)
    if responses and model_title(responses) != model_title(model):
        return f"{arm} = {model_title(responses)}"
    return f"{arm}{_in_brackets(adapter and f'adapter {_short_hash(adapter)}')}"


def sides_of(model: Mapping[str, Any] | None, arm: str) -> list[str]:
    """Return what answered in an arm of responses made elsewhere, then what it is compared with; else nothing."""
    responses = (model or {}).get("responses") or {}
    if arm not in responses:
        return []
    others = [] if (model or {}).get("made_elsewhere") else [model]
    others = [responses["baseline"]] if "baseline" in responses and arm != "baseline" else others
    return [model_title(responses[arm]), *map(model_title, others)]


def adapters(arms: Mapping[str, Any]) -> dict[str, str]:
    """Return arm → hash of the adapter that its method, or one inside, puts on the weights; other arms are left out."""
    return _declared(arms, "adapter", "revision")


def code(arms: Mapping[str, Any]) -> dict[str, str]:
    """Return arm → digest of the user's Python file that its method, or one inside, is; other arms are left out."""
    return _declared(arms, "path", "digest")


def _declared(arms: Mapping[str, Any], name: str, wanted: str) -> dict[str, str]:
    """Return arm → the attribute ``wanted`` of its method, or of one inside, that has ``name`` and it."""
    declared: dict[str, str] = {}
    for arm, method in arms.items():
        while method is not None and not (getattr(method, name, None) and getattr(method, wanted, None)):
            method = getattr(method, "method", None) or getattr(method, "inner", None)
        if method is not None:
            declared[arm] = str(getattr(method, wanted))
    return declared


def _short_hash(revision: Any) -> str:
    return str(revision or "").rpartition(":")[2][:SHOWN]


def _in_brackets(text: str | None) -> str:
    return f" ({text})" if text else ""


def command() -> str:
    """Return the command line that started this process, for a shell."""
    return shlex.join(["python", "-m", "experiments.run", *sys.argv[1:]])


def without_paths(value: Any) -> Any:
    """Return the value with only the last part of every absolute path, so that it shows no path of this machine."""
    if isinstance(value, Mapping):
        return {key: without_paths(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [without_paths(entry) for entry in value]
    absolute = isinstance(value, str) and (value.startswith("~") or Path(value).is_absolute())
    return Path(value).name if absolute else value


def _git(*arguments: str) -> str | None:
    """Return the output of a git command in this source tree; None outside a checkout or without git."""
    here = Path(__file__).parent
    try:
        answer = subprocess.run(["git", *arguments], cwd=here, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()
