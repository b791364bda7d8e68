"""Reasoning that the world writes from its own truth, as training rows; and the rows of its controls.

A trace looks (what is in the picture), reads (the sentence with the thing's name put in), combines (is it safe or not,
and why) and judges; a ``bare`` one judges right after reading. ``no_reasoning``, ``filler`` and ``wrong_image`` are the
same cases with the reasoning left out, replaced by as many words that say nothing, or written about another picture;
the verdict is right in all of them. Draws are those of the training split: other pictures than any evaluation case, and
no held-out (template, thing) combination. Knows nothing of models or tokenizers.
"""

import hashlib
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import Any, Literal, NamedTuple, get_args

from experiments.benchmarks.iconworld.cases import Pair, balanced_pairs, held_out
from experiments.benchmarks.iconworld.concepts import CATEGORY_OF, CONCEPTS, Thing
from experiments.benchmarks.iconworld.parts import PARTS, part_of_combination
from experiments.benchmarks.iconworld.perception import KINDS, ask, caption
from experiments.benchmarks.iconworld.scene import SIZE, Scene
from experiments.benchmarks.iconworld.sentences import BENIGN, RISKY, Template, question
from interp.errors import UserError
from mitigation import reference_resolution

Content = Literal["reasoning", "no_reasoning", "filler", "wrong_image"]
CONTENTS: tuple[str, ...] = get_args(Content)

PERCEPTION = "perception"  # the subset of rows that ask what the picture shows, not whether a sentence is safe
# Only words that the organism has learnt to *say*: the output rows of words it merely reads are alike (cosine 0.95) and
# the head stays frozen, so that an adapter cannot tell "safe" from "not" as a next token (docs/log/). Both are
# equally long, so that the length of the reasoning does not give the verdict away.
SAFE, UNSAFE = "It is harmless.", "It is dangerous."
FILLER = ("It", "is")
_WORD = re.compile(r"\w+|[^\w\s]+")


@dataclass(frozen=True)
class Trace:
    """One training row: a question about a picture, what to think of it, the verdict, and where the row comes from.

    ``subset`` is typical, attack, over_safety or control, as in the benchmark, or ``PERCEPTION``, where ``verdict`` is
    the whole answer in free words and ``template`` is empty. The verdict may stand before or after the reasoning.
    """

    id: str
    subset: str
    template: str
    scene: Scene
    question: str
    reasoning: str
    verdict: str


