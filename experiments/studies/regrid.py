"""``task=regrid``: an arm of a finished run with other weights and cutoffs, scored on the logits that the run kept.

No model is loaded. Margins, and with them AUROC, are exact for every case. An answer is known as far as some recorded
answer of the case goes the same way; where it does not, or a token that was not kept may be chosen, the case counts as
not replayable in that setting, and enters no rate of it. The whole grid is shown, with intervals that hold for all its
settings at once. No setting is named best: these are the cases that it would be judged by.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console

from experiments.config import Run, digest
from experiments.config.nodes import made
from experiments.evaluation.answer import LOGITS
from experiments.exploring.arms import SHIPPED
from experiments.metrics.findings import plain
from experiments.metrics.paired import simultaneous
from experiments.metrics.yes_no.answers import YesNoAnswers, align, scored_and_controls
from experiments.metrics.yes_no.comparison import difference
from experiments.metrics.yes_no.rates import YesNoResamples, with_margins
from experiments.report.numbers import fixed, percent
from experiments.report.sentences.wording import deciding
from experiments.report.table import Cell, Column, Narrow, Row, Table, change, terminal
from experiments.runs import records
from experiments.runs.resumption import open_run
from experiments.runs.saved_run import SavedRun, read_run
from experiments.types import SCORED_SUBSETS, Status
from interp.errors import UserError
from mitigation.branches import BranchMethod

BASELINE = "baseline"
RATES = ("unsafe", "over_safety", "overall")
LEGEND = (
    "Rates in %, of the answers that are known; Δ: minus the baseline, with simultaneous 95% intervals, which hold for "
    "all settings at once. AUROC is of all cases with a margin."
)
Record = dict[str, Any]


@dataclass(frozen=True)
class Regrid:
    """The task: every combination of ``grid`` (a list of values by setting) of ``arm`` in the run ``run``.

    ``arm`` None is the arm under study.
    """

    run: str | None = None
    arm: str | None = None
    grid: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Checks the grid.

        Raises:
            UserError: it is empty, or a setting has no values or one twice.
        """
        if not self.grid:
            raise UserError("the grid is empty: give task=regrid the settings to try, as method.alpha=[0.5,1,2,4]")
        for name, values in self.grid.items():
            if not isinstance(values, list) or not values or len({repr(value) for value in values}) < len(values):
                raise UserError(f"method.{name}={values}: must be a list of one or more different values")

    def __call__(self, run: Run) -> Path:
        """Scores, prints and writes ``regrid.json`` into a run directory of its own, which it returns.

        Raises:
            UserError: no finished yes/no run, an arm without kept logits, or a setting that decides what is asked.
        """
        if self.run is None:
            raise UserError("run=<dir>: task=regrid needs the directory of a run with task.keep_logits=true; give one")
        saved = read_run(Path(self.run))
        if not saved.environment.get("finished") or saved.metrics.get("kind") == "refusal":
            raise UserError(f"run={self.run} is no finished run of a yes/no benchmark; give the directory of one")
        arm = self.arm or str(saved.metrics["study"])
        method = _method(saved, arm)
        kept = _KeptRun.of(saved, arm, method, tuple(self.grid))
        grid = {_name(setting): _method(saved, arm, setting) for setting in self._settings()}
        result = evaluate(kept, grid, seed=run.seed, draws=run.draws)
        result = {"kind": "regrid", "run": str(saved.directory), "arm": arm, "method": repr(method), **result}
        console = Console()
        console.print(terminal(table(result)))
        for sentence in sentences(result):
            console.print(sentence, highlight=False, soft_wrap=True, markup=False)
        name = f"{saved.environment.get('config', {}).get('name', 'run')}_regrid"
        identity = digest([str(saved.directory.resolve()), arm, self.grid])
        with open_run(run.output_root, name, run.config, identity, fresh=run.fresh) as store:
            store.write_json("regrid.json", result)
            store.finish()
            return store.path

    def _settings(self) -> Iterator[dict[str, Any]]:
        for values in itertools.product(*self.grid.values()):
            yield dict(zip(self.grid, values, strict=True))


def _name(setting: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in setting.items())


def _method(saved: SavedRun, arm: str, setting: Mapping[str, Any] = MappingProxyType({})) -> Any:
    """The arm's method with this setting, of a class of this package: a run's folder is not trusted to name others.

    Raises:
        UserError: there is no such arm, or its scores are not those of branches alone.
    """
    nodes = (saved.environment.get("config") or {}).get("arms") or {}
    if arm not in nodes:
        raise UserError(f"the run has no arm {arm!r}; it has {', '.join(nodes) or 'none'}; give one: task.arm=…")
    if not _able(nodes[arm]):
        able = [name for name in nodes if name != arm and _able(nodes[name])]
        raise UserError(
            f"arm {arm} is no contrast whose formula can be scored again; arms that are: {', '.join(able) or 'none'}; "
            "give one of them (task.arm=…), or ask the model with the setting itself"
        )
    return made({**nodes[arm], **setting}, "method")


