"""``+exp=conversation_causes``: which turn or picture of a conversation carries the difference from its twin.

The twins of a pair are a safe and an unsafe conversation of the same form. One part (a turn's text, a picture, an
earlier answer) is exchanged for the twin's part, in both orders. Then the margin is measured again. The share of the
difference in margin that comes with the part is its interchange effect (Vig et al. 2020, arXiv 2004.12265), by ordinary
prompts. As a control, the part comes from another conversation with the same label. This keeps the side and changes the
words or the picture. Importing this module loads neither torch nor transformers.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
from rich.console import RenderableType

from experiments.config import Run
from experiments.evaluation import study
from experiments.evaluation.attention_log import prompts_of
from experiments.evaluation.looking_inside import MOST_DRAWS, Presented, followed, look_inside
from experiments.metrics.bootstrap import ratios, unit_sums
from experiments.metrics.case_groups import named_pairs
from experiments.metrics.estimates import HIGHER, LOWER, claim_of
from experiments.report.figures import Guide, Mark, points
from experiments.report.sections import Section, SectionFigure
from experiments.report.tables import lines, pivot, unit
from experiments.runs.results_table import Results, Row, row
from experiments.studies.questions import Questions, check_sizes, examine_baseline
from experiments.types import Sample
from interp.errors import UserError

if TYPE_CHECKING:
    from interp.prompt import Prompt
    from interp.vlm import VLM

NAME = "conversation_causes"
TITLE = "Which turn, which picture?"
CONTROL = "same label"  # the rule of rows whose part comes from another conversation with the same label
unit("conversation_gap", 2)

Begin = Callable[[list["Prompt"]], list["Prompt"]]
Summed = Callable[[np.ndarray, np.ndarray], list[dict[str, Any]]]


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
        examine_baseline(run, NAME, "no part was exchanged", self._examined,
                         lambda validated: self._pairs(validated.complete.samples, run))  # fmt: skip

    def _pairs(self, samples: Sequence[Sample], run: Run) -> list[tuple[Sample, Sample]]:
        """Return (unsafe, safe) conversations."""
        pairs = [(samples[unsafe], samples[safe]) for safe, unsafe in named_pairs(samples)]
        if len(pairs) < 2:
            raise UserError(
                f"benchmark {run.benchmark.name} has {len(pairs)} pairs of a safe and an unsafe conversation; the "
                "study exchanges their parts; take one with pairs, such as iconworld with split=conversations"
            )
        return pairs if self.pairs is None else random.Random(run.seed).sample(pairs, min(self.pairs, len(pairs)))

    def _examined(self, work: study.Study) -> list[RenderableType]:
        draws, margins = min(work.run.draws, MOST_DRAWS), work.margins
        attended = f"attention of the {'first answer' if margins is None else 'decisive'} token"

        def begin(prompts: "list[Prompt]") -> "list[Prompt]":
            return prompts if margins is None else margins.for_tools(next_token=True)[0].begin(prompts)

        def examine() -> tuple[dict[str, Any], list[Row]]:
            prompts, clusters = prompts_of(samples), [sample.cluster for sample in samples]
            twins = list(map(Twins, prompts[::2], prompts[1::2], clusters[1::2]))
            return causes(work.vlm, twins, seed=work.run.seed, draws=draws, begin=begin)

        def present(details: dict[str, Any], results: Results) -> Presented:
            told, notes = (lines(NAME, part=part, details=details, results=results) for part in ("answers", "notes"))
            return Section(TITLE, [*told, *seen.notes], tables(results, attended), " ".join(notes)), figures(results)

        with followed(work) as seen:
            pairs = self._pairs(seen.samples, work.run)
            samples = [sample for pair in pairs for sample in pair]
            options = asdict(self) | {"draws": draws, "attention": attended}
            return look_inside(work, NAME, options, samples, examine, present, status="parts, one by one")


class Twins(NamedTuple):
    """An unsafe and a safe conversation, and the cluster of both."""

    unsafe: "Prompt"
    safe: "Prompt"
    cluster: str


def causes(
    vlm: "VLM", pairs: Sequence[Twins], *, seed: int = 0, draws: int = MOST_DRAWS, begin: Begin = list
) -> tuple[dict[str, Any], list[Row]]:
    """Return what each part carries of the difference between twins: details, and rows of the results table.

    Pairs that differ in the same parts are measured together. A part's share is Σ moved / Σ gap over pairs, with
    intervals over clusters. Attention is that of the first token after the prompts that ``begin`` returns.
    """
    forms: dict[str, list[Twins]] = {}
    for twins in pairs:
        forms.setdefault(" + ".join(differing(twins)), []).append(twins)
    forms = {form: [each for each in members if each.safe.parts == members[0].safe.parts]
             for form, members in forms.items() if form}  # fmt: skip
    absent, questions = len(pairs) - sum(map(len, forms.values())), Questions()
    summed = partial(ratios, seed=seed, draws=draws)
    rows = [each for form, members in forms.items() for each in _of_form(vlm, form, members, seed, summed)]
    with questions.guarded("attention"):  # what begins the answers is found once: it asks the model
        begun = iter(begin([prompt for members in forms.values() for twins in members for prompt in twins[:2]]))
        for form, members in forms.items():
            clusters = [twins.cluster for twins in members for _ in twins[:2]]
            rows += _attention(vlm, form, [next(begun) for _ in clusters], clusters, summed)
    details = {"forms": list(forms), "unlike": absent}
    return details | {"attention": questions.unanswered.get("attention", "")}, rows


def differing(twins: Twins) -> list[str]:
    """Return the parts in which twins differ; empty if they have other forms."""
    from interp.messages import pixels

    places = twins.unsafe.parts
    if places != twins.safe.parts:
        return []
    unsafe, safe = ([turn.mapped(pixels).parts for turn in prompt.turns] for prompt in twins[:2])
    return [name for name in places if any(unsafe[turn][part] != safe[turn][part] for turn, part in places[name])]


def exchanged(prompt: "Prompt", other: "Prompt", name: str) -> "Prompt":
    """Return the prompt with the part ``name`` of ``other``, which has the same form."""
    return prompt.with_parts({(turn, part): other.turns[turn].parts[part] for turn, part in prompt.parts[name]})


def _of_form(vlm: "VLM", form: str, pairs: Sequence[Twins], seed: int, summed: Summed) -> Iterator[Row]:
    """Yield the gap, and the share of each part and of its control, of pairs that differ in the same parts."""
    names, donors = form.split(" + "), _donors(pairs, seed)
    prompts: list[Prompt] = [prompt for twins in pairs for prompt in twins[:2]]
    for name, index in product(names, range(len(pairs))):
        (first, twin, _), donor = pairs[index], donors[index]
        changes = (first, twin), (twin, first), (first, donor.unsafe), (twin, donor.safe)
        prompts += [exchanged(*change, name) for change in changes]
    margins = vlm.batches.scores(prompts).double().numpy()
    unsafe, safe = margins[: 2 * len(pairs)].reshape(-1, 2).T
    # part, pair, twin or control, unsafe or safe
    changed = margins[2 * len(pairs) :].reshape(len(names), len(pairs), 2, 2)
    moved = (changed[..., 0] - unsafe[:, None] + safe[:, None] - changed[..., 1]) / 2
    unit_of = np.unique([twins.cluster for twins in pairs], return_inverse=True)[1]
    gaps = unit_sums((safe - unsafe)[:, None], unit_of)
    (gap,) = summed(gaps, np.bincount(unit_of).astype(float))
    told = claim_of(gap, small=None)
    yield row("conversation_gap", subset=form, entry=gap, n=len(pairs), claim=told)
    if told not in (HIGHER, LOWER):
        return  # a share of a difference that is not there has no meaning
    for kind, rule in enumerate(("", CONTROL)):
        shares = summed(unit_sums(moved[:, :, kind].T, unit_of), gaps[:, 0])
        for name, share in zip(names, shares, strict=True):
            yield row("conversation_share", arm=name, subset=form, rule=rule, entry=share, n=len(pairs),
                      claim=claim_of(share, small=None))  # fmt: skip


def _donors(pairs: Sequence[Twins], seed: int) -> list[Twins]:
    """Return another conversation of the same form for each, each of them once; from another cluster if possible."""
    clusters = [twins.cluster for twins in pairs]
    order = sorted(random.Random(seed).sample(range(len(pairs)), len(pairs)), key=clusters.__getitem__)
    donors = dict(zip(order, np.roll(order, -max(Counter(clusters).values())), strict=True))
    return [pairs[donors[index]] for index in range(len(pairs))]


def _attention(
    vlm: "VLM", form: str, prompts: "list[Prompt]", clusters: Sequence[str], summed: Summed
) -> Iterator[Row]:
    """Yield the share of attention on each part, as a mean over layers and heads.

    Raises:
        UserError: the attention cannot be read, or there are no parts to attend to.
    """
    from interp.attention.record import Queries, record_attention
    from interp.attention.tables import normalised

    def ask(batch: "list[Prompt]") -> list[dict[Any, Any]]:
        with record_attention(vlm, queries=Queries.VERDICT) as record:
            vlm.score(batch, metric=lambda logits: logits[:, 0])
        masses = normalised(record.masses)
        masses["segment"] = masses["segment"].astype(str).replace({"user": "user:1", "image_0": "image:1"})
        shares = masses.pivot_table(index="row", columns="segment", values="mass_without_sink", aggfunc="mean")
        return shares.to_dict("records")

    share = pd.DataFrame(vlm.batches.gathered(prompts, ask))
    names = [name for name in prompts[0].parts if name in share and share[name].notna().all()]
    if not names:
        raise UserError(f"{vlm.name} has no image tokens or texts to attend to")
    unit_of = np.unique(clusters, return_inverse=True)[1]
    shares = summed(unit_sums(share[names].to_numpy(), unit_of), np.bincount(unit_of).astype(float))
    for name, entry in zip(names, shares, strict=True):
        yield row("conversation_attention", arm=name, subset=form, entry=entry, n=len(prompts))


def tables(results: Results, attended: str) -> list[pd.DataFrame]:
    """Return a table with a line for each part of each form."""
    names = {"conversation_share": "share of the difference", "conversation_attention": attended}

    def heading(each: Row) -> str:
        return "control: the same label" if each.rule else names[each.quantity]

    part = {"differ in": "subset", "part": "arm"}
    return [pivot(results.select(quantity=(*names,)), part, heading, title="What each part carries")]


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