@dataclass(frozen=True)
class Traces:
    """Which rows to write: ``cases`` verdicts, and beside them ``replay`` (a share of all rows) about perception.

    ``cases`` are half safe and half unsafe, half plain and half wrapped, but for ``benign`` of them (a share), whose
    sentences are safe with any picture. Equal settings give equal pictures, questions and verdicts in equal order.

    ``bare``: the reasoning is the caption and the sentence with the caption's words in it, as ``method=verbalise``
    writes it, without "It is harmless.". ``kinds`` are those of the questions about perception. ``parts`` is the rule
    of ``conf/parts`` by which a model's earlier training has seen a combination: then verdicts are about its seen pairs
    alone, and things without any occur in replay alone (IconWorld's own held-out combinations are not looked at).
    """

    cases: int = 1200
    replay: float = 0.2
    benign: float = 0.05
    seed: int = 0
    size: int = SIZE
    bare: bool = False
    kinds: tuple[str, ...] = KINDS
    parts: Any = field(default=None, repr=False)
    left_out: str = field(init=False, default="")  # a hash of what ``parts`` leaves out, for a run's identity

    def __post_init__(self) -> None:
        for name in ("replay", "benign"):
            if not 0 <= getattr(self, name) < 1:
                raise UserError(f"traces.{name}={getattr(self, name)}: a share of the rows; at least 0 and below 1")
        if self.cases < 2:
            raise UserError(f"traces.cases={self.cases}: at least 2, a safe and an unsafe one")
        if not self.kinds or not set(self.kinds) <= set(KINDS):
            raise UserError(f"traces.kinds={list(self.kinds)}: one or more of {', '.join(KINDS)}")
        object.__setattr__(self, "kinds", tuple(self.kinds))
        if self.parts is not None:
            names = sorted(f"{name} {thing.name}" for name, thing in self._allowed().excluded)
            object.__setattr__(self, "left_out", hashlib.sha256(repr(names).encode()).hexdigest()[:12])

    def write(self, content: str = "reasoning") -> list[Trace]:
        """All rows, shuffled, with one of ``CONTENTS`` as their reasoning; everything else is the same for all."""
        if content not in CONTENTS:
            raise UserError(f"content={content!r}: must be one of {', '.join(CONTENTS)}")
        rng = random.Random(f"iconworld:train:{self.seed}:traces")
        allowed = self._allowed()
        cases = _cases(rng, self.cases, self.benign, allowed)
        rows = []
        for case, text in zip(cases, self._reasonings(cases, content, allowed.concepts), strict=True):
            scene = Scene(case.thing, f"train:{self.seed}:trace:{case.id}", self.size)
            verdict = "Yes." if case.safe else "No."
            asked = question(case.sentence)
            rows.append(Trace(case.id, case.subset, case.template.name, scene, asked, text, verdict))
        rows += self._perception(rng, round(len(rows) * self.replay / (1 - self.replay)))
        rng.shuffle(rows)
        return rows

    def _allowed(self) -> "_Allowed":
        """What verdicts may be about.

        Raises:
            UserError: by ``parts`` no sentence has a seen thing on both sides.
        """
        if self.parts is None:
            return _Allowed(held_out(), RISKY, CONCEPTS)
        every = [(template, thing) for template in RISKY for thing in (*template.safe, *template.unsafe)]
        seen = [(template, thing) for template, thing in every
                if part_of_combination(self.parts, template.name, thing) == PARTS[0]]  # fmt: skip
        excluded = frozenset((template.name, thing) for template, thing in every) - {(t.name, one) for t, one in seen}
        templates = tuple(template for template in RISKY
                          if {True, False} == {t.is_safe(thing) for t, thing in seen if t is template})  # fmt: skip
        if not templates:
            raise UserError("traces.parts: this rule leaves no sentence with a safe and an unsafe thing that were seen")
        concepts = {thing.concept for _, thing in seen}
        return _Allowed(excluded, templates, tuple(concept for concept in CONCEPTS if concept in concepts))

    def _reasonings(self, cases: Sequence["_Case"], content: str, concepts: Sequence[str]) -> list[str]:
        """The reasoning of every case. Its draws are its own: pictures and questions must not depend on the content."""
        rng = random.Random(f"iconworld:train:{self.seed}:reasoning")

        def written(case: "_Case", thing: Thing) -> str:
            return bare_reasoning(case.template, thing) if self.bare else reasoning(case.template, thing, case.safe)

        right = [written(case, case.thing) for case in cases]
        if content == "no_reasoning":
            return [""] * len(cases)
        if content == "filler":
            return _fillers([case.template.name for case in cases], right, rng)
        if content == "wrong_image":
            return [written(case, another(case.thing, rng, concepts)) for case in cases]
        return right

    def _perception(self, rng: random.Random, count: int) -> Iterator[Trace]:
        """Questions of every kind by turns, a third of the pictures under the sign, as when perception was learnt."""
        for number in range(count):
            kind = self.kinds[number % len(self.kinds)]
            thing = Thing(rng.choice(CONCEPTS), rng.random() < (0.5 if kind == "sign" else 1 / 3))
            text, answer = ask(kind, thing, rng)
            name = f"{number:05d}-{kind}"
            scene = Scene(thing, f"train:{self.seed}:trace:perception-{name}", self.size)
            yield Trace(name, PERCEPTION, "", scene, text, "", answer)


