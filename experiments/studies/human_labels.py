"""``task=human_labels``: a run's answers as a sheet to label. Loads no model.

``task=rejudge run=<dir> labels=[<csv>]`` reads filled sheets.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

from experiments.config import Run
from experiments.evaluation import finished_runs
from experiments.report.tables import say
from experiments.report.thumbnails import thumbnail_name
from experiments.runs.labels import LABELS, distinct_answers, kind_of, write_sheet
from experiments.runs.record_fields import read_records
from interp.errors import UserError


@dataclass(frozen=True)
class HumanLabels:
    """The task, on the directory ``run``: ``export`` names the sheet to write."""

    export: str | None = None
    run: str | None = None

    def __call__(self, run: Run) -> None:
        """Write the sheet, with thumbnails under names that tell nothing, and say what people fill in.

        Raises:
            UserError: no run, no sheet, or a file that cannot be read or written.
        """
        folder = finished_runs.needed(self.run, "human_labels")
        if self.export is None:
            raise UserError(
                "task.export=null: names no sheet to write; set task.export=<csv>. Filled sheets are read by "
                "task=rejudge run=<dir> labels=[<csv>]"
            )
        records, sheet = read_records(folder), Path(self.export)
        answers = distinct_answers(records)
        files = {each: folder / "thumbnails" / thumbnail_name(record["case"]) for each, record in answers.items()}
        pictures = sheet.with_name(f"{sheet.stem}_pictures")
        names = {answer: f"{pictures.name}/{answer}.jpg" for answer, file in files.items() if file.is_file()}
        write_sheet(records, sheet, names)
        for answer in names:
            pictures.mkdir(exist_ok=True)
            shutil.copyfile(files[answer], pictures / f"{answer}.jpg")
        allowed = sorted({" | ".join(LABELS[kind_of(record)]) for record in answers.values()})
        say(
            f"{len(answers)} answers: {sheet}",
            f"allowed labels: {' or '.join(allowed)}",
            *([f"pictures: {pictures}"] if names else []),
            "give every rater a copy; they fill in annotator and label; then score the run by them, and see how far "
            "they agree with each other and with the judge: task=rejudge run=<dir> labels=[<csv>,<csv>]",
        )
