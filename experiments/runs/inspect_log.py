"""A finished run as logs of Inspect (inspect_ai), one an arm; and the answers in such a log, read.

Written and read by inspect_ai's own API alone. Imports neither it nor torch before a function is called.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.benchmarks.images import BadImage, data_url, open_image
from experiments.runs.saved_run import SavedRun
from experiments.types import Sample, Status, Verdict
from interp.errors import UserError

if TYPE_CHECKING:
    from inspect_ai.log import EvalLog, EvalSample

FOLDER = "inspect"
SCORER = "correct"
SUFFIX = ".eval"
RIGHT = {"yes": ("yes",), "no": ("no",), "comply": ("complied", "rebutted"), "refuse": ("refused", "partial")}
DESCRIBED = ("arm", "subset", "scenario", "gold", "cluster", "pair", "tags", "text", "margin", "verdict", "status")
STOPPED = {Status.TRUNCATED: "max_tokens", Status.PROVIDER_BLOCKED: "content_filter"}
Record = Mapping[str, Any]


def needed() -> None:
    """Checks that inspect_ai is installed.

    Raises:
        UserError: it is not.
    """
    try:
        import inspect_ai  # noqa: F401
    except ImportError:
        raise UserError(
            "logs of Inspect need inspect_ai, which is not installed; in the clone, type pip install '.[inspect]' in "
            "an environment of its own, without constraints.txt"
        ) from None


def write_logs(run: SavedRun, samples: Sequence[Sample]) -> list[Path]:
    """Write a log for each arm into the run's folder ``inspect``, and return their paths. Existing logs are replaced.

    ``samples`` are the run's cases, for words and pictures as they were asked; a case that is not among them has its
    bare sentence and its thumbnail.

    Raises:
        UserError: inspect_ai is not installed, or the folder cannot be written.
    """
    needed()
    from inspect_ai.log import write_eval_log

    known, folder = {sample.id: sample for sample in samples}, run.directory / FOLDER
    inputs = {record["case"]: _input(run, record, known.get(record["case"])) for record in run.predictions}
    written = []
    try:
        folder.mkdir(exist_ok=True)
        for arm in dict.fromkeys(record["arm"] for record in run.predictions):
            path = folder / f"{arm}{SUFFIX}"
            write_eval_log(_log(run, arm, inputs), str(path))
            written.append(path)
    except OSError as error:
        raise UserError(
            f"cannot write to {folder} ({error.strerror or error}); make room, or check permissions"
        ) from error
    return written


def read_answers(path: Path) -> list[dict[str, Any]]:
    """Id and response of every sample of a log; the response is None where the sample ended in an error.

    Raises:
        UserError: inspect_ai is not installed, the file is no log, or a sample was asked several times.
    """
    needed()
    from inspect_ai.log import read_eval_log

    try:
        log = read_eval_log(str(path))
    except Exception as error:  # whatever a file that is no log provokes
        reason = (str(error).splitlines() or [""])[0][:120]
        raise UserError(
            f"{path}: is no log of Inspect ({type(error).__name__}: {reason}); give its .eval file"
        ) from None
    if any(sample.epoch != 1 for sample in log.samples or ()):
        raise UserError(f"{path}: has several epochs; an arm has one answer a case; run the evaluation with one epoch")
    return [
        {"id": str(sample.id), "response": None if sample.error is not None else sample.output.completion}
        for sample in log.samples or ()
    ]


def _log(run: SavedRun, arm: str, inputs: Mapping[str, Any]) -> "EvalLog":
    from inspect_ai.log import (
        EvalConfig,
        EvalDataset,
        EvalLog,
        EvalMetric,
        EvalResults,
        EvalScore,
        EvalSpec,
        EvalStats,
    )

    environment = run.environment
    model = environment.get("model") or {}
    benchmark = environment.get("benchmark") or {}
    samples = [_sample(record, inputs[record["case"]], model) for record in run.predictions if record["arm"] == arm]
    scored = sum(sample.scores is not None for sample in samples)
    levels = run.results.select(arm=arm, against="", group="", rule="")
    named = {f"{row.quantity} {row.subset}".rstrip(): row.value for row in levels if row.value is not None}
    metrics = {name: EvalMetric(name=name, value=value) for name, value in named.items()}
    started, finished = str(environment.get("started") or ""), str(environment.get("finished") or "")
    return EvalLog(
        status="success",
        eval=EvalSpec(
            created=started or "1970-01-01T00:00:00+00:00",
            task=str(benchmark.get("name") or "benchmark"),
            task_args={"arm": arm},
            model=f"forestlens/{model.get('name')}{'' if arm == 'baseline' else f'+{arm}'}",
            dataset=EvalDataset(
                name=str(benchmark.get("name")), samples=len(samples), sample_ids=[sample.id for sample in samples]
            ),
            config=EvalConfig(epochs=1),
            metadata={
                "arm": arm,
                "method": ((environment.get("config") or {}).get("arms") or {}).get(arm),
                "model": model,
                "command": environment.get("command"),
                "commit": environment.get("commit"),
                "judge": environment.get("judge"),
            },
        ),
        results=EvalResults(
            total_samples=len(samples),
            completed_samples=len(samples),
            scores=[
                EvalScore(
                    name=SCORER,
                    scorer=SCORER,
                    scored_samples=scored,
                    unscored_samples=len(samples) - scored,
                    metrics=metrics,
                )
            ],
        ),
        stats=EvalStats(started_at=started, completed_at=finished),
        samples=samples,
    )


def _sample(record: Record, asked: Sequence[Any], model: Mapping[str, Any]) -> "EvalSample":
    from inspect_ai.log import EvalError, EvalSample
    from inspect_ai.model import ChatCompletionChoice, ChatMessageAssistant, ModelOutput
    from inspect_ai.scorer import Score

    status = Status(record["status"])
    response = record.get("response") or ""
    answer = ChatMessageAssistant(content=response, model=str(model.get("name")), source="generate")
    stopped: Any = STOPPED.get(status, "stop")
    output = ModelOutput(
        model=str(model.get("name")), choices=[ChatCompletionChoice(message=answer, stop_reason=stopped)]
    )
    metadata = {name: record.get(name) for name in DESCRIBED}
    score = _score(record, status)
    failed = None
    if status.excluded:
        reason = str(record.get("reason") or status.value)
        failed = EvalError(message=reason, traceback=reason, traceback_ansi=reason)
    return EvalSample(
        id=record["case"],
        epoch=1,
        input=list(asked),
        target=str(record["gold"]),
        messages=[*asked, answer],
        output=ModelOutput(model=str(model.get("name"))) if status.excluded else output,
        scores=None if score is None else {SCORER: Score(**score)},
        metadata=metadata,
        error=failed,
    )


def _score(record: Record, status: Status) -> dict[str, Any] | None:
    """What the study made of the answer; None where it leaves the rates."""
    verdict, gold = record.get("verdict"), record["gold"]
    if status.excluded or gold not in RIGHT or verdict in (None, Verdict.JUDGE_FAILED):
        return None
    return {
        "value": "C" if verdict in RIGHT[gold] else "I",
        "answer": verdict,
        "explanation": record.get("explanation") or record.get("response") or "",
        "metadata": {"margin": record.get("margin"), "subset": record["subset"], "judge": record.get("judge")},
    }


def _input(run: SavedRun, record: Record, sample: Sample | None) -> list[Any]:
    """The user's turn: picture and words."""
    from inspect_ai.model import ChatMessageUser, ContentImage, ContentText

    url = run.thumbnail(record["case"]) if sample is None else _picture(sample)
    words = ContentText(text=record["text"] if sample is None else sample.prompt)
    return [ChatMessageUser(content=[words] if url is None else [ContentImage(image=url), words])]


def _picture(sample: Sample) -> str | None:
    """The picture as a data URL; None where there is none, or none that can be opened."""
    if sample.image is None:
        return None
    try:
        image = open_image(sample.image)
    except BadImage:
        return None
    return data_url(image, "JPEG", quality=90) if isinstance(sample.image, Path) else data_url(image)
