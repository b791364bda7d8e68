"""The cases of the failure analysis: answered as in the study, with where each verdict looked, as one table; and
the figure of a case."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from experiments.evaluation.attention_log import at_verdicts, prompts_of
from experiments.evaluation.matching import MatchedCase
from experiments.metrics.case_groups import family_names
from experiments.report.figures import FORMATS
from experiments.report.saved_run import thumbnail_name
from experiments.types import Sample
from interp.errors import UserError
from mitigation.method import Baseline
from mitigation.vcd import in_two_branches

if TYPE_CHECKING:
    from PIL.Image import Image

    from interp.attention.tables import AttentionMap
    from interp.figures.glyphs import Figure
    from interp.image_grid import PatchGrid
    from interp.segments import RowSegments
    from interp.vlm import VLM, Prompt
    from mitigation.method import Method

BASELINE = Baseline()
SHARE, WITH_SINK = "attention_on_image", "attention_on_image_with_sink"


@dataclass(frozen=True)
class AttendedCase:
    """A case with its answer. ``shares`` has the verdict's attention on the image by layer, ``map`` all of it."""

    sample: Sample
    prompt: "Prompt"
    response: str
    margin: float
    shares: pd.DataFrame
    map: "AttentionMap"
    row: "RowSegments"

    @property
    def short_response(self) -> str:
        """The first 40 characters of the answer."""
        return self.response if len(self.response) <= 40 else f"{self.response[:39]}…"

    @property
    def title(self) -> str:
        """The case in a line or two."""
        subset = self.sample.subset.replace("_", "-")
        kind = "" if self.sample.gold == "unknown" else f"{subset}, right: {self.sample.gold}, "
        return f"The verdict on “{self.sample.text}” ({kind}answered: {self.short_response})"

    @property
    def wrong_by(self) -> float:
        """How far the margin is on the wrong side, in logits."""
        return self.margin * (-1 if self.sample.gold == "yes" else 1)


def record_answers(
    vlm: "VLM",
    samples: Sequence[Sample],
    *,
    max_new_tokens: int,
    layers: Sequence[int] | None = None,
    method: "Method" = BASELINE,
) -> list[AttendedCase]:
    """Answer cases (all with an image, or none) by ``method``, and record the attention of each verdict in ``layers``.

    The verdict of a model that thinks first comes after its thought. Of answers in words, it is the decisive token of
    ``vlm.metric``. ``vlm.batches`` forms the batches.

    Raises:
        UserError: an unknown layer, a model whose attention cannot be recorded, or a method that asks more prompts than
            there are cases.
    """
    from interp.attention.record import Queries, record_attention
    from interp.attention.tables import image_share
    from mitigation.forced import log_probabilities

    def ask(prompts: "list[Prompt]") -> list[tuple[Any, ...]]:
        in_words = None
        if vlm.metric is not None:  # attention is read where the decisive token comes next, whatever is answered
            answers = method.generate(vlm, prompts, max_new_tokens=max_new_tokens)
            in_words, prompts = answers.texts, vlm.metric.begin(answers.to_verdicts(prompts))
        prompts = at_verdicts(vlm, prompts, method, max_new_tokens=max_new_tokens)
        # A record of its own: if memory runs out, the batch's record is thrown away with it.
        with record_attention(vlm, queries=Queries.VERDICT, maps=Queries.VERDICT, layers=layers) as log:
            answers = in_two_branches(method).generate(vlm, prompts, max_new_tokens=max_new_tokens)
        if len(log.rows) != len(prompts):
            raise UserError(
                f"{len(log.rows)} prompts were forwarded for {len(prompts)} cases, so attention belongs to several "
                "answers; set method.branch=sequential"
            )
        shares = image_share(log.masses).rename(columns={"share": SHARE}).set_index("layer")
        shares[WITH_SINK] = image_share(log.masses, without_sink=False)["share"].to_numpy()
        maps = {each.row: each for each in log.maps}
        texts, margins = in_words or answers.texts, answers.margins
        if vlm.metric is not None:
            margins = vlm.metric.margin(log_probabilities(method, vlm, prompts, vlm.metric.openings))
        return [
            (prompt, text, margin, shares.loc[shares["row"] == row, [SHARE, WITH_SINK]], maps[row], log.rows[row])
            for row, (prompt, text, margin) in enumerate(zip(prompts, texts, margins.tolist(), strict=True))
        ]

    recorded = vlm.batches.gathered(prompts_of(samples), ask)
    return [AttendedCase(sample, *each) for sample, each in zip(samples, recorded, strict=True)]


def case_table(
    subset: str, cases: Sequence[MatchedCase], recorded: Sequence[AttendedCase], interventions: pd.DataFrame,
    verdict: Callable[[Sample, str], str | None],
) -> pd.DataFrame:  # fmt: skip
    """Return a row for each case: what it is, its answer, the ``interventions``, and its shares by layer.

    The columns of shares are ``attention_on_image layer=0``, and the same with the sink. ``cases``, ``recorded`` and
    ``interventions`` have the same order.
    """
    samples = [case.sample for case in cases]
    wrong = [verdict(each.sample, each.response) != each.sample.gold for each in recorded]
    table = pd.DataFrame({
        "case": [sample.id for sample in samples],
        "subset": subset,
        "outcome": ["failure" if case.failed else "success" for case in cases],
        "match": [case.match for case in cases],
        "cluster": [sample.cluster for sample in samples],
        "template": family_names([sample.text for sample in samples], [sample.tags for sample in samples]),
        "concept": [sample.tags.get("concept") for sample in samples],
        "gold": [sample.gold for sample in samples],
        "response": [each.response for each in recorded],
        # The study may have been answered in other batches or on another machine.
        "same_outcome": [failed == case.failed for failed, case in zip(wrong, cases, strict=True)],
    })  # fmt: skip
    shares = pd.DataFrame(
        [
            {f"{name} layer={layer}": value for name in each.shares for layer, value in each.shares[name].items()}
            for each in recorded
        ]
    )
    return pd.concat([table, interventions, shares], axis=1)


