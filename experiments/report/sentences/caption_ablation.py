"""words_and_picture.json's ``beside`` as sentences: why a caption that suffices alone hardly helps there."""

from collections.abc import Mapping
from typing import Any

from experiments.metrics.findings import Answer, found
from experiments.report.numbers import brief, fixed, fixed_interval, percent
from experiments.report.sentences.wording import deciding, interval_name, too_few

TITLE = "The right caption beside the picture"
NOTE = (
    "Every case is asked with the benchmark's own caption (“It is a cockroach.”) on a line before the question. One "
    "thing at a time is changed: what stands in the picture's place, which edges of attention from there are cut (in "
    "all layers), whose caption it is. Differences are paired; what is said of them is by intervals that hold for all "
    "arms at once. With the other thing's caption or picture (of the pair: same sentence, truth reversed) AUROC is "
    "still that of the case's own truth. The sway of a caption (picture) is by how many logits the right thing's moves "
    "the margin towards the truth beyond the other's; sentence templates are resampled."
)
MOVED, FOLLOWS, LESS = "auroc beside the picture", "the verdict follows the caption", "sway"  # the questions
ARMS = {
    "alone": "caption alone",
    "worded": "caption alone, the question as with a picture",
    "picture": "picture alone",
    "beside": "picture and caption",
    "grey": "a grey picture",
    "other_picture": "the other thing's picture",
    "noise": "random vectors of the picture's lengths",
    "words": "words that say nothing",
    "short": "the picture's vectors, as short as words'",
    "centred": "the picture's vectors without what all pictures share",
    "cut_caption": "picture → caption cut",
    "cut_question": "picture → question cut",
    "cut_verdict": "picture → template and verdict cut",
    "cut_all": "picture → all behind it cut",
    "other_caption": "the other thing's caption",
    "centred_picture": "no caption, the picture's vectors without what all share",
}
INSTEAD = ("grey", "other_picture", "noise", "words", "short", "centred")
CUTS = ("cut_caption", "cut_question", "cut_verdict", "cut_all")
_SAID = {
    Answer.ROSE: "higher",
    Answer.FELL: "lower",
    Answer.NO_CHANGE: "no difference of more than .02",
    Answer.NOT_SHOWN: "a difference is not shown",
    Answer.TOO_FEW: "too few cases to tell",
    Answer.CANNOT_TELL: "cannot be told",
}


def sentences(result: Mapping[str, Any]) -> list[str]:
    """Alone and beside, what the verdict follows, by how much captions and pictures sway; the table has the rest."""
    rows = {row["arm"]: row for row in result["arms"]}
    return [
        _alone(result, rows),
        *_follows(result, rows),
        *_sway(result),
        f"At the input the picture's embeddings are {fixed(result['lengths']['picture'], 2)} long on average, those of "
        f"the question's words {fixed(result['lengths']['words'], 2)}; all pictures share "
        f"{percent(result['lengths']['shared'], 0)}% of their squared length. Without that, and without a caption, the "
        f"AUROC is {fixed(rows['centred_picture']['auroc'], 3)} (with it {fixed(rows['picture']['auroc'], 3)}).",
    ]


def _alone(result: Mapping[str, Any], rows: Mapping[str, Any]) -> str:
    entry = rows["beside"]["minus_alone"]
    values = ", ".join(f"{ARMS[arm]} {fixed(rows[arm]['auroc'], 3)}" for arm in ("alone", "beside", "picture"))
    if entry is None:
        return f"AUROC over {result['cases']['n']} cases: {values}."
    shown = _shown(result, entry, "alone/beside")
    return f"AUROC over {result['cases']['n']} cases: {values}; beside minus alone {shown}."


def _shown(result: Mapping[str, Any], entry: Mapping[str, Any], about: str) -> str:
    """A difference with the interval that it is judged by, and what is said of it."""
    finding = found(result["findings"], MOVED, about)
    assert finding is not None
    if finding.answer is Answer.TOO_FEW:
        return too_few(entry)
    shown = brief(deciding(entry, studied=False), of_rates=False)
    return f"{shown} ({interval_name(entry, studied=False)}; {_SAID[finding.answer]})"


def _follows(result: Mapping[str, Any], rows: Mapping[str, Any]) -> list[str]:
    finding = found(result["findings"], FOLLOWS)
    if finding is None:
        return []
    row = rows["other_caption"]
    within = fixed_interval(row["intervals"]["auroc"], 3)
    value = f"the AUROC of the case's own truth is {fixed(row['auroc'], 3)}{f' [{within}]' if within else ''}"
    if finding.answer is Answer.YES:
        return [f"With the other thing's caption beside the right picture {value}: the verdict follows the caption."]
    return [f"With the other thing's caption beside the right picture {value}: that the verdict follows the caption "
            "is not shown."]  # fmt: skip


def _sway(result: Mapping[str, Any]) -> list[str]:
    sway = result["sway"]
    if sway["less"]["value"] is None:
        return []
    gains = {name: brief(entry, of_rates=False) for name, entry in sway.items()}
    finding = found(result["findings"], LESS, "less")
    assert finding is not None
    comparison = {Answer.FELL: "less", Answer.ROSE: "more"}.get(finding.answer, "a difference is not shown")
    return [
        f"The right caption, against the other's, moves the margin towards the truth by {gains['alone']} logits alone "
        f"and by {gains['beside']} beside the picture ({gains['less']}, {comparison}; {sway['less']['n']} cases); the "
        f"right picture, against the other's, by {gains['picture']} by itself and by {gains['picture_beside']} beside "
        "the right caption."
    ]
