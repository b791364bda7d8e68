"""``+exp=languages``: the same cases in several languages, compared case by case.

Languages take the place of arms: a case and its translations are one case (tag ``original``) in several languages
(tag ``language``), so that every paired statistic of a study applies to languages too. Verdict words and refusal rules
are the judge's, by language. Loads no model where a finished run is given.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from experiments.config import Run
from experiments.evaluation import finished_runs
from experiments.metrics.bootstrap import DRAWS
from experiments.metrics.refusal import results as refusal
from experiments.metrics.yes_no import results
from experiments.report import terminal
from experiments.report.table import say
from experiments.report.words import worded
from experiments.runs.launch import Launch, sharded
from experiments.runs.resumption import read_object, write_json
from experiments.runs.saved_run import read_records
from experiments.types import Kind
from interp.errors import UserError


@sharded
@dataclass(frozen=True)
class Languages:
    """The task, on ``run``, a finished run on a translated benchmark; without one the study is run first.

    ``arm`` is the arm whose answers are compared, ``reference`` the language that the others are set against (None: the
    one with most cases, the first of equals). Writes languages.json into the run's directory.
    """

    arm: str = "baseline"
    reference: str | None = None
    run: str | None = None

    def __call__(self, run: Run) -> None:
        """Prints the languages as a study prints its arms."""
        folders = finished_runs.given(self.run)
        if not folders and not hasattr(run.benchmark, "language"):
            raise UserError(
                f"benchmark={run.benchmark.name}: has no translations; give benchmark=translated "
                "benchmark@benchmark.of=<name> benchmark.questions=<file>, or run=<finished run>"
            )
        folder = folders[0] if folders else finished_runs.studied(run)
        if not Launch.current().first:
            return
        result = compare_languages(
            read_records(folder),
            arm=finished_runs.arm_of(read_object(folder / "metrics.json"), self.arm),
            reference=self.reference,
            seed=run.seed,
            draws=run.draws,
        )
        write_json(folder / "languages.json", result)
        say(terminal.results({**result, "caveats": []}), f"languages: {folder / 'languages.json'}")


def compare_languages(
    records: Sequence[Mapping[str, Any]],
    *,
    arm: str = "baseline",
    reference: str | None = None,
    seed: int = 0,
    draws: int = DRAWS,
) -> dict[str, Any]:
    """metrics.json's contents with languages for arms, the ``reference`` in the place of the baseline.

    Raises:
        UserError: no record of ``arm`` has a language, there is only one, or ``reference`` is none of them.
    """
    table, kind = by_language(records, arm)
    counted = table["arm"].value_counts(sort=False)
    if len(counted) < 2:
        raise UserError(f"arm {arm!r} has answers in {', '.join(counted.index) or 'no language'}; a comparison needs "
                        "two languages; run on benchmark=translated with originals or several languages")  # fmt: skip
    first = reference or str(counted.idxmax())
    if first not in counted.index:
        raise UserError(f"task.reference={first!r}: is none of the languages {', '.join(counted.index)}; choose one")
    options: dict[str, Any] = {"seed": seed, "draws": draws, "baseline": first}
    result = worded((refusal if kind == "refusal" else results).evaluate(table, **options))
    return result | {"reference": first, "arm": arm, "summary": []}  # its sentences are of a method, not of a language


def by_language(records: Sequence[Mapping[str, Any]], arm: str) -> tuple[pd.DataFrame, Kind]:
    """The arm's records with the original's id for case and the language for arm, and the kind of answers they are."""
    rows = []
    for record in records:
        tags = record.get("tags") or {}
        if record["arm"] == arm and tags.get("language"):
            language = str(tags["language"])
            pair = record.get("pair")
            labels = {
                "case": tags.get("original", record["case"]),
                "arm": language,
                "pair": pair.removesuffix(f"@{language}") if isinstance(pair, str) else None,
                "tags": {name: value for name, value in tags.items() if name not in ("language", "original")},
            }
            rows.append({**record, **labels})
    kind: Kind = "refusal" if any(row["gold"] in ("comply", "refuse") for row in rows) else "yes_no"
    return pd.DataFrame(rows, columns=None if rows else ["arm"]), kind