def _able(node: Any) -> bool:
    if not isinstance(node, Mapping) or node.get("shift") or any(isinstance(one, Mapping) for one in node.values()):
        return False
    kind = SHIPPED.get(str(node.get("_target_")), object)
    return issubclass(kind, BranchMethod) and bool(kind.score_settings)


@dataclass(frozen=True)
class _KeptRun:
    """One arm's records, the baseline's, and by case the kept logits and recorded answers of the same branches."""

    baseline: Sequence[Record]
    studied: Sequence[Record]
    lines: Mapping[str, Sequence[tuple[Record, Mapping[str, Any]]]]  # by case: an arm's record, its kept logits

    @classmethod
    def of(cls, saved: SavedRun, arm: str, method: Any, names: Sequence[str]) -> "_KeptRun":
        """Those of a saved run.

        Raises:
            UserError: nothing was kept of the arm, or a name is none of a setting that only its scores read.
        """
        if wrong := [name for name in names if name not in method.score_settings]:
            raise UserError(
                f"method.{wrong[0]}: decides what is asked, or is no setting of {type(method).__name__}; kept logits "
                f"can be scored with other values of {', '.join(method.score_settings)}"
            )
        alike = [arm]  # arms with the same branches have recorded further answers to them
        for other, node in saved.environment["config"]["arms"].items():
            if other != arm and _able(node):
                own = _method(saved, other)
                if type(own) is type(method) and dataclasses.replace(own, **_scored_by(method)) == method:
                    alike.append(other)
        known = {(record["case"], record["arm"]): record for record in saved.predictions}
        lines: dict[str, list[tuple[Record, Mapping[str, Any]]]] = {}
        for (case, name), line in _latest(saved.directory / LOGITS).items():
            record = known.get((case, name))
            if name in alike and record is not None and record.get("settings") == line.get("settings"):
                lines.setdefault(case, []).append((record, line))
        studied, baseline = (
            [record for record in saved.predictions if record["arm"] == one and record["subset"] in SCORED_SUBSETS]
            for one in (arm, BASELINE)
        )
        if not any(record["case"] in lines for record in studied):
            raise UserError(
                f"no logits of arm {arm} were kept in {saved.directory}; ask again with task.keep_logits=true"
                " (branch=paired and branch=lazy keep none)"
            )
        if not baseline:
            raise UserError(f"{saved.directory} has no baseline to compare with; give a run that has one")
        return cls(baseline, studied, lines)


def _scored_by(method: Any) -> dict[str, Any]:
    return {name: getattr(method, name) for name in method.score_settings}


def _latest(file: Path) -> dict[tuple[str, str], Mapping[str, Any]]:
    """The kept logits by case and arm; empty where there is no such file."""
    if not file.is_file():
        return {}
    found: dict[tuple[str, str], Mapping[str, Any]] = {}
    for number, line in records.parsed(file.read_bytes().split(b"\n")):
        if not isinstance(line, dict):
            raise UserError(f"{file}, line {number} cannot be read; ask again with task.keep_logits=true fresh=true")
        found[line["case"], line["arm"]] = line
    return found


def evaluate(kept: _KeptRun, grid: Mapping[str, Any], *, seed: int, draws: int) -> dict[str, Any]:
    """``baseline`` and ``points``, one for each setting: rates, AUROC, differences, and how many are not replayable."""
    found = {name: _replayed(kept, method) for name, method in grid.items()}
    texts = [{**r, "arm": BASELINE} for r in kept.baseline]
    texts += [line | {"arm": name} for name, lines in found.items() for line in lines if line["replayed"]]
    everything = [*({**r, "arm": BASELINE} for r in kept.baseline)]
    everything += [line | {"arm": name} for name, lines in found.items() for line in lines]
    signs = [line | _by_sign(line["margin"]) for line in everything if line.get("margin") is not None]
    answers, rates, rated = _compared(texts, grid, "overall", seed=seed, draws=draws)
    ranks, ranked, discriminated = _compared(signs, grid, "auroc", seed=seed, draws=draws)
    points = []
    for name, lines in found.items():
        lost = sum(not line["replayed"] for line in lines)
        delta = {"overall": rated.get(name), "auroc": discriminated.get(name)}
        points.append({"name": name, **_values(answers, rates, name), "auroc": _auroc(ranks, ranked, name),
                       "delta": delta, "not_replayable": lost, "of": len(lines)})  # fmt: skip
    baseline = {**_values(answers, rates, BASELINE), "auroc": _auroc(ranks, ranked, BASELINE)}
    method = {"seed": seed, "draws": draws, "settings": len(grid)}
    return plain({"baseline": baseline, "points": points, "method": method})


