"""Which part of IconWorld a case belongs to, for a model whose training left some sentences and things out.

What a model learnt by heart and what it carries over are told apart by this alone: every headline of such a model is
split by it. A model's configuration names the rule (``conf/parts``); the tag ``part`` of its cases is what it gives.
"""

from collections.abc import Callable, Sequence, Set
from dataclasses import replace

from experiments.benchmarks.iconworld.sentences import BENIGN, RISKY
from experiments.types import Sample

TAG = "part"
PARTS = ("seen pair", "unseen pair", "unseen thing", "unseen sentence", "both unseen")
_TRAINED = frozenset(template.name for template in RISKY)
_CONTROLS = frozenset(template.name for template in BENIGN)


def part_of(sample: Sample, *, templates: Set[str], concepts: Set[str], pairs: Set[tuple[str, str]]) -> str | None:
    """One of ``PARTS``; None for controls and for cases that are not IconWorld's.

    Args:
        templates: names of the sentences that were left out, beside those of the split ``new_sentences``.
        concepts: the concepts that were left out, with and without the prohibition sign.
        pairs: further combinations that were left out, as names of template and thing (``("kill", "no-knife")``).
    """
    template, concept = sample.tags.get("template"), sample.tags.get("concept")
    if template is None or concept is None or template in _CONTROLS:
        return None
    thing = f"no-{concept}" if sample.tags.get("sign") == "yes" else concept
    sentence_unseen, thing_unseen = template in templates or template not in _TRAINED, concept in concepts
    if sentence_unseen or thing_unseen:
        return "both unseen" if sentence_unseen and thing_unseen else PARTS[2 + sentence_unseen]
    return "unseen pair" if (template, thing) in pairs else "seen pair"


def tagged(samples: Sequence[Sample], rule: Callable[[Sample], str | None]) -> list[Sample]:
    """The cases, in order, with the part that ``rule`` gives as their tag; those without one as they are."""
    parts = [rule(sample) for sample in samples]
    return [
        replace(sample, tags={**sample.tags, TAG: part}) if part else sample
        for sample, part in zip(samples, parts, strict=True)
    ]
