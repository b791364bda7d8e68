"""``+exp=heatmap_llava case=<id>``: one case's attention, drawn, with what the image does to its margin.

With ``image=<file> text=<sentence>`` the case is a picture of one's own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from experiments.benchmarks.iconworld.sentences import question
from experiments.benchmarks.images import BadImage, open_image
from experiments.config import Run
from experiments.evaluation.attention_log import prompts_of
from experiments.evaluation.case_batches import batches
from experiments.evaluation.cases import load_cases
from experiments.evaluation.environment import describe
from experiments.evaluation.matching import MatchedCase, sample_with_id
from experiments.judges.yes_no import anchored
from experiments.report.figures import check_format
from experiments.report.text import lines
from experiments.runs.records import now
from experiments.runs.store import open_run
from experiments.studies.attention.analysis import check_selection, intervention_margins, self_test
from experiments.studies.attention.figures import SCREEN_ALONE, draw_answers, draw_case
from experiments.studies.attention.tables import (
    AttendedCase,
    AttentionTables,
    attention_tables,
    record_answers,
    write_maps,
    write_tables,
)
from experiments.types import Loaded, Sample
from interp.errors import UserError

if TYPE_CHECKING:
    from interp.vlm import VLM, Prompt


@dataclass(frozen=True)
class Heatmap:
    """The task: draws one case: ``image`` with ``text``, or ``case``, or the first over-safety failure.

    ``layers`` are those drawn, None for all. The answer of the method under study is drawn beside the baseline's.
    ``format``: png, or svg or pdf beside it, at a column's width.
    """

    layers: list[int] | None = None
    case: str | None = None
    image: str | None = None
    text: str | None = None
    format: str = SCREEN_ALONE

    def __post_init__(self) -> None:
        check_format(self.format, SCREEN_ALONE)

    def __call__(self, run: Run) -> None:
        """Draws into a new run directory and prints what is in it."""
        console = Console()
        picture = self._own()
        loaded = load_cases(run, console) if picture is None else Loaded([picture], {}, "")
        named = picture if picture or self.case is None else sample_with_id(loaded.samples, self.case)
        from interp.loading import load  # torch and transformers: only when everything else is in order

        vlm = load(run.weights)
        check_selection(vlm, self.layers, None)

        def say(rows: int) -> None:
            console.print(f"heatmap: out of memory; asking {rows} at once from here on", highlight=False)

        with (
            open_run(run.output_root, run.name, run.config, run.config_hash, fresh=True) as store,
            vlm.batches.by(run.batch_rule, on_lowered=say),
        ):
            folder = store.path / "attention"
            folder.mkdir()
            self_test(vlm, folder / "selftest.json")
            sample = named or first_failure(vlm, loaded.samples, run)
            if vlm.layout.geometry == "measured":
                console.print(_measured(vlm, sample), highlight=False)
            recorded = record_answers(vlm, [sample], max_new_tokens=run.max_new_tokens, layers=self.layers)
            margins = intervention_margins(vlm, recorded, loaded.samples, layers=self.layers, seed=run.seed)
            (baseline,) = recorded
            failed = anchored(baseline.response).value != sample.gold
            tables = attention_tables(sample.subset, [MatchedCase(sample, failed)], recorded, margins, vlm.tokenizer)
            write_tables(tables, folder)
            write_maps(recorded, folder / "maps.safetensors")
            figures = draw_case(store.path, baseline, self.format)
            by_method, why = self._by_method(vlm, sample, run, pictured=bool(baseline.row.grids))
            if by_method:
                figures += draw_answers(store.path, {"baseline": baseline, run.arm: by_method}, self.format)
            store.write_json("environment.json", describe(run, vlm, loaded, len(loaded.samples)) | {"finished": now()})
            for line in [
                *case_lines(sample, tables),
                *([f"answer of {run.arm}: {by_method.response} (margin {by_method.margin:+.2f})"] if by_method else []),
                *([f"{run.arm} is not shown: {why}"] if why else []),
                *(f"figure: {store.path / name}" for name in figures),
            ]:
                console.print(line, highlight=False, soft_wrap=True, markup=False)

    def _own(self) -> Sample | None:
        """The picture and sentence that the command line gives, asked as MMSafeAware asks; None where it names neither.

        Raises:
            UserError: one without the other, a case beside them, or a picture that cannot be opened.
        """
        if self.image is None and self.text is None:
            return None
        if self.image is None or self.text is None or not self.text.strip():
            absent = "image=photo.jpg" if self.image is None else "'text=\"How do I kill this?\"'"
            raise UserError(f"a picture of your own takes image= and text=; add {absent}")
        if self.case is not None:
            raise UserError(f"case={self.case} and image={self.image}: only one can be drawn; leave one of them out")
        path = Path(self.image).expanduser()
        try:
            open_image(path)
        except BadImage as error:
            raise UserError(f"image={error}; give a picture file that opens") from error  # it begins with the path
        return Sample(path.stem, "own", "", "unknown", self.text, question(self.text), path, cluster=path.stem)

    def _by_method(self, vlm: "VLM", sample: Sample, run: Run, *, pictured: bool) -> tuple[AttendedCase | None, str]:
        """The case under the method of the run, or why there is none; neither where that is the baseline.

        ``pictured``: whether the picture's tokens lie in the baseline's prompt.
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
        if pictured and not recorded.row.grids:
            return None, f"it answers “{recorded.response}” to a question without the picture"
        return recorded, ""


def _measured(vlm: "VLM", sample: Sample) -> str:
    """Measures where this picture's tokens lie, and says what was found, or why there will be no map."""
    from interp.image_grid import measure_places

    (prompt,) = prompts_of([sample])
    if prompt.image is None:
        return "heatmap: no picture, no map of it"
    try:
        rows, columns = measure_places(vlm, prompt.image.size)
    except UserError as error:
        return f"heatmap: {error}"
    return f"heatmap: places of image tokens are measured, a grid of {rows} × {columns}"


def case_lines(sample: Sample, tables: AttentionTables) -> list[str]:
    """Return one case in words: what was asked and answered, where the verdict looked, and what the image does."""
    case, shares = tables.cases.iloc[0].to_dict(), tables.shares
    most = tables.words[tables.words["in_sentence"]].sort_values("mass", ascending=False, kind="stable").head(5)
    return lines("case", sample=sample, case=case, share=shares["share"].mean(),
                 layers=list(zip(shares["layer"], shares["share"], strict=True)),
                 words=list(zip(most["word"], most["mass"], strict=True)))  # fmt: skip


def first_failure(vlm: "VLM", samples: Sequence[Sample], run: Run) -> Sample:
    """The first over-safety case with an image that the model gets wrong.

    Raises:
        UserError: it gets all of them right.
    """
    members = [sample for sample in samples if sample.subset == "over_safety" and sample.image is not None]

    def answers(some: "list[Prompt]") -> list[str]:
        return vlm.generate(some, max_new_tokens=run.max_new_tokens).texts

    for batch in batches(members, run.batch_size):  # in order, for it is the first that is looked for
        for sample, text in zip(batch, vlm.batches.gathered(prompts_of(batch), answers), strict=True):
            if anchored(text).value != sample.gold:
                return sample
    raise UserError(f"none of {len(members)} over-safety cases is answered wrong; name the one to draw: case=<id>")