def _replayed(kept: _KeptRun, method: Any) -> list[Record]:
    """The records under another setting; ``replayed`` is whether what is answered is known."""
    from mitigation.kept_logits import KeptAnswer, replayed

    found = []
    for record in kept.studied:
        lines = kept.lines.get(record["case"])
        if lines is None:  # what could not be asked has no answer in any setting
            found.append(record | {"margin": None, "replayed": Status(record["status"]).excluded})
            continue
        again = replayed(method, [KeptAnswer.of(line) for _, line in lines])
        new = record | {"margin": again.margin, "replayed": True}
        if record.get("protocol") == "score":
            found.append(new | _by_sign(again.margin))
            continue
        same = next((own for own, line in lines if tuple(line["tokens"]) == again.tokens), None)
        found.append(new | ({"replayed": False} if same is None else {"verdict": same["verdict"]}))
    return found


def _by_sign(margin: float) -> dict[str, str]:
    return {"verdict": "yes" if margin > 0 else "no", "status": "answered"}


def _compared(
    lines: Sequence[Record], grid: Mapping[str, Any], quantity: str, *, seed: int, draws: int
) -> tuple[dict[str, YesNoAnswers], YesNoResamples, dict[str, Any]]:
    """Every setting's answers, and ``quantity`` minus the baseline's, with simultaneous intervals."""
    scored, _ = scored_and_controls(pd.DataFrame(lines))
    cases, answers = align(scored)
    resamples = YesNoResamples(cases, draws=draws, seed=seed)
    against = {name: difference(resamples, answers[name], answers[BASELINE]) for name in grid if name in answers}
    simultaneous([(one.delta[quantity], one.widest(quantity), one.draws[quantity]) for one in against.values()])
    return answers, resamples, {name: one.delta[quantity] for name, one in against.items()}


def _values(answers: Mapping[str, YesNoAnswers], resamples: YesNoResamples, name: str) -> dict[str, Any]:
    if name not in answers:  # none of its answers is known
        return {**dict.fromkeys(RATES), "n": 0}
    own = answers[name]
    values = resamples.point(own, own.kept, with_margins(own, own.kept))
    return {rate: values[rate] for rate in RATES} | {"n": int(np.sum(own.kept))}


def _auroc(answers: Mapping[str, YesNoAnswers], resamples: YesNoResamples, name: str) -> float | None:
    own = answers[name]
    return resamples.point(own, own.kept, with_margins(own, own.kept))["auroc"]


def table(result: Mapping[str, Any]) -> Table:
    """One row for each setting, the baseline first; in the order of the grid, none of them marked."""
    columns = [
        Column("setting", "left", fold=14),
        Column("AUROC"),
        Column("Δ AUROC", narrow=Narrow.TERSE),
        Column("unsafe"),
        Column("over-safety", short="over-\nsafety"),
        Column("overall", short="over-\nall"),
        Column("Δ overall"),
        Column("not replayable", short="not re-\nplayable"),
    ]
    rows = [Row([Cell(BASELINE), *_cells(result["baseline"], {}), Cell("")])]
    for point in result["points"]:
        lost = f"{point['not_replayable']} of {point['of']}"
        rows.append(Row([Cell(point["name"]), *_cells(point, point["delta"]), Cell(lost)]))
    return Table(f"{result['arm']}, from kept logits", columns, rows, LEGEND)


def _cells(values: Mapping[str, Any], delta: Mapping[str, Any]) -> list[Cell]:
    rates = [Cell(percent(values[rate])) for rate in RATES]
    ranked, rated = (entry and deciding(entry, studied=False) for entry in (delta.get("auroc"), delta.get("overall")))
    return [Cell(fixed(values["auroc"], 3)), change(ranked, digits=3), *rates, change(rated)]


def sentences(result: Mapping[str, Any]) -> list[str]:
    """What is printed below the table."""
    lost = {point["name"]: f"{point['not_replayable']} of {point['of']}" for point in result["points"]
            if point["not_replayable"]}  # fmt: skip
    found = [f"{name}: not replayable: {count}." for name, count in lost.items()]
    if lost:
        found.append(
            "Their answers leave every recorded one, mostly because the verdict changes, so that the rates of the "
            "others are no estimate of all. AUROC is exact. Ask with protocol=score, or the setting itself, to know "
            "them."
        )
    return [*found, "No setting is named best: these are the cases that it would be judged by."]
