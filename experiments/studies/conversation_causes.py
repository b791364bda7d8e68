"""``+exp=conversation_causes``: which turn or picture of a conversation carries the difference from its twin.

The twins of a pair are a safe and an unsafe conversation of the same form. One part (a turn's text, a picture, an
earlier answer) is exchanged for the twin's part, in both orders. Then the margin is measured again. The share of the
difference in margin that comes with the part is its interchange effect (Vig et al. 2020, arXiv 2004.12265), by ordinary
prompts. As a control, the part comes from another conversation with the same label. This keeps the side and changes the
words or the picture. Importing this module loads neither torch nor transformers.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
from rich.console import RenderableType

from experiments.benchmarks.images import open_pictures
from experiments.config import Run
from experiments.evaluation import study
from experiments.evaluation.analyses import Analysis
from experiments.evaluation.case_batches import prompt_of
from experiments.evaluation.looking_inside import MOST_DRAWS, Presented, followed, look_inside
from experiments.evaluation.validated_run import validate
from experiments.metrics.bootstrap import ratios
from experiments.metrics.claims import HIGHER, LOWER, claim_of
from experiments.report.figures import Guide, Mark, points
from experiments.report.sections import Section, SectionFigure
from experiments.report.tables import pivot, unit
from experiments.report.text import lines
from experiments.runs.results_table import Results, Row, row
from experiments.studies.questions import check_first_token, check_margins, check_sizes
from experiments.types import Sample
from interp.errors import UserError

if TYPE_CHECKING:
    from interp.prompt import Prompt
    from interp.vlm import VLM

NAME = "conversation_causes"
TITLE = "Which turn, which picture?"
SAFE = ("yes", "comply")
CONTROL = "same label"  # the rule of rows whose part comes from another conversation with the same label
LEAST = 2  # clusters of a form, below which nothing is measured
unit("conversation_gap", 2)

Places = Mapping[str, Sequence[tuple[int, int]]]
"""The parts of a prompt by name (``user:1``, ``image:2``): turns and places in them, from 0."""


@dataclass(frozen=True)
class ConversationCauses:
    """The task, on any benchmark with pairs, by margins of Yes and No or of refusals.

    ``pairs`` is how many pairs are measured (None: all).

    Raises:
        UserError: ``pairs`` is less than 2.
    """

    pairs: int | None = None

    def __post_init__(self) -> None:
        check_sizes(self, pairs=2)

    def __call__(self, run: Run) -> None:
        """Answer what is missing, exchange the parts, and print what each carries.

        Raises:
            UserError: the benchmark has no margin or no pairs, or the model cannot be used.
        """
        alone = study.baseline_only(check_margins(run))
        validated = validate(alone)
        self._pairs(validated.complete.samples, run)  # refuse a benchmark without pairs
        with study.open_study(alone, validated=validated) as work:
            check_first_token(work.vlm, "+exp=conversation_causes")
            work.answer_all()
            work.conclude([Analysis(NAME, "no part was exchanged", self._examined)])

    def _pairs(self, samples: Sequence[Sample], run: Run) -> list[tuple[Sample, Sample]]:
        """Return (unsafe, safe) conversations."""
        both: dict[str, dict[bool, Sample]] = {}
        for sample in samples:
            if sample.pair:
                both.setdefault(sample.pair, {})[sample.gold in SAFE] = sample
        pairs = [(twins[False], twins[True]) for twins in both.values() if len(twins) == 2]
        if len(pairs) < LEAST:
            raise UserError(
                f"benchmark {run.benchmark.name} has {len(pairs)} pairs of a safe and an unsafe conversation; the "
                "study exchanges their parts; take one with pairs, such as iconworld with split=conversations"
            )
        return pairs if self.pairs is None else random.Random(run.seed).sample(pairs, min(self.pairs, len(pairs)))

    def _examined(self, work: study.Study) -> list[RenderableType]:
        draws = min(work.run.draws, MOST_DRAWS)

        def prompt(sample: Sample) -> "Prompt":
            return prompt_of(sample, open_pictures(sample))

        def examine() -> tuple[dict[str, Any], list[Row]]:
            twins = [Twins(prompt(unsafe), prompt(safe), safe.cluster) for unsafe, safe in pairs]
            return causes(work.vlm, twins, seed=work.run.seed, draws=draws)

        def present(details: dict[str, Any], results: Results) -> Presented:
            sentences, notes = (
                lines(NAME, part=part, details=details, results=results) for part in ("answers", "notes")
            )
            return Section(TITLE, [*sentences, *seen.notes], tables(results), note=" ".join(notes)), figures(results)

        with followed(work) as seen:
            pairs = self._pairs(seen.samples, work.run)
            samples = [sample for pair in pairs for sample in pair]
            return look_inside(work, NAME, asdict(self) | {"draws": draws}, samples, examine, present,
                               status="parts of conversations, one by one")  # fmt: skip


class Twins(NamedTuple):
    """An unsafe and a safe conversation, and the cluster of both."""

    unsafe: "Prompt"
    safe: "Prompt"
    cluster: str


def causes(
    vlm: "VLM", pairs: Sequence[Twins], *, seed: int = 0, draws: int = MOST_DRAWS
) -> tuple[dict[str, Any], list[Row]]:
    """Return what each part carries of the difference between twins: details, and rows of the results table.

    Pairs that differ in the same parts are measured together. A part's share is Σ moved / Σ gap over pairs, with
    intervals over clusters.
    """
    forms: dict[str, list[Twins]] = {}
    absent = 0
    for twins in pairs:
        names = differing(twins)
        members = forms.setdefault(" + ".join(names), []) if names else []
        if not names or (members and parts_of(members[0].safe) != parts_of(twins.safe)):
            absent += 1
        else:
            members.append(twins)
    small = {form: len(members) for form, members in forms.items() if len({each.cluster for each in members}) < LEAST}
    forms = {form: members for form, members in forms.items() if form not in small}
    rows = [each for form, members in forms.items() for each in _of_form(vlm, form, members, seed=seed, draws=draws)]
    attention = _attention(vlm, forms, rows, seed, draws)
    details = {"forms": list(forms), "unlike": absent, "small": small}
    return details | {"attention": attention}, rows


def parts_of(prompt: "Prompt") -> Places:
    """Return the parts of a conversation by the names of ``interp.segments``."""
    places: dict[str, list[tuple[int, int]]] = {}
    roles, pictures = {"user": 0, "assistant": 0}, 0
    for index, turn in enumerate(prompt.turns):
        roles[turn.role] += 1
        for number, part in enumerate(turn.parts):
            pictures += not isinstance(part, str)
            name = f"{turn.role}:{roles[turn.role]}" if isinstance(part, str) else f"image:{pictures}"
            places.setdefault(name, []).append((index, number))
    return places


def differing(twins: Twins) -> list[str]:
    """Return the parts in which twins differ; empty if they have other forms."""
    places = parts_of(twins.unsafe)
    if places != parts_of(twins.safe):
        return []
    return [name for name in places if _content(twins.unsafe, places[name]) != _content(twins.safe, places[name])]


def exchanged(prompt: "Prompt", other: "Prompt", name: str) -> "Prompt":
    """Return the prompt with the part ``name`` of ``other``, which has the same form."""
    turns = list(prompt.turns)
    for turn, number in parts_of(prompt)[name]:
        parts = list(turns[turn].parts)
        parts[number] = other.turns[turn].parts[number]
        turns[turn] = replace(turns[turn], parts=tuple(parts))
    images = [image for turn in turns for image in turn.images]
    return replace(prompt, text=turns[-1].text, image=images[0] if images else None, messages=tuple(turns))


def _content(prompt: "Prompt", places: Sequence[tuple[int, int]]) -> list[Any]:
    from interp.pictures import pixels

    parts = [prompt.turns[turn].parts[number] for turn, number in places]
    return [part if isinstance(part, str) else pixels(part) for part in parts]


def _of_form(vlm: "VLM", form: str, pairs: Sequence[Twins], *, seed: int, draws: int) -> Iterator[Row]:
    """Yield the gap, and the share of each part and of its control, of pairs that differ in the same parts."""
    names = form.split(" + ")
    donors = _donors(pairs, seed)
    prompts: list[Prompt] = [prompt for twins in pairs for prompt in twins[:2]]
    for name in names:
        for twins, donor in zip(pairs, donors, strict=True):
            prompts += [exchanged(twins.unsafe, twins.safe, name), exchanged(twins.safe, twins.unsafe, name)]
            prompts += [exchanged(twins.unsafe, donor.unsafe, name), exchanged(twins.safe, donor.safe, name)]
    margins = vlm.batches.scores(prompts).double().numpy()
    unsafe, safe = margins[: 2 * len(pairs)].reshape(-1, 2).T
    changed = margins[2 * len(pairs) :].reshape(
        len(names), len(pairs), 2, 2
    )  # part, pair, twin or control, unsafe or safe
    moved = (changed[..., 0] - unsafe[:, None] + safe[:, None] - changed[..., 1]) / 2
    unit_of = np.unique([twins.cluster for twins in pairs], return_inverse=True)[1]
    gaps = _sums((safe - unsafe)[:, None], unit_of)[:, 0]
    summed = partial(ratios, seed=seed, draws=draws)
    (gap,) = summed(gaps[:, None], np.bincount(unit_of).astype(float))
    told = claim_of(gap, small=None)
    yield row("conversation_gap", subset=form, entry=gap, n=len(pairs), claim=told)
    if told not in (HIGHER, LOWER):
        return  # a share of a difference that is not there has no meaning
    for kind, rule in enumerate(("", CONTROL)):
        shares = summed(_sums(moved[:, :, kind].T, unit_of), gaps)
        for name, share in zip(names, shares, strict=True):
            yield row("conversation_share", arm=name, subset=form, rule=rule, entry=share, n=len(pairs),
                      claim=claim_of(share, small=None))  # fmt: skip


def _donors(pairs: Sequence[Twins], seed: int) -> list[Twins]:
    """Return another conversation of the same form for each, each of them once; from another cluster if possible."""
    order = random.Random(seed).sample(range(len(pairs)), len(pairs))
    order.sort(key=lambda index: pairs[index].cluster)
    largest = max(sum(twins.cluster == each.cluster for twins in pairs) for each in pairs)
    donors = {index: order[(place + largest) % len(order)] for place, index in enumerate(order)}
    return [pairs[donors[index]] for index in range(len(pairs))]


def _sums(values: np.ndarray, unit_of: np.ndarray) -> np.ndarray:
    """Return the sums [unit ratio] of values [pair ratio]."""
    sums = np.zeros((unit_of.max() + 1, values.shape[1]))
    np.add.at(sums, unit_of, values)
    return sums


def _attention(vlm: "VLM", forms: Mapping[str, Sequence[Twins]], rows: list[Row], seed: int, draws: int) -> str:
    """Add rows of the attention that the first token of the answer gives each part; return why it cannot be read.

    It is a mean over layers and heads.
    """
    from interp.attention.record import Queries, record_attention
    from interp.attention.tables import normalised

    for form, pairs in forms.items():
        prompts = [prompt for twins in pairs for prompt in twins[:2]]
        batches = vlm.batches.form(prompts)
        try:
            with record_attention(vlm, queries=Queries.VERDICT) as record:
                for batch in batches:
                    vlm.score([prompts[index] for index in batch], metric=lambda logits: logits[:, 0])
        except UserError as error:
            return str(error)
        masses = normalised(record.masses)
        masses["segment"] = masses["segment"].astype(str).replace({"user": "user:1", "image_0": "image:1"})
        share = masses.pivot_table(index="row", columns="segment", values="mass_without_sink", aggfunc="mean")
        order = [index for batch in batches for index in batch]
        clusters = np.unique([pairs[index // 2].cluster for index in order], return_inverse=True)[1]
        names = [name for name in parts_of(prompts[0]) if name in share and share[name].notna().all()]
        if not names:
            return f"{vlm.name} has no image tokens or texts to attend to"
        sums = _sums(share.loc[range(len(order)), names].to_numpy(), clusters)
        for name, entry in zip(
            names, ratios(sums, np.bincount(clusters).astype(float), seed=seed, draws=draws), strict=True
        ):
            rows.append(row("conversation_attention", arm=name, subset=form, entry=entry, n=len(prompts)))
    return ""


def tables(results: Results) -> list[pd.DataFrame]:
    """Return a table with a line for each part of each form."""
    wanted = results.select(quantity=("conversation_share", "conversation_attention"))

    def heading(each: Row) -> str:
        if each.quantity == "conversation_attention":
            return "attention of the first answer token"
        return "control: the same label" if each.rule else "share of the difference"

    return [pivot(wanted, {"differ in": "subset", "part": "arm"}, heading, title="What each part carries")]


def figures(results: Results) -> dict[str, SectionFigure]:
    """Return the shares of all parts with their intervals."""
    shares = results.select(quantity="conversation_share")
    marks = [Mark(f"{each.arm}{', control' if each.rule else ''}", each.value, each.interval) for each in shares]
    if not marks:
        return {}
    return {
        NAME: SectionFigure(
            points(marks, x="share of the difference in margin", guides=[Guide((0,), (0,))], digits=2),
            "What each part of the conversation carries of the difference between twins.",
            "Shares with 95% intervals over conversations. Controls: from a conversation with the same label.",
        )
    }
