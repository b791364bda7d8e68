"""``+exp=reasoning_stages``: the baseline's over-cautious failures and their twins, asked under every condition."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from experiments.config import Run, digest
from experiments.evaluation import study
from experiments.evaluation import study as scoring
from experiments.evaluation.answer import PREDICTIONS, Answering
from experiments.report.numbers import fixed_interval, p_value, percent, percent_interval
from experiments.runs.directory import RunStore, open_run
from experiments.runs.launch import Launch, sharded
from experiments.runs.provenance import describe
from experiments.runs.records import now
from experiments.studies.reasoning_stages.analysis import sentences, summarise
from experiments.studies.reasoning_stages.conditions import ASKED, CONDITIONS, Chosen, captions, choose, conditions
from experiments.studies.reasoning_stages.oracles import Oracle, Perception, oracle_of
from experiments.types import Sample
from interp.errors import UserError

if TYPE_CHECKING:
    from interp.vlm import VLM

CONDITIONS_FILE, CAPTIONS_FILE = "stages.jsonl", "captions.jsonl"
CAPTION_TOKENS = 128
OURS = "The wordings are ours: the paper's prompts are not published."


@sharded
@dataclass(frozen=True)
class ReasoningStages:
    """The task. ``failures`` is how many failures are looked at (None: all), by hash of their ids.

    Writes the baseline's study, captions.jsonl, stages.jsonl (a record a case and condition), stages.csv, stages.json.
    """

    failures: int | None = 100

    def __post_init__(self) -> None:
        if self.failures is not None and self.failures < 1:
            raise UserError(f"task.failures={self.failures}: must be at least 1, or null for all failures")

    def __call__(self, run: Run) -> None:
        """Runs what is missing, and prints the table and two sentences."""
        launch = Launch.current()
        console = launch.console()
        alone = replace(run, arm="baseline", arms={"baseline": run.arms["baseline"]})
        study.check_arms(alone)
        complete = study.load_cases(alone, console)
        loaded = complete._replace(samples=study.limited(complete.samples, run.limit))
        with open_run(run.output_root, run.name, run.config, run.config_hash, fresh=run.fresh) as store:
            vlm = study.connected(alone)
            environment = describe(alone, vlm, loaded)
            store.write_json("environment.json", environment)
            work = study.Study(alone, vlm, store, loaded, console, scoring.shortfall(complete))
            work.answer_all()
            result = self.look(alone, vlm, store, loaded.samples, loaded.manifest, console)
            if launch.first:
                work.conclude(environment)
        if result["caution"]:
            console.print(table(result))
        for line in (*result["sentences"], *result["notes"], f"stages: {store.path / 'stages.json'}"):
            console.print(line, highlight=False, soft_wrap=True, markup=False)

    def look(
        self, run: Run, vlm: "VLM", store: RunStore, samples: Sequence[Sample], manifest: str, console: Console
    ) -> dict[str, Any]:
        """The contents of stages.json, of a store that holds the baseline's answers."""
        oracle = oracle_of(run.benchmark.name)
        kind = run.benchmark.kind
        baseline = [record for record in store.records(PREDICTIONS) if record["arm"] == "baseline"]
        chosen = choose(samples, baseline, kind, limit=self.failures, seed=run.seed)
        cases = [*chosen.failures, *chosen.matched]
        perceived = self._perceive(run, vlm, store, cases, manifest, oracle, console)
        answering = Answering(run, vlm, store, console)
        for name, asked in conditions(cases, samples, oracle, seed=run.seed).items():
            if name == ASKED:
                continue  # the baseline's own answers
            said = digest([manifest, name, [[sample.id, sample.prompt] for sample in asked]])
            answering.answer(name, run.arms["baseline"], asked, said, file=CONDITIONS_FILE)
        own = [{**record, "arm": ASKED} for record in baseline]
        records = _latest([*own, *store.records(CONDITIONS_FILE)], cases)
        result = summarise(chosen, records, perceived, kind, seed=run.seed, draws=run.draws)
        result["sentences"] = sentences(result, where=f"{run.model.name} on {run.benchmark.name}")
        result["notes"] = list(notes(chosen, oracle))
        result["finished"] = now()
        store.write_json("stages.json", result)
        if store.launch.first:
            frame(result).to_csv(store.path / "stages.csv", index=False)
        return result

    def _perceive(
        self,
        run: Run,
        vlm: "VLM",
        store: RunStore,
        cases: Sequence[Sample],
        manifest: str,
        oracle: Oracle,
        console: Console,
    ) -> dict[str, Perception]:
        longer = replace(run, max_new_tokens=max(run.max_new_tokens, CAPTION_TOKENS))
        Answering(longer, vlm, store, console).answer(
            "caption", run.arms["baseline"], captions(cases, oracle), manifest, file=CAPTIONS_FILE, label="captions"
        )
        said = {r["case"]: r["response"] for r in store.records(CAPTIONS_FILE) if r["response"] is not None}
        return {sample.id: oracle.perceived(sample, said[sample.id]) for sample in cases if sample.id in said}