class _Allowed(NamedTuple):
    """Combinations that verdicts may not be about, and the sentences and concepts that are left."""

    excluded: frozenset[tuple[str, Thing]]
    templates: tuple[Template, ...]
    concepts: tuple[str, ...]


@dataclass(frozen=True)
class _Case:
    id: str
    subset: str
    template: Template
    thing: Thing
    sentence: str
    safe: bool


def reasoning(template: Template, thing: Thing, safe: bool) -> str:
    """What is in the picture, what the sentence then says, and what follows; the verdict itself is left out."""
    resolved = template.text.replace("this", f"the {thing.concept}")
    return f"{caption(thing)} {resolved} {SAFE if safe else UNSAFE}"


def bare_reasoning(template: Template, thing: Thing) -> str:
    """What is in the picture, and what the sentence then says: "It is a cat. How do I kill the cat?"."""
    description = caption(thing)
    name = reference_resolution.definite(reference_resolution.phrase(description))
    return f"{description} {reference_resolution.resolved(template.text, name) or template.text}"


def another(thing: Thing, rng: random.Random, concepts: Sequence[str] = CONCEPTS) -> Thing:
    """A thing of another concept and category, with or without the sign as ``thing`` is, so that the length stays."""
    others = [c for c in concepts if CATEGORY_OF[c] != CATEGORY_OF[thing.concept]]
    return Thing(rng.choice(others), thing.signed)


def tokens(text: str) -> int:
    """Words and marks, which is how the organism's tokenizer counts."""
    return len(_WORD.findall(text))


def _fillers(templates: Sequence[str], right: Sequence[str], rng: random.Random) -> list[str]:
    """As many words as the reasoning has, over each sentence's rows together.

    The lengths are dealt out anew among the rows of a template: a caption is longer under the prohibition sign, and a
    filler of just that length would say that there is one.
    """
    found = [""] * len(right)
    for name in sorted(set(templates)):
        places = [place for place, template in enumerate(templates) if template == name]
        lengths = [tokens(right[place]) for place in places]
        rng.shuffle(lengths)
        for place, length in zip(places, lengths, strict=True):
            found[place] = " ".join(islice(cycle(FILLER), length - 1)) + "."
    return found


def _cases(rng: random.Random, count: int, benign: float, allowed: _Allowed) -> list[_Case]:
    """``count`` safety cases, pair by pair (both members), plain and wrapped by turns, then the benign ones."""
    number_benign = round(count * benign)
    pairs = _pairs(rng, -(-(count - number_benign) // 2), allowed)
    cases = []
    for number, pair in enumerate(pairs):
        for safe in (False, True):
            subset = "over_safety" if safe else ("attack" if pair.wrapper else "typical")
            thing = pair.safe if safe else pair.unsafe
            name = f"{number:05d}-{pair.template.name}-{'safe' if safe else 'unsafe'}"
            cases.append(_Case(name, subset, pair.template, thing, pair.sentence, safe))
    cases = cases[: count - number_benign]
    for number in range(number_benign):
        template = BENIGN[number % len(BENIGN)]
        name = f"{number:05d}-{template.name}-benign"
        thing = rng.choice([thing for thing in template.safe if thing.concept in allowed.concepts])
        cases.append(_Case(name, "control", template, thing, template.text, True))
    return cases


def _pairs(rng: random.Random, count: int, allowed: _Allowed) -> list[Pair]:
    """Balanced over template, concept and sign; a last incomplete round takes templates at random."""
    per_template = -(-count // (2 * len(allowed.templates)))
    chosen: dict[str, Any] = {"excluded": allowed.excluded, "templates": allowed.templates}
    plain = balanced_pairs(rng, per_template, **chosen)
    wrapped = balanced_pairs(rng, per_template, wrapped=True, **chosen)
    both = [pair for two in zip(plain, wrapped, strict=True) for pair in two]
    return both[:count]
