"""words_and_picture.json as sentences: whether a model is blind by rule, and what it sees."""

from collections.abc import Mapping
from typing import Any

from experiments.metrics.findings import Answer, Finding, found
from experiments.report.numbers import brief, fixed, share, within
from experiments.report.sentences.wording import too_few

TITLE = "In words and with the picture"
NOTE = (
    "Blind is said only where the AUROC in words without a picture, pointing (“There is a cockroach.” before the same "
    "question), is at least .85, and with the picture it is lower by at least .10, with an interval that excludes 0 "
    "(the wider of those over clusters and over sentence templates). What a training has learned by heart in words "
    "proves nothing: ask sentences that it has not seen (the bundled organism: benchmark.split=new_sentences). A "
    "caption is right if it names the thing, and the prohibition sign where there is one and only there."
)
_FAILED = {
    "words suffice": "in words the AUROC is {words}, and it takes {suffices}",
    "lower with the picture": "with the picture it is {difference} against words, and it takes {lower}",
    "interval below 0": "the interval of that difference does not lie below 0",
}


def sentences(result: Mapping[str, Any], *, where: str = "") -> list[str]:
    """The claim, and what is seen; the four ways of asking are in the table."""
    lead = f"{where}: " if where else ""
    return [lead + _claim(result), _seen(result)]


def _claim(result: Mapping[str, Any]) -> str:
    finding = found(result["findings"], "blind")
    assert finding is not None
    entry = result["comparisons"]["picture"]["delta"]["auroc"]
    if finding.answer is Answer.CANNOT_TELL or entry is None:
        return "whether it is blind to the picture cannot be told: there is no AUROC."
    if finding.answer is Answer.TOO_FEW:
        return f"whether it is blind to the picture is not shown: of {entry['n']} cases there are {too_few(entry)}."
    on = f"On {entry['n']} cases"
    if finding.answer is Answer.YES:
        return (
            f"it is blind to the picture. {on} words suffice (AUROC {fixed(entry['from'], 3)}, pointing), and with "
            f"the picture it is {fixed(entry['to'], 3)}: {brief(entry, of_rates=False, named=True)}."
        )
    return f"that it is blind to the picture is not shown. {on}, {_why(result, finding, entry)}."


def _why(result: Mapping[str, Any], finding: Finding, entry: Mapping[str, Any]) -> str:
    rule = result["rule"]
    numbers = {
        "words": fixed(entry["from"], 3),
        "suffices": fixed(rule["words_suffice"], 2),
        "difference": brief(entry, of_rates=False, named=True),
        "lower": fixed(-rule["lower_by"], 2),
    }
    return "; ".join(_FAILED[condition].format(**numbers) for condition in finding.evidence["failed"])


def _seen(result: Mapping[str, Any]) -> str:
    seen = result["captions"]
    if not seen["n"]:
        return "No caption was given, so what it sees is not known."
    return (
        f"Its caption of the picture is right in {share(seen['rate'])} of {seen['n']} cases{within(seen['interval'])}."
    )