def words_of(case: AttendedCase) -> pd.DataFrame:
    """Return the verdict's mass on each word of the question, and whether the word is in the case's sentence.

    ``mass`` is the mean over layers and heads.
    """
    from interp.attention.tables import weights_of, word_masses

    table = word_masses(weights_of(case.map), case.row)
    first, last = sentence_words(case.prompt.text, case.sample.text, len(table))
    return table.assign(case=case.sample.id, in_sentence=[first <= place < last for place in range(len(table))])


def sentence_words(question: str, sentence: str, words: int) -> tuple[int, int]:
    """Return the range of the question's words that are the sentence's; all if it is not in the question verbatim."""
    from interp.segments import WORD

    start = question.find(sentence)
    if start < 0 or len(WORD.findall(question)) != words:
        return 0, words
    before = len(WORD.findall(question[:start]))
    return before, before + len(WORD.findall(sentence))


Drawn = Callable[..., "Figure"]  # of a ``size`` (``interp.figures.attention.Size``)
PNG = "png"


def draw_case(folder: Path, case: AttendedCase, form: str = PNG) -> list[str]:
    """Draw the pictures, the words, and layers × heads of a case, and return the names of the files.

    A picture is left out if its tokens have no place in it. ``form`` is as in ``_save``.
    """
    from interp.attention.tables import patch_map, weights_of, word_masses
    from interp.figures.attention import heat_grid, image_overlay, layer_groups, word_bars

    weights = {name: weights_of(case.map, layers=layers) for name, layers in layer_groups(case.map.layers).items()}
    masses = {name: word_masses(each, case.row) for name, each in weights.items()}
    on_image = pd.DataFrame(case.map.weights[..., case.row.columns("image_0")].sum(-1).numpy(), case.map.layers)
    on_image = on_image.rename_axis(index="layer", columns="head")
    figures: dict[str, Drawn] = {
        "words": partial(word_bars, masses, title=case.title),
        "heads": partial(heat_grid, {"verdict": on_image}, title=case.title),
    }
    pictures: dict[str, Drawn] = {}
    for name, image, grid in _finest(case):
        maps = {layers: patch_map(each, grid).numpy() for layers, each in weights.items()}
        pictures[name] = partial(image_overlay, image, maps, box=grid.box, title=case.title)
    return _save(folder, case, pictures | figures, form)


def draw_answers(folder: Path, by_arm: Mapping[str, AttendedCase], form: str = PNG) -> list[str]:
    """Draw the pictures, and for each arm its answer and where that verdict looked, over all layers.

    A picture is left out if its tokens have no place in it.
    """
    from interp.attention.tables import patch_map, weights_of
    from interp.figures.attention import image_overlay

    first = next(iter(by_arm.values()))
    right = {"yes": ", a harmless request", "no": ", an unsafe request"}.get(first.sample.gold, "")
    title = f"“{first.sample.text}”{right}"
    figures: dict[str, Drawn] = {}
    for name, image, grid in _finest(first):
        maps = {
            f"{arm}: “{case.short_response}”": patch_map(weights_of(case.map), grid).numpy()
            for arm, case in by_arm.items()
        }
        figures[name.replace("image", "answers")] = partial(image_overlay, image, maps, box=grid.box, title=title)
    return _save(folder, first, figures, form)


def _finest(case: AttendedCase) -> "Iterator[tuple[str, Image, PatchGrid]]":
    """Yield the name of each picture's figure (image, image_2, …), the picture, and its finest grid, if it has one."""
    for number, image in enumerate(case.prompt.images, 1):
        grids = [grid for grid in case.row.grids if (grid.name.partition(":")[2] or "1") == str(number)]
        if grids:
            finest = next((grid for grid in grids if grid.name.startswith("tiles")), grids[0])
            yield "image" if number == 1 else f"image_{number}", image, finest


def _save(folder: Path, case: AttendedCase, figures: Mapping[str, Drawn], form: str) -> list[str]:
    """Save figures of a case, and return their names in ``folder``.

    Each is a PNG file. If ``form`` is another of ``FORMATS``, it is also a file of that form, as wide as a column.
    """
    from interp.figures.attention import COLUMN
    from interp.figures.glyphs import encoded

    (folder / "figures").mkdir(exist_ok=True)
    stem = f"figures/attention_{Path(thumbnail_name(case.sample.id)).stem}"
    names = []
    for name, draw in figures.items():
        names.append(f"{stem}_{name}.png")
        (folder / names[-1]).write_bytes(encoded(draw(), PNG))
        if form in FORMATS:
            names.append(f"{stem}_{name}.{form}")
            (folder / names[-1]).write_bytes(FORMATS[form](draw(size=COLUMN)))
    return names
