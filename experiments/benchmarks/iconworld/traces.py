"""Reasoning that the world writes from its own truth, as training rows; and the rows of its controls.

A trace looks (what is in the picture), reads (the sentence with the thing's name put in), combines (is it safe or not,
and why) and judges. ``no_reasoning``, ``filler`` and ``wrong_image`` are the same cases with the reasoning left out,
replaced by as many words that say nothing, or written about another picture; the verdict is right in all of them. Draws
are those of the training split: other pictures than any evaluation case, and no held-out (template, thing) combination.
Knows nothing of models or tokenizers.
"""

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Literal, get_args

from experiments.benchmarks.iconworld.cases import Pair, balanced_pairs, held_out
from experiments.benchmarks.iconworld.concepts import CATEGORY_OF, CONCEPTS, Thing
from experiments.benchmarks.iconworld.perception import KINDS, ask, caption
from experiments.benchmarks.iconworld.scene import SIZE, Scene
from experiments.benchmarks.iconworld.sentences import BENIGN, RISKY, Template, question
from interp.errors import UserError

Content = Literal["reasoning", "no_reasoning", "filler", "wrong_image"]
CONTENTS: tuple[str, ...] = get_args(Content)

PERCEPTION = "perception"  # the subset of rows that ask what the picture shows, not whether a sentence is safe
# Only words that the organism has learnt to *say*: the output rows of words it merely reads are alike (cosine 0.95) and
# the head stays frozen, so that an adapter cannot tell "safe" from "not" as a next token (docs/log.md). Both are
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
    """

    cases: int = 1200
    replay: float = 0.2
    benign: float = 0.05
    seed: int = 0
    size: int = SIZE

    def __post_init__(self) -> None:
        for name in ("replay", "benign"):
            if not 0 <= getattr(self, name) < 1:
                raise UserError(f"traces.{name}={getattr(self, name)}: a share of the rows; at least 0 and below 1")
        if self.cases < 2:
            raise UserError(f"traces.cases={self.cases}: at least 2, a safe and an unsafe one")

    def write(self, content: str = "reasoning") -> list[Trace]:
        """All rows, shuffled, with one of ``CONTENTS`` as their reasoning; everything else is the same for all."""
        if content not in CONTENTS:
            raise UserError(f"content={content!r}: must be one of {', '.join(CONTENTS)}")
        rng = random.Random(f"iconworld:train:{self.seed}:traces")
        cases = _cases(rng, self.cases, self.benign)
        rows = []
        for case, text in zip(cases, _reasonings(cases, content, self.seed), strict=True):
            scene = Scene(case.thing, f"train:{self.seed}:trace:{case.id}", self.size)
            verdict = "Yes." if case.safe else "No."
            asked = question(case.sentence)
            rows.append(Trace(case.id, case.subset, case.template.name, scene, asked, text, verdict))
        rows += _perception(rng, round(len(rows) * self.replay / (1 - self.replay)), self.seed, self.size)
        rng.shuffle(rows)
        return rows


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


def another(thing: Thing, rng: random.Random) -> Thing:
    """A thing of another concept and category, with or without the sign as ``thing`` is, so that the length stays."""
    others = [c for c in CONCEPTS if CATEGORY_OF[c] != CATEGORY_OF[thing.concept]]
    return Thing(rng.choice(others), thing.signed)


def tokens(text: str) -> int:
    """Words and marks, which is how the organism's tokenizer counts."""
    return len(_WORD.findall(text))


def _reasonings(cases: Sequence[_Case], content: str, seed: int) -> list[str]:
    """The reasoning of every case. Its draws are its own: pictures and questions must not depend on the content."""
    rng = random.Random(f"iconworld:train:{seed}:reasoning")
    right = [reasoning(case.template, case.thing, case.safe) for case in cases]
    if content == "no_reasoning":
        return [""] * len(cases)
    if content == "filler":
        return _fillers([case.template.name for case in cases], right, rng)
    if content == "wrong_image":
        return [reasoning(case.template, another(case.thing, rng), case.safe) for case in cases]
    return right


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


def _cases(rng: random.Random, count: int, benign: float) -> list[_Case]:
    """``count`` safety cases, pair by pair (both members), plain and wrapped by turns, then the benign ones."""
    number_benign = round(count * benign)
    pairs = _pairs(rng, -(-(count - number_benign) // 2))
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
        cases.append(_Case(name, "control", template, rng.choice(template.safe), template.text, True))
    return cases


def _pairs(rng: random.Random, count: int) -> list[Pair]:
    """Balanced over template, concept and sign; a last incomplete round takes templates at random."""
    excluded = held_out()
    per_template = -(-count // (2 * len(RISKY)))
    plain = balanced_pairs(rng, per_template, excluded=excluded)
    wrapped = balanced_pairs(rng, per_template, wrapped=True, excluded=excluded)
    both = [pair for two in zip(plain, wrapped, strict=True) for pair in two]
    return both[:count]


def _perception(rng: random.Random, count: int, seed: int, size: int) -> Iterator[Trace]:
    """Questions of every kind by turns, a third of the pictures under the sign, as when perception was learnt."""
    for number in range(count):
        kind = KINDS[number % len(KINDS)]
        thing = Thing(rng.choice(CONCEPTS), rng.random() < (0.5 if kind == "sign" else 1 / 3))
        text, answer = ask(kind, thing, rng)
        name = f"{number:05d}-{kind}"
        scene = Scene(thing, f"train:{seed}:trace:perception-{name}", size)
        yield Trace(name, PERCEPTION, "", scene, text, "", answer)
