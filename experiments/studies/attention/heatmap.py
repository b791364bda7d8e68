"""``+exp=heatmap_llava case=<id>``: the attention of a case, drawn, with what the image does to its margin.

With ``image=<file> text=<sentence>`` the case is a picture of the user's.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from experiments.benchmarks.iconworld.sentences import question
from experiments.benchmarks.images import BadImage, open_image
from experiments.config import Run
from experiments.evaluation import study
from experiments.evaluation.attention_log import prompts_of
from experiments.evaluation.cases import batches, load_cases
from experiments.evaluation.environment import describe
from experiments.evaluation.looking_inside import followed, yes_or_no
from experiments.judges.yes_no import anchored
from experiments.report.figures import check_format
from experiments.report.sections import Analysis
from experiments.report.tables import fixed, lines, say
from experiments.runs.record_fields import timestamp
from experiments.runs.store import open_run
from experiments.studies.attention.analysis import intervention_margins, self_test
from experiments.studies.attention.cases import (
    PNG,
    SHARE,
    AttendedCase,
    draw_answers,
    draw_case,
    record_answers,
    words_of,
)
from experiments.studies.questions import check_margins
from experiments.types import Loaded, Sample
from interp.errors import UserError

if TYPE_CHECKING:
    from interp.vlm import VLM, Prompt

KNOWN_IDS_SHOWN = 5  # ids that an error names


@dataclass(frozen=True)
class Heatmap:
    """The task draws a case: ``image`` with ``text``, or ``case``, or the first over-safety failure.

    ``layers`` are those drawn, None for all. The answer of the method under study is drawn next to the baseline's.
    ``format``: png; with svg or pdf such files too, as wide as a column.
    """

    layers: list[int] | None = None
    case: str | None = None
    image: str | None = None
    text: str | None = None
    format: str = PNG

    def __post_init__(self) -> None:
        check_format(self.format, PNG)

    def __call__(self, run: Run) -> None:
        """Draw into a new run directory, and print what is in it."""
        from interp.hooks.attention import chosen_layers

        picture = self._picture()
        if picture is None and run.benchmark.kind == "refusal":
            with study.open_study(study.baseline_only(check_margins(run))) as work:
                chosen_layers(work.vlm, self.layers)
                work.answer_all()
                work.conclude([Analysis("heatmap", "nothing was drawn", partial(self._of_a_refusal, run))])
            return
        console = Console()
        loaded = load_cases(run, console) if picture is None else Loaded([picture], {}, "")
        named = picture if picture or self.case is None else _with_id(loaded.samples, self.case)
        from interp.loading import load  # torch and transformers: only when everything else is in order

        vlm = load(run.weights)
        chosen_layers(vlm, self.layers)
        with (
            open_run(run.output_root, run.name, run.config, run.config_hash, fresh=True) as store,
            vlm.batches.by(run.batch_rule, on_lowered=lambda rows: say(f"heatmap: out of memory; asking {rows} now")),
        ):
            self_test(vlm)
            sample = named or first_failure(vlm, loaded.samples, run)
            described = self._draw(vlm, sample, loaded.samples, run, store.path, yes_or_no)
            store.write_json(
                "environment.json", describe(run, vlm, loaded, len(loaded.samples)) | {"finished": timestamp()}
            )
            say(*described)

    def _of_a_refusal(self, run: Run, work: study.Study) -> list[str]:
        """Draw a case of a refusal benchmark at the decisive token of a refusal, by default a refused harmless one."""
        with followed(work, next_token=True) as seen, work.answering.batching("heatmap"):
            self_test(work.vlm)
            pictured = {sample.id for sample in seen.samples if sample.image is not None}
            failed = (line["case"] for line in seen.records if line["subset"] == "over_safety"
                      and line["verdict"] != line["gold"] and line["case"] in pictured)  # fmt: skip
            case = self.case or next(failed, None)
            if case is None:
                raise UserError("no harmless request with a picture is refused; choose a case to draw: case=<id>")
            sample = _with_id(seen.samples, case)
            drawn = self._draw(work.vlm, sample, seen.samples, run, work.store.path, seen.verdict)
            return [*drawn, *seen.notes]

    def _draw(
        self,
        vlm: "VLM",
        sample: Sample,
        usable: Sequence[Sample],
        run: Run,
        folder: Path,
        verdict: Callable[[Sample, str], str | None],
    ) -> list[str]:
        """Draw the case, and return what to say of it; pictures to exchange are those of ``usable``."""
        (baseline,) = record_answers(vlm, [sample], max_new_tokens=run.max_new_tokens, layers=self.layers)
        described = self._described(vlm, baseline, usable, run, verdict)
        figures = draw_case(folder, baseline, self.format)
        by_method, why = self._by_method(vlm, sample, run, with_picture=bool(baseline.row.grids))
        if by_method:
            figures += draw_answers(folder, {"baseline": baseline, run.arm: by_method}, self.format)
            described += [
                f"answer of {run.arm}: {by_method.response} (margin {fixed(by_method.margin, 2, sign=True)} logits)"
            ]
        described += [f"{run.arm} is not drawn: {why}"] if why else []
        if sample.image is not None and not baseline.row.grids:
            described += [f"no map of the picture: nothing says where in it the image tokens of {vlm.name} lie"]
        return [*described, *(f"figure: {folder / name}" for name in figures)]

    def _picture(self) -> Sample | None:
        """Return the picture and sentence of the command line, asked as MMSafeAware asks; None if it has neither.

        Raises:
            UserError: one without the other, a case next to them, or a picture that cannot be opened.
        """
        if self.image is None and self.text is None:
            return None
        if self.image is None or self.text is None or not self.text.strip():
            absent = "image=photo.jpg" if self.image is None else "'text=\"How do I kill this?\"'"
            raise UserError(f"your own picture needs image= and text=; add {absent}")
        if self.case is not None:
            raise UserError(f"case={self.case} and image={self.image}: only one can be drawn; remove one of them")
        path = Path(self.image).expanduser()
        try:
            open_image(path)
        except BadImage as error:
            raise UserError(f"image={error}; give a picture file that opens") from error  # it begins with the path
        return Sample(path.stem, "own", "", "unknown", self.text, question(self.text), path, cluster=path.stem)

    def _described(
        self, vlm: "VLM", case: AttendedCase, usable: Sequence[Sample], run: Run,
        verdict: Callable[[Sample, str], str | None],
    ) -> list[str]:  # fmt: skip
        """Return a case in words: question, answer, where the verdict looked, and what the image does."""
        margins = intervention_margins(vlm, [case], usable, layers=self.layers, seed=run.seed).iloc[0].to_dict()
        outcome = "success" if verdict(case.sample, case.response) == case.sample.gold else "failure"
        words = words_of(case)
        most = words[words["in_sentence"]].sort_values("mass", ascending=False, kind="stable").head(5)
        return lines("case", sample=case.sample, case={**margins, "response": case.response, "outcome": outcome},
                     share=case.shares[SHARE].mean(), layers=list(case.shares[SHARE].items()),
                     words=list(zip(most["word"], most["mass"], strict=True)))  # fmt: skip

    def _by_method(
        self, vlm: "VLM", sample: Sample, run: Run, *, with_picture: bool
    ) -> tuple[AttendedCase | None, str]:
        """Return the case under the method of the run, or why there is none; neither if that is the baseline.

        ``with_picture``: whether the picture's tokens have a place in the baseline's prompt.
        """
        from mitigation.method import Method

        method = run.arms[run.arm]
        if run.arm == "baseline":
            return None, ""
        if not isinstance(method, Method):
            return None, "it has to be trained first"
        try:
            tokens = run.max_new_tokens
            (recorded,) = record_answers(vlm, [sample], max_new_tokens=tokens, layers=self.layers, method=method)
        except UserError as error:
            return None, str(error)
        if with_picture and not recorded.row.grids:
            return None, f"it answers “{recorded.response}” to a question without the picture"
        return recorded, ""


def first_failure(vlm: "VLM", samples: Sequence[Sample], run: Run) -> Sample:
    """Return the first over-safety case with an image that the model gets wrong.

    Raises:
        UserError: it gets all of them right.
    """
    members = [sample for sample in samples if sample.subset == "over_safety" and sample.image is not None]

    def answers(prompts: "list[Prompt]") -> list[str]:
        return vlm.generate(prompts, max_new_tokens=run.max_new_tokens).texts

    for batch in batches(members, run.batch_size):  # in order, since the first failure is wanted
        for sample, text in zip(batch, vlm.batches.gathered(prompts_of(batch), answers), strict=True):
            if anchored(text).value != sample.gold:
                return sample
    raise UserError(f"none of {len(members)} over-safety cases is answered wrong; choose a case to draw: case=<id>")


def _with_id(samples: Sequence[Sample], case: str) -> Sample:
    """Return the sample whose id is ``case``.

    Raises:
        UserError: there is none; some known ids are named.
    """
    for sample in samples:
        if sample.id == case:
            return sample
    listed = ", ".join(sample.id for sample in samples[:KNOWN_IDS_SHOWN])
    rest = f" and {len(samples) - KNOWN_IDS_SHOWN} more" if len(samples) > KNOWN_IDS_SHOWN else ""
    raise UserError(f"no case '{case}' in this benchmark; known: {listed}{rest}; choose among these")
