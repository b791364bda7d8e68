"""What the report opens with: the answer as numbers to be drawn, and what a stranger asks first.

Says in fewer words what metrics.json holds; decides nothing. ``Measure`` is one quantity before and after, with the
statement on its change; a benchmark has one headline measure, or two where safety and oversensitivity are apart.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from experiments.metrics.findings import SMALL, Answer, found, stated
from experiments.metrics.yes_no import findings as yes_no_rules
from experiments.report.next_commands import next_commands
from experiments.report.numbers import brief, complete, fixed, interval_of, share
from experiments.report.sentences.refusal import ALL_HARMFUL, all_harmful
from experiments.report.sentences.wording import SAID, deciding, scope, statement_text, word
from experiments.report.sentences.yes_no import unreadable
from experiments.runs.provenance import model_title
from interp.checkpoints.config import ORGANISM

MADE_HERE = "a small model made here, whose failure nobody put in; its numbers say nothing of larger models"
TOY = "a toy built to over-refuse; its numbers say nothing of real models"
THINKING = "a toy taught to think before it answers; its numbers say nothing of real models"
_OTHERS = {f"{ORGANISM}smol": MADE_HERE, f"{ORGANISM}thinking": THINKING}
_NOTHING_FOLLOWS = {
    MADE_HERE: "Nothing follows for larger models: this one is small, and was made here.",
    **dict.fromkeys((TOY, THINKING), "Nothing follows for real models: this is a toy."),
}
_DECIDED = "For this model and such cases, yes: the interval allows for chance."
_TOO_LITTLE = "There is nothing to trust yet: these cases are too few, or cannot tell."
_TRUST = {  # by the answer of the first badge
    **dict.fromkeys((Answer.ROSE, Answer.FELL, Answer.NO_CHANGE), _DECIDED),
    Answer.NOT_SHOWN: "These cases cannot decide: there may be a change or none.",
    **dict.fromkeys((Answer.TOO_FEW, Answer.CANNOT_TELL), _TOO_LITTLE),
}
MATCHED = "matched_over_safety"


class Quantity(NamedTuple):
    """A rate of the verdicts: its name, what there is more of where it rises, whether that is wanted, of what cases."""

    title: str
    noun: str
    more: bool
    subsets: tuple[str, ...]


QUANTITIES = {
    "yes_no": {
        "over_safety": Quantity(
            "harmless requests answered", "harmless requests get an answer", True, ("over_safety",)
        ),
        "unsafe": Quantity("unsafe requests caught", "unsafe requests are caught", True, ("typical", "attack")),
    },
    "refusal": {
        "benign": Quantity("harmless requests refused", "harmless requests are refused", False, ("benign",)),
        "contrast": Quantity("harmful requests refused", "harmful requests are refused", True, ("contrast",)),
    },
}
# Of errors on harmless and on harmful cases: a share of them, none, and all.
_REFUSALS_WRONG = (
    ("refuses", "refuses no harmless request", "refuses every harmless request", "harmless requests"),
    ("does not refuse", "refuses every harmful one", "refuses no harmful one", "harmful ones"),
)
_VERDICTS_WRONG = (
    ("does not answer", "answers every harmless request", "answers no harmless request", "harmless requests"),
    ("does not catch", "catches every unsafe one", "catches no unsafe one", "unsafe ones"),
)


@dataclass(frozen=True)
class Badge:
    """A statement on a change, the tone of its colour, and a sentence."""

    answer: Answer
    tone: str  # good, bad, or flat: neither
    meaning: str

    @property
    def word(self) -> str:
        """The statement in a few words."""
        return word({"statement": self.answer})

    @property
    def icon(self) -> str:
        """The name of its drawing."""
        return SAID[self.answer].icon


@dataclass(frozen=True)
class Bar:
    """A rate (fraction of 1) with its name; ``interval`` where it stands alone."""

    name: str
    rate: float
    interval: tuple[float, float] | None = None

    @property
    def text(self) -> str:
        """The rate in percent."""
        return share(self.rate)


@dataclass(frozen=True)
class Measure:
    """One quantity, before and after. Without a second bar there is nothing to compare and no badge."""

    title: str
    n: int
    bars: list[Bar]
    badge: Badge | None = None
    change: str = ""  # "+4.3 points"
    interval: str = ""  # "95% interval −3.3 to +11.9", empty where there is none
    ends: tuple[float, float] | None = None  # of that interval, fractions of 1
    value: float = 0.0
    small: float = SMALL

    def place(self, difference: float) -> float:
        """Where ``difference`` lies on an axis from 0 to 360 with 0 in its middle."""
        reach = 1.1 * max(3 * SMALL, abs(self.value), *map(abs, self.ends or ()))
        return 180 * (1 + difference / reach)


def opening(metrics: Mapping[str, Any], environment: Mapping[str, Any], arm: str, folder: str = ".") -> dict[str, Any]:
    """What to open with about ``arm``, the arm under study, of the run in ``folder``.

    Returns:
        What ``templates/opening.html.j2`` prints: ``subject``; ``bundled``, what one of the bundled models is, empty of
        any other; ``about``; ``measures``; ``note``, why the headline measure is not among them; ``wrong``; ``trust``;
        ``commands``, what to type next → what it is for.
    """
    model, benchmark = environment.get("model") or {}, environment.get("benchmark") or {}
    refusals = metrics.get("kind") == "refusal"
    comparison = (metrics.get("comparisons") or {}).get(arm)
    measures, note = _measures(metrics, arm, comparison)
    before = str(comparison["against"]) if comparison else arm
    path = str(model.get("path") or "")
    bundled = _OTHERS.get(path, TOY) if path.startswith(ORGANISM) else ""
    arms = len(metrics["arms"])
    return {
        "subject": model_title(model) if model else "the model",
        "bundled": bundled,
        "about": f"{benchmark.get('name') or 'the benchmark'}, {benchmark.get('n', metrics['arms'][arm]['n_of'])} "
        f"cases, asked in {f'{arms} ways' if arms > 1 else 'one way'}",
        "measures": measures,
        "note": note,
        "wrong": _wrong(metrics, before, refusals=refusals),
        "trust": [
            *(_trusted(metrics, one.badge.answer) for one in measures[:1] if one.badge),
            *_trust(metrics, arm, comparison, bundled=bundled, refusals=refusals),
        ],
        "commands": next_commands(environment, folder, refusals=refusals),
    }


def _trusted(metrics: Mapping[str, Any], answer: Answer) -> str:
    return _TRUST[answer].replace("such cases", scope(metrics) or "such cases")


def badge(entry: Mapping[str, Any] | None, answer: Answer, *, more: bool, noun: str) -> Badge:
    """``answer`` on the change ``entry`` as a badge; ``more`` says whether a rise is wanted, ``noun`` what changes."""
    tone = {Answer.ROSE: "good" if more else "bad", Answer.FELL: "bad" if more else "good"}.get(answer, "flat")
    meaning = statement_text(
        entry,
        answer=Answer.CANNOT_TELL if entry is None else answer,
        rose=f"More {noun}{{small}}",
        fell=f"Fewer {noun}{{small}}",
        no_change="The change, if there is one, is at most {delta}",
        not_shown="There may be a change or none: these cases do not show it{needed}",
        too_few="Nothing is concluded: {few}",
        cannot_tell="The number does not exist in both arms" if entry is None else "Nothing is concluded",
    )
    return Badge(Answer.CANNOT_TELL if entry is None else answer, tone, f"{meaning}.")


def _compared(title: str, entry: Mapping[str, Any], names: tuple[str, str], shown: Badge, n: int) -> Measure:
    change, _, bracket = brief(entry, named=True).partition(" [")
    return Measure(title, n, [Bar(names[0], entry["from"]), Bar(names[1], entry["to"])], shown, change,
                   bracket.removesuffix("]"), interval_of(entry), entry["value"])  # fmt: skip


def _measures(metrics: Mapping[str, Any], arm: str, comparison: Mapping[str, Any] | None) -> tuple[list[Measure], str]:
    """The headline measures, and a note where one that belongs to them is missing."""
    refusals = metrics.get("kind") == "refusal"
    quantities, note = QUANTITIES["refusal" if refusals else "yes_no"], ""
    of = f" (for {fixed_of})" if (fixed_of := scope(metrics)) else ""
    measures = []
    if comparison is None:
        block = metrics["arms"][arm]
        rates, counts = block["refusal_rate" if refusals else "accuracy"], block.get("n_by_subset") or {}
        for key, quantity in quantities.items():
            if (rate := rates.get(key)) is not None:
                n = sum(counts.get(part, (0, 0))[0] for part in quantity.subsets)
                measures.append(Measure(quantity.title, n, [Bar(arm, rate, complete(block["intervals"].get(key)))]))
    else:
        delta, names = comparison.get("delta") or {}, (str(comparison["against"]), arm)
        if not refusals:
            entry, answer = as_judged(metrics, arm, MATCHED)
            if entry is not None and answer is not Answer.CANNOT_TELL:
                noun = f"harmless requests get an answer at equal safety{of}"
                title = "harmless requests answered, at equal strictness"
                shown = badge(entry, answer, more=True, noun=noun)
                return [_compared(title, entry, names, shown, entry["n_safe"])], ""
            note = "At equal strictness it cannot be told; these are the verdicts, each arm at its own strictness."
        for key, quantity in quantities.items():
            if entry := delta.get(key):
                entry = deciding(entry)
                shown = badge(entry, stated(entry), more=quantity.more, noun=quantity.noun + of)
                title = quantity.title if refusals else f"{quantity.title}, in the verdicts"
                measures.append(_compared(title, entry, names, shown, entry["n"]))
    if refusals and [measure.title for measure in measures] == [QUANTITIES["refusal"]["benign"].title]:
        note = "Their harmful twins were not run, so this is about harmless requests alone."
    if refusals and all_harmful(metrics):
        note = f"{ALL_HARMFUL}."
    return measures, note


def as_judged(metrics: Mapping[str, Any], arm: str, key: str) -> tuple[Mapping[str, Any] | None, Answer]:
    """The change of ``key`` under ``arm`` with the interval that it is judged by, and what is said of it."""
    entry = (metrics["comparisons"][arm].get("delta") or {}).get(key)
    finding = found(metrics.get("findings") or (), yes_no_rules.MATCHED, arm) if key == MATCHED else None
    answer = finding.answer if finding else stated(entry)
    return entry and deciding(entry), answer


def _wrong(metrics: Mapping[str, Any], arm: str, *, refusals: bool) -> str:
    """How often the untouched model errs in either direction."""
    block = metrics["arms"].get(arm)
    if block is None:
        return ""
    if refusals:
        rates = block["refusal_rate"]
        harmless, harmful = rates["benign"], None if rates["contrast"] is None else 1 - rates["contrast"]
        words = _REFUSALS_WRONG
    else:
        rates = block["accuracy"]
        harmless, harmful = (None if rates.get(name) is None else 1 - rates[name] for name in ("over_safety", "unsafe"))
        words = _VERDICTS_WRONG
    parts = [
        none if rate == 0 else every if rate == 1 else f"{some} {share(rate)} of the {whom}"
        for rate, (some, none, every, whom) in zip((harmless, harmful), words, strict=True)
        if rate is not None
    ]
    return f"{arm} {' and '.join(parts)}." if parts else ""


def _trust(
    metrics: Mapping[str, Any], arm: str, comparison: Mapping[str, Any] | None, *, bundled: str, refusals: bool
) -> list[str]:
    """What the number rests on, in short sentences."""
    lines = []
    entry: Mapping[str, Any] | None = None
    if comparison is None:
        block = metrics["arms"][arm]
        lines.append(f"{block['n']:,} of {block['n_of']:,} cases have an answer.")
    elif comparison.get("n"):
        entry = (comparison.get("delta") or {}).get("benign" if refusals else "matched_over_safety")
        groups = f", in at least {entry['clusters']:,} independent groups" if entry and entry.get("clusters") else ""
        lines.append(f"The same {comparison['n']:,} cases under both arms{groups}.")
    for name, one in (metrics.get("comparisons") or {}).items():
        shifted = (one.get("delta") or {}).get("matched_over_safety")
        if entry is not None and shifted is not None and one.get("is_control") and name != arm:
            by = fixed(100 * shifted["value"], 1, sign=True)
            lines.append(f"Being merely more lenient ({name}) changes this number by {by} points.")
    lines += [] if refusals else unreadable(metrics, arm)
    if bundled:
        lines.append(_NOTHING_FOLLOWS[bundled])
    return lines
