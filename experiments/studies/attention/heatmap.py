"""``+exp=heatmap_llava case=<id>``: one case's attention, drawn, with what the image does to its margin."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console

from experiments.config import Run
from experiments.evaluation.attention_log import prompts_of
from experiments.evaluation.matching import MatchedCase, sample_with_id
from experiments.evaluation.study import describe, load_cases
from experiments.judges.yes_no import anchored
from experiments.report.findings.attention import case_lines
from experiments.runs.directory import open_run
from experiments.runs.records import now
from experiments.studies.attention.analysis import check_selection, intervention_margins, self_test_once
from experiments.studies.attention.figures import attended_case, draw_case
from experiments.studies.attention.tables import attention_tables, record_answers, write_maps, write_tables
from experiments.types import Sample
from interp.errors import UserError

if TYPE_CHECKING:
    from interp.vlm import VLM


@dataclass(frozen=True)
class Heatmap:
    """The task: draws ``run.case``, or the first over-safety failure; ``layers`` are those drawn, None for all."""

    layers: list[int] | None = None

    def __call__(self, run: Run) -> None:
        """Draws into a new run directory and prints what is in it."""
        console = Console()
        loaded = load_cases(run, console)
        named = None if run.case is None else sample_with_id(loaded.samples, run.case)
        from interp.vlm import load  # torch and transformers: only when everything else is in order

        vlm = load(run.weights)
        check_selection(vlm, self.layers, None)
        with open_run(run.output_root, run.name, run.config, run.config_hash, fresh=True) as store:
            folder = store.path / "attention"
            folder.mkdir()
            self_test_once(vlm, folder / "selftest.json")
            sample = named or first_failure(vlm, loaded.samples, run)
            recorded = record_answers(
                vlm, [sample], batch_size=1, max_new_tokens=run.max_new_tokens, layers=self.layers
            )
            margins = intervention_margins(
                vlm, [sample], recorded, loaded.samples, batch_size=1, layers=self.layers, seed=run.seed
            )
            failed = anchored(recorded.texts[0]).value != sample.gold
            tables = attention_tables(sample.subset, [MatchedCase(sample, failed)], recorded, margins, vlm.tokenizer)
            write_tables(tables, folder)
            write_maps(recorded, [sample.id], folder / "maps.safetensors")
            figures = draw_case(store.path, attended_case(sample, recorded, 0))
            store.write_json("environment.json", describe(run, vlm, loaded) | {"finished": now()})
            for line in [
                *case_lines(sample, tables.cases.iloc[0], tables.shares, tables.words),
                *(f"figure: {store.path / name}" for name in figures),
            ]:
                console.print(line, highlight=False, soft_wrap=True, markup=False)


def first_failure(vlm: "VLM", samples: Sequence[Sample], run: Run) -> Sample:
    """The first over-safety case with an image that the model gets wrong.

    Raises:
        UserError: it gets all of them right.
    """
    members = [sample for sample in samples if sample.subset == "over_safety" and sample.image is not None]
    for start in range(0, len(members), run.batch_size):
        batch = members[start : start + run.batch_size]
        answers = vlm.generate(prompts_of(batch), max_new_tokens=run.max_new_tokens)
        for sample, text in zip(batch, answers.texts, strict=True):
            if anchored(text).value != sample.gold:
                return sample
    raise UserError(f"none of {len(members)} over-safety cases is answered wrong; name the one to draw: case=<id>")
