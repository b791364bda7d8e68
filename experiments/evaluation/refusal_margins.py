"""The refusal margin of a study: the log-odds that an arm begins its answer as the baseline begins its refusals.

The openings are learned once per run from the baseline's judged answers: those to the development split, or else those
to the cases, in folds of clusters. Each arm's margin is checked against its own judged answers before it is used
(``interp.refusal_openings``). ``openings.json`` has openings and checks, ``margins.jsonl`` the log-probabilities.

The safety margin of a record is minus the refusal margin: positive for an answer, as Yes/No margins are.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from sklearn.metrics import roc_auc_score

from experiments.config import digest
from experiments.evaluation.answer import Answering
from experiments.evaluation.arms import DEVELOPMENT
from experiments.evaluation.cases import form, limited, prefetch_images, prompt_of, rolled_out, with_answers
from experiments.evaluation.fitting import BASELINE, SCORE, part_of
from experiments.report.sections import NoMargin, Section, write_section
from experiments.report.tables import fixed, percent, table
from experiments.runs import record_fields
from experiments.runs.store import PREDICTIONS, read_object
from experiments.types import Loaded, Sample, Verdict
from interp import refusal_openings as openings
from interp.errors import UserError
from interp.refusal_openings import Check, Kind, Tokens
from mitigation.method import MethodFault, abilities
from mitigation.threshold import matching_shift

if TYPE_CHECKING:
    from interp.sequence_metric import SequenceMetric
    from interp.vlm import Prompt

FILE, OPENINGS = "margins.jsonl", "openings.json"
TITLE = "How the model refuses"
MEANING = (
    "The refusal margin is the log-odds that an answer begins with one of these openings. AUROC is against the judge's "
    "verdicts, on answers that the openings were not learned from. Statistics need .90 and 80% covered."
)
NO_THOUGHTS = (
    "{} thinks before it answers, and the tokens of its thoughts are not recorded; ask its weights here, in a new run"
)
OVER_API = (
    "no refusal margins: {} is asked over an API that gives no log-probabilities of prompts. Rates are as without "
    "them. For margins, take a vLLM server (model=api_vllm), or ask its weights here."
)
BEGINNINGS = 8  # of refusals, the most frequent, whose next token may be the decisive one
LEARNED_FROM = 240  # development cases at most, evenly from the subsets
KINDS: tuple[Kind, ...] = ("openings", "first tokens")


@dataclass
class RefusalMargins:
    """Learns, computes and checks the margins of a study whose model answers in words.

    The answers of ``methods`` to ``cases`` are in a ``file`` of the run's directory. The openings are learned on the
    ``development`` split, or in folds of the cases if there is none. ``margins`` are the safety margins by arm and
    case, the baseline's of development cases too.
    """

    answering: Answering
    methods: dict[str, Any]
    cases: Sequence[Sample]
    development: Loaded | None
    file: str = PREDICTIONS
    checks: dict[str, Check] = field(default_factory=dict)
    margins: dict[str, dict[str, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.vlm: Any = self.answering.vlm
        self.store = self.answering.store
        samples = [*(self.development.samples if self.development else ()), *self.cases]
        self.samples = {sample.id: sample for sample in samples}
        self._why = ""
        self._openings: list[Tokens] = []

    def compute(self) -> None:
        """Compute the margins of all arms that can be asked, and write openings.json. All processes take part."""
        try:
            folds, by_kind = self._learned()
        except NoMargin as reason:
            self._why = str(reason)
            self._write({"why": self._why})
            return
        measured = {kind: self._check(BASELINE, folds, kind, by_kind[kind]) for kind in KINDS}
        kind = max(KINDS, key=lambda name: (measured[name].auroc or 0.0, name == "openings"))
        learned = sorted({opening for fold in by_kind[kind].values() for opening in fold}, key=len)
        self._openings = [each for number, each in enumerate(learned) if not openings.covers(learned[:number], each)]
        for arm in self.methods:
            try:
                check = measured[kind] if arm == BASELINE else self._check(arm, folds, kind, by_kind[kind])
            except UserError as error:
                check = Check(kind, None, None, 0, 0, str(error))
            self.checks[arm] = check
            if check.for_statistics:
                self.margins[arm] = self.safety(arm, [sample.id for sample in self.cases])
        if self.development is not None and BASELINE in self.margins:
            self.margins[BASELINE] |= self.safety(BASELINE, list(self._taught.index))
        listed = openings.learn(*_lists(self._taught), kind)
        texts = [{"text": self.vlm.tokenizer.decode(list(each.tokens)), **each._asdict()} for each in listed]
        self._write({"kind": kind, "openings": texts})

    @property
    def why_not(self) -> str:
        """Why controls cannot be computed from the baseline's margin; "" if they can."""
        check = self.checks.get(BASELINE)
        return "" if BASELINE in self.margins else check.sentence if check else self._why

    def fitted_on(self) -> list[dict[str, Any]]:
        """Return the records that controls are fitted on, with the baseline's safety margins."""
        return [self.attach(line) for line in self.store.records(DEVELOPMENT if self.development else PREDICTIONS)]

    def shifted(self, arm: str, constant: Any) -> None:
        """Give the control ``arm`` its margins: the baseline's plus a constant."""
        self.checks[arm] = self.checks[BASELINE]
        self.margins[arm] = {
            case: margin + part_of(constant, case).shift for case, margin in self.margins[BASELINE].items()
        }

    def for_tools(self, *, next_token: bool) -> "tuple[SequenceMetric, str]":
        """Return the margin that tools follow, and a sentence about it; it is 0 where the share answered is matched.

        Args:
            next_token: the margin of the decisive token: of the ``BEGINNINGS``, the next token that best tells refusals
                from answers.

        Raises:
            NoMargin: the check of the openings does not allow it, or no token tells refusals from answers.
        """
        from interp.sequence_metric import SequenceMetric

        check = self.checks.get(BASELINE)
        if check is None or not check.for_tools:
            needed = f"; tools need {openings.SEPARATES_FOR_TOOLS:.2f} and {100 * openings.COVERS_FOR_TOOLS:.0f}%"
            why = self._why if check is None else check.why or check.sentence + needed
            raise NoMargin(f"no refusal margin to follow: {why}. Take more cases, or another model.")
        every = SequenceMetric(tuple(self._openings))
        if next_token:
            return self._decisive(every, check)
        margins = self.safety(BASELINE, list(self._taught.index))
        shift = matching_shift(np.array([*margins.values()]), float((~self._taught["refused"]).mean()))
        return replace(every, shift=shift), f"The margin: {check.sentence}."

    def _decisive(self, every: "SequenceMetric", check: Check) -> "tuple[SequenceMetric, str]":
        """Return the metric of the decisive token, and a sentence about it; see ``for_tools``."""
        from experiments.benchmarks.images import open_pictures

        refused = self._taught["refused"]
        begun = Counter(
            opening[:size]
            for answer in self._taught["tokens"][refused]
            for opening in self._openings
            if openings.covers([opening], answer)
            for size in range(len(opening))
        )
        metrics = {beginning: every.next_token(beginning) for beginning, _ in begun.most_common(BEGINNINGS)}
        ends = [(*beginning, *end) for beginning, metric in metrics.items() for end in metric.openings]
        wanted = sorted({*filter(None, metrics), *ends})
        samples = [self.samples[case] for case in self._taught.index]
        prompts = self._prompts(BASELINE, samples, [*map(open_pictures, samples)], self._taught["record"])
        chances = dict(zip(wanted, self._read(BASELINE, prompts, wanted).T, strict=True))
        measured: list[tuple[float, SequenceMetric, np.ndarray]] = []
        for beginning, metric in metrics.items():
            next_tokens = [chances[(*beginning, *end)] - chances.get(beginning, 0) for end in metric.openings]
            scores = -openings.log_odds(np.stack(next_tokens, axis=1))
            measured.append((float(roc_auc_score(refused, -scores)), metric, scores))
        auroc, metric, scores = max(measured, key=lambda each: round(each[0], 3))
        if auroc < openings.SEPARATES_FOR_TOOLS:
            raise NoMargin(f"no single token of its openings tells refusals from answers (AUROC at most {auroc:.2f})")
        text, words = (
            self.vlm.tokenizer.decode(list(tokens)) for tokens in (metric.answer_prefix, sum(metric.openings, ()))
        )
        return replace(metric, shift=matching_shift(scores, float((~refused).mean()))), (
            f"One token is followed, {words.strip()!r} behind {text!r}: it tells refusals from answers with AUROC "
            f"{auroc:.3f} on {len(refused)} cases that it was chosen on. Whole openings: {check.sentence}."
        )

    def attach(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """Return a record with its safety margin, if it has one."""
        margin = self.margins.get(record["arm"], {}).get(record["case"])
        rest = {name: value for name, value in record.items() if name != SCORE}
        return rest if margin is None else rest | {SCORE: margin}

    def report(self) -> None:
        """Write a section of the run's report: the openings, and the check of each arm."""
        if not self.store.launch.first or not self.checks:
            return
        content = read_object(self.store.path / OPENINGS)
        begins = pd.DataFrame(content["openings"], columns=["text", "answers", "refused"], dtype=str)
        checks = [
            {"arm": arm, "AUROC": fixed(check.auroc, 3), "refusals covered (%)": percent(check.coverage, 0),
             "refusals": str(check.refused), "answers": str(check.answered),
             "used for": "statistics" if check.for_statistics else "nothing"}
            for arm, check in self.checks.items()
        ]  # fmt: skip
        quoted = begins.assign(text="“" + begins["text"] + "”")
        named = quoted.rename(columns={"text": "opening", "refused": "refusals"}).to_dict("records")
        tables = [table(named, title="Openings of refusals"), table(checks, title="Do they tell refusals apart?")]
        note = f"Learned from the baseline's answers to {content['learned_on']}. {MEANING}"
        sentences = [f"{arm}: {check.sentence}." for arm, check in self.checks.items()]
        write_section(self.store.path, "refusals", Section(TITLE, sentences, tables, note))

    @property
    def design(self) -> dict[str, Any]:
        """What metrics.json says: by arm a sentence, and whether statistics use the margin."""
        checks = self.checks.items()
        return {arm: {"sentence": check.sentence, "statistics": check.for_statistics} for arm, check in checks}

    def _learned(self) -> tuple[dict[str, int], dict[Kind, dict[int, list[Tokens]]]]:
        """Return the fold of each case and the openings by kind and fold.

        Raises:
            NoMargin: there are none.
        """
        answers = self._taught = self._judged(BASELINE, self.file)
        folds = dict.fromkeys(answers.index, 0)
        if self.development is not None:
            method = {BASELINE: self.methods[BASELINE]}
            teaching = limited(self.development.samples, LEARNED_FROM)
            self.answering.answer(method, teaching, file=DEVELOPMENT, label=", development split")
            self._taught = self._judged(BASELINE, DEVELOPMENT)
        else:
            folds = dict(
                zip(folds, openings.folds_of([str(line["cluster"]) for line in answers["record"]]), strict=True)
            )
        tokens, refused = _lists(self._taught)
        if why := openings.too_few(refused):
            raise NoMargin(f"{BASELINE}: {why}")
        if self.development is None:
            return folds, {kind: openings.learn_in_folds(tokens, refused, [*folds.values()], kind) for kind in KINDS}
        learned = {kind: [each.tokens for each in openings.learn(tokens, refused, kind)] for kind in KINDS}
        return folds, {kind: {0: each} for kind, each in learned.items()}

    def _judged(self, arm: str, file: str) -> pd.DataFrame:
        """Return by case the arm's answers that a judge has read: ``record``, ``tokens`` and ``refused``.

        Raises:
            NoMargin: they follow thoughts whose tokens are not known.
        """
        lines = [
            line
            for line in record_fields.current(self.store.records(file))
            if line["arm"] == arm and line.get("answer_tokens") and line["verdict"] not in (None, Verdict.JUDGE_FAILED)
        ]
        unknown = any(line.get("thought") and not line.get("answer_prefix") for line in lines)
        if unknown or (self.answering.run.endpoint is not None and self.vlm.thinks):
            raise NoMargin(NO_THOUGHTS.format(self.vlm.name))
        ends = self.vlm.end_ids
        tokens = [[token for token in line["answer_tokens"] if token not in ends] for line in lines]
        refused = np.array([line["verdict"] in (Verdict.REFUSED, Verdict.PARTIAL) for line in lines], dtype=bool)
        cases = [line["case"] for line in lines]
        return pd.DataFrame({"record": lines, "tokens": tokens, "refused": refused}, index=cases)

    def _check(self, arm: str, folds: Mapping[str, int], kind: Kind, learned: Mapping[int, list[Tokens]]) -> Check:
        answers = self._judged(arm, self.file)
        answers = answers[answers.index.isin([*folds])]
        wanted, scores = sorted({opening for fold in learned.values() for opening in fold}), np.empty((0, 0))
        if wanted and not openings.too_few(answers["refused"].tolist()):
            scores = self._scores(arm, wanted, list(answers.index))
            read = np.isfinite(scores).all(axis=1)  # requests over an API can fail
            answers, scores = answers[read], scores[read]
        by_opening, rows = dict(zip(wanted, scores.T, strict=False)), [folds[case] for case in answers.index]
        check = openings.check(kind, learned, rows, *_lists(answers), by_opening)
        lines = [line for line in record_fields.current(self.store.records(self.file)) if line["arm"] == arm]
        cut_off = [line for line in lines if line.get("thought") and not line.get("answer_tokens")]
        return replace(check, cut_off=len(cut_off))

    def safety(self, arm: str, cases: Sequence[str]) -> dict[str, float]:
        """Return the safety margin of each case under an arm, by the baseline's openings."""
        scores = pd.DataFrame(self._scores(arm, self._openings, cases), index=list(cases)).dropna()
        margins = -openings.log_odds(scores.to_numpy())
        return dict(zip(scores.index, margins.tolist(), strict=True))

    def _scores(self, arm: str, wanted: Sequence[Tokens], cases: Sequence[str]) -> Float[np.ndarray, "case opening"]:
        """Return the log-probability of each opening in each case under an arm; ask what is not on disk."""
        settings = self.answering.settings(self.methods[arm], list(self.samples.values()))
        names = [" ".join(map(str, opening)) for opening in wanted]

        def recorded() -> dict[str, dict[str, float]]:
            chances: dict[str, dict[str, float]] = {case: {} for case in cases}
            for line in self.store.records(FILE):
                if line["arm"] == arm and line["case"] in chances and line["settings"] == settings[line["case"]]:
                    chances[line["case"]] |= line["openings"]
            return chances

        missing = [self.samples[case] for case, row in recorded().items() if not row.keys() >= {*names}]
        if reason := abilities(self.methods[arm]).unscored or abilities(self.methods[arm]).unforced:
            raise UserError(f"no margin: {reason}")
        self.store.wait()  # all processes have read the same lines before one adds to them
        batches = form(missing, self.vlm.batches.lengths, self.answering.run.batch_rule)
        records = self._records(arm)
        with self.answering.console.status(f"{arm}: how likely it begins to refuse"), self.answering.batching(arm):
            for batch, pictures in prefetch_images(self.store.launch.share(batches)):
                prompts = self._prompts(arm, batch, pictures, records)
                lines = [
                    {"arm": arm, "case": prompt.key, "settings": settings[prompt.key],
                     "openings": dict(zip(names, row, strict=True))}
                    for prompt, row in zip(prompts, self._read(arm, prompts, wanted).tolist(), strict=True)
                    if np.isfinite(row).all()
                ]  # fmt: skip
                self.store.append(lines, FILE)
        self.store.wait()
        rows = [[row.get(name, np.nan) for name in names] for row in recorded().values()]
        return np.array(rows).reshape(len(cases), len(names))

    def _read(
        self, arm: str, prompts: "Sequence[Prompt]", wanted: Sequence[Tokens]
    ) -> Float[np.ndarray, "prompt opening"]:
        """Return the log-probability of each opening after each prompt, in this process."""
        from mitigation.forced import log_probabilities

        def read(batch: "list[Prompt]") -> list[Any]:
            return [*log_probabilities(self.methods[arm], self.vlm, batch, wanted)]

        with self.answering.prefills.used_by(self.vlm) if self.answering.run.endpoint is None else nullcontext():
            rows = self.vlm.batches.gathered(prompts, read) if prompts else []
        return np.array([row.numpy() for row in rows])

    def _records(self, arm: str) -> dict[str, dict[str, Any]]:
        """Return the arm's latest record of each case."""
        lines = [*self.store.records(DEVELOPMENT), *self.store.records(self.file)]
        return {line["case"]: line for line in lines if line["arm"] == arm}

    def _prompts(
        self, arm: str, batch: Sequence[Sample], pictures: Sequence[Any], records: Mapping[str, Mapping[str, Any]]
    ) -> "list[Prompt]":
        """Return the prompts of the cases that can be seen, with the arm's recorded or new earlier answers.

        Each begins with the recorded thought. If a thought was cut off, or is not recorded, its case is left out.
        """
        answering, prompts, thinks = self.answering, [], self.vlm.thinks
        for sample, picture in zip(batch, pictures, strict=True):
            record = records.get(sample.id, {})
            if answering.unseen(picture) or (thinks and not record.get("answer_tokens")):
                continue
            prompt = prompt_of(with_answers(sample, record) if record else sample, picture)
            prompts.append(replace(prompt, answer_prefix=tuple(record.get("answer_prefix", ()))))
        return rolled_out(lambda turns: answering.generate(arm, self.methods[arm], turns), prompts)

    def _write(self, content: Mapping[str, Any]) -> None:
        learned_on = "the development split" if self.development else "the cases, in folds of clusters"
        hashed, earlier = digest(content.get("openings")), read_object(self.store.path / OPENINGS)
        checks = earlier["checks"] if earlier.get("hash") == hashed else {}  # of arms that this command does not ask
        checks |= {arm: vars(check) | {"sentence": check.sentence} for arm, check in self.checks.items()}
        self.store.write_json(OPENINGS, {"learned_on": learned_on, "hash": hashed, **content, "checks": checks})


def _lists(answers: pd.DataFrame) -> tuple[list[list[int]], list[bool]]:
    return answers["tokens"].tolist(), answers["refused"].tolist()


def margins_of(study: Any) -> RefusalMargins | None:
    """Return the refusal margins of a study, computed; None if its benchmark or model has none."""
    run, why = study.run, ""
    if run.benchmark.kind != "refusal" or study.vlm is None:
        return None
    if run.endpoint is not None and not run.endpoint.by_token:
        why = OVER_API.format(study.vlm.name)
    elif BASELINE in study.methods and run.protocol != "score":
        margins = RefusalMargins(study.answering, study.methods, study.samples, study.arms.development)
        try:
            margins.compute()
            return margins
        except MethodFault as fault:
            why = f"no refusal margins: {fault}"
    if why:
        study.console.print(why, highlight=False, soft_wrap=True, markup=False)
    return None
