"""Sources of training rows for ``mitigation.vrtuning.data``. Imports neither torch nor transformers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.benchmarks.iconworld.traces import PERCEPTION, Trace, Traces
from interp.errors import UserError
from mitigation.vrtuning.data import VERDICT, Data, Row, from_rows, llava_cot, reasoned_jsonl
from mitigation.vrtuning.data_policy import refuse_path

FORMATS = ("reasoned", "llava_cot")


@dataclass(frozen=True)
class Jsonl:
    """A JSONL file of ``image, question, reasoning, verdict`` (``reasoned``) or of LLaVA-CoT's ``conversations``.

    ``images`` is the folder of its pictures, by default the file's own. Benchmarks that may not be trained on are
    refused, with the licence as the reason, before anything else happens.
    """

    path: str
    images: str | None = None
    format: str = "reasoned"

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise UserError(f"task.data.format={self.format!r}: must be one of {', '.join(FORMATS)}")
        for place in filter(None, (self.path, self.images)):
            refuse_path(Path(place))


Source = Traces | Jsonl


def build_data(source: Source, content: str, order: str, *, preferences: bool = False) -> Data:
    """The dataset of one adapter. ``content`` other than ``reasoning`` is known of IconWorld's traces alone.

    Raises:
        UserError: such a content for a file, a file that cannot be read, or one that may not be trained on.
    """
    if isinstance(source, Traces):
        return from_rows(training_rows(source.write(content)), order=order, preferences=preferences)  # type: ignore[arg-type]
    if content != "reasoning":
        raise UserError(
            f"content={content!r} for {source.path}: the controls are written from IconWorld's truth; of a file there "
            "is only 'reasoning'"
        )
    path, images = Path(source.path), None if source.images is None else Path(source.images)
    if source.format == "reasoned":
        return reasoned_jsonl(path, images, order=order, preferences=preferences)  # type: ignore[arg-type]
    if preferences:
        raise UserError(
            f"trainer=dpo needs rejected verdicts, which {source.path} (llava_cot) has not; take trainer=sft"
        )
    return llava_cot(path, images or path.parent, order=order)  # type: ignore[arg-type]


def training_rows(traces: Sequence[Trace]) -> Iterator[Row]:
    """The traces with their pictures drawn, each with an answer that a preference is taught against.

    A verdict is paired with its opposite: each sentence occurs with both verdicts, so that a model which does not look
    is wrong as often as right. A perception row is paired with another row's answer to the same question, or with its
    own answer where no other is known, which a preference cannot use.
    """
    known: dict[str, list[str]] = {}
    for trace in traces:
        if trace.subset == PERCEPTION:
            known.setdefault(trace.question, []).append(trace.verdict)
    for trace in traces:
        replay = trace.subset == PERCEPTION
        others = known.get(trace.question, []) if replay else ["Yes.", "No."]
        rejected = next((answer for answer in others if answer != trace.verdict), trace.verdict)
        kind = PERCEPTION if replay else VERDICT
        yield Row(trace.scene.render(), trace.question, trace.reasoning, trace.verdict, kind, rejected=rejected)