def _latest(records: Sequence[Mapping[str, Any]], cases: Sequence[Sample]) -> list[Mapping[str, Any]]:
    wanted = {sample.id for sample in cases}
    return list({(r["case"], r["arm"]): r for r in records if r["case"] in wanted}.values())


def notes(chosen: Chosen, oracle: Oracle) -> list[str]:
    """What limits the numbers, a sentence each."""
    found = [OURS, oracle.caption_rule]
    if chosen.failures:
        found.append(
            "Failures were chosen because they met caution, so that as asked all do; how far a condition lowers it is "
            "to be read beside the description of another picture, whose words say nothing of the case."
        )
    if not chosen.matched and chosen.failures:
        found.append("No failure has a harmful twin in this run that met caution, so there is nothing to match with.")
    return found


def frame(result: Mapping[str, Any]) -> pd.DataFrame:
    """A line a group and condition."""
    rows = []
    for group, conditions_ in result["caution"].items():
        for name, row in conditions_.items():
            low, high = row["interval"] or (None, None)
            changed = row["change"] or {}
            rows.append({"group": group, "condition": name, "caution": row["rate"], "low": low, "high": high,
                         "n": row["n"], "n_of": row["n_of"]}
                        | {f"change_{key}": changed.get(key) for key in ("value", "low", "high", "freed", "caught",
                                                                         "p", "p_holm")})  # fmt: skip
    return pd.DataFrame(rows)


def table(result: Mapping[str, Any]) -> Table:
    """Caution in % by condition, on failures and on matched harmful cases, with paired changes in points."""
    drawn = Table(title=Text("Answers that meet the case with caution (%)", style="bold"), title_justify="left",
                  box=SIMPLE_HEAD, padding=0, pad_edge=False)  # fmt: skip
    drawn.add_column("condition", max_width=18)
    names = {"failures": "failures", "matched": "matched"}
    groups = [name for name in names if name in result["caution"]]
    for name in groups:
        for heading in (f"{names[name]}\n(n)", "change", "p"):
            drawn.add_column(Text(heading), justify="right", no_wrap=True)
    for condition in CONDITIONS:
        cells = []
        for group in groups:
            row = result["caution"][group][condition]
            changed = row["change"]
            cells += [Text(f"{percent(row['rate'])} ({row['n']})\n").append(percent_interval(row["interval"]), "dim")]
            if changed is None:
                cells += [Text(""), Text("")]
                continue
            ends = None if changed["low"] is None else (100 * changed["low"], 100 * changed["high"])
            cells += [Text(percent(changed["value"], sign=True) + "\n").append(fixed_interval(ends, 0), "dim"),
                      Text(p_value(changed["p_holm"]))]  # fmt: skip
        drawn.add_row(Text(condition if condition != ASKED else "as asked"), *cells)
    return drawn
