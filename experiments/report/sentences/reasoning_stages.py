"""stages.json as sentences: how far an oracle's words lift caution, and at which stage; and what limits the numbers."""

from collections.abc import Mapping
from typing import Any

from experiments.report.numbers import brief, share
from experiments.report.sentences.wording import deciding, statement_text

OURS = "The wordings are ours: the paper's prompts are not published."


def sentences(result: Mapping[str, Any], *, where: str = "") -> list[str]:
    """Two sentences with numbers, intervals and counts; one where there is no failure to look at."""
    lead, cases = f"{where}: " if where else "", result["cases"]
    if not cases["failures"]:
        return [f"{lead}none of {cases['safe_in_run']} safe cases with a picture met caution, so there is nothing to "
                "trace to a stage."]  # fmt: skip
    return [lead + _described(result), _decided(result)]


def _described(result: Mapping[str, Any]) -> str:
    cases, seen, stages = result["cases"], result["perception"]["failures"], result["stages"]
    listed = ", ".join(f"{name} {stage['count']}" for name, stage in stages.items())
    return (
        f"{cases['failures_in_run']} of {cases['safe_in_run']} safe cases met caution; of {cases['failures']} of "
        f"{cases['failures_in_run']} failures looked at, the caption is right in {share(seen['right']['rate'])}; by "
        f"the stage at which caution lifts: {listed} of {stages['decision']['n']}."
    )


def _decided(result: Mapping[str, Any]) -> str:
    table, matched = result["caution"]["failures"], result["caution"].get("matched")
    described, other = table["description"], table["other_description"]
    text = f"Added, the description changes caution by {_changed(described['change'])}"
    if other["change"]:
        text += f", the description of another picture by {_changed(other['change'])}"
    if matched and matched["description_intent"]["change"]:
        text += (
            f"; on {matched['description_intent']['n']} matched harmful cases, where caution is right, description and "
            f"intent change it by {_changed(matched['description_intent']['change'])}"
        )
    return f"{text}."


def _changed(entry: Mapping[str, Any] | None) -> str:
    """A change with what may be said of it, by the interval that holds for all conditions at once."""
    if entry is None or entry["value"] is None:
        return "an unknown amount (no case was asked both ways)"
    shown = deciding(entry)
    return f"{brief(shown)} ({statement_text(shown)})"


def notes(result: Mapping[str, Any], caption_rule: str) -> list[str]:
    """What limits the numbers, a sentence each; ``caption_rule`` says how captions were judged."""
    found, cases = [OURS, caption_rule], result["cases"]
    if cases["failures"]:
        found.append(
            "Failures were chosen because they met caution, so that as asked all do; how far a condition lowers it is "
            "to be read beside the description of another picture, whose words say nothing of the case."
        )
    if cases["failures"] and not cases["matched"]:
        found.append("No failure has a harmful twin in this run that met caution, so there is nothing to match with.")
    return found
