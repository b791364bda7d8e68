"""Which cases belong together: families of sentences, and counterfactual pairs.

A family has the texts of a benchmark that are one request in other words around it. Cases of one sentence are not
independent, so intervals need to know them (``docs/metrics.md``, "Uncertainty"). A column or tag ``template`` names
the family of a case; where there is none it is proposed from the texts.

A pair has two cases of opposite truth that share their sentence (two pictures) or their picture. A benchmark names its
pairs (``Sample.pair``), and then it has no others. If it names none, every two such cases are a pair. Rates use all
pairs (``all_pairs``). If one case is run with the states of another, a random subset is used (``drawn_pairs``). Pairs
that are found here never make a cluster.
"""

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Int
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from experiments.benchmarks.checks import picture_in
from experiments.metrics.bootstrap import Codes
from experiments.types import Sample

TAG = "template"  # names the family of a case
GRAM = 3  # words in a row that two texts may share
FEWEST_GRAMS = 3  # of the shorter text: of fewer, only whole sentences are compared
ALIKE = 0.8  # of the shorter text's word sequences; one other word at the end of five is .67, at the end of seven .8

ROWS = 256  # texts that are compared with all others at once

_END = re.compile(r"[.?!:;。？！：；\n]+")
_WORD = re.compile(r"[぀-ヿ㐀-鿿]|\w+")  # scripts without spaces: a character is a word


def families(texts: Sequence[str]) -> Codes:
    """Return the code of the family of each text, from 0 in the order of first occurrence.

    Texts are compared by their words, sentence by sentence. A wrapper ("You are an actor in a film.") never occurs
    alone and goes with more different sentences than those do. It is ignored. Two texts are of one family if all
    sentences of one occur in the other, or if both are of the family of a third. They are too if they share four fifths
    of the shorter text's sequences of three words. An empty text is a family of its own.
    """
    distinct = list(dict.fromkeys(texts))
    cores = _without_wrappers([_sentences(text) for text in distinct])
    joined = _joined(np.arange(len(distinct)), cores, fewest=1, share=1.0)
    joined = _joined(joined, [_grams(core) for core in cores], fewest=FEWEST_GRAMS, share=ALIKE)
    family = dict(zip(distinct, joined.tolist(), strict=True))
    return coded([family[text] if text.strip() else f"text {number}" for number, text in enumerate(texts)])


def sentence_codes(texts: Sequence[str], tags: Sequence[Mapping[str, Any]]) -> Codes:
    """Return the codes of the family of each case: by its tag ``template`` where it has one, else as proposed from its
    text.
    """
    named = [of.get(TAG) for of in tags]
    without = [at for at, name in enumerate(named) if name is None or name == ""]
    proposed = dict(zip(without, families([texts[at] for at in without]).tolist(), strict=True)) if without else {}
    return coded([("proposed", proposed[at]) if at in proposed else (TAG, str(name)) for at, name in enumerate(named)])


def family_names(texts: Sequence[str], tags: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the tag ``template`` of each case, or a name of its family where it has none."""
    codes = sentence_codes(texts, tags)
    return [str(of.get(TAG) or f"sentence {code + 1}") for of, code in zip(tags, codes, strict=True)]


def contradiction(texts: Sequence[str], tags: Sequence[Mapping[str, Any]]) -> tuple[str, str] | None:
    """Two texts that are of one family by their words and are not by the tag ``template``, which one may lack."""
    if not any(of.get(TAG) for of in tags):
        return None
    first: dict[int, int] = {}
    codes = sentence_codes(texts, tags)
    for index, family in enumerate(families(texts).tolist()):
        if codes[other := first.setdefault(family, index)] != codes[index]:
            return texts[other], texts[index]
    return None


def coded(names: Sequence[Any]) -> Codes:
    """Return codes from 0 in the order of first occurrence."""
    codes: dict[Any, int] = {}
    return np.array([codes.setdefault(name, len(codes)) for name in names], dtype=int)


def _sentences(text: str) -> list[str]:
    """Return the different sentences of a text, each as its words with blanks between them."""
    parts = (" ".join(_WORD.findall(part.casefold())) for part in _END.split(text))
    return list(dict.fromkeys(filter(None, parts))) or [text.strip()]


def _without_wrappers(texts: Sequence[list[str]]) -> list[list[str]]:
    alone = {sentences[0] for sentences in texts if len(sentences) == 1}
    beside: dict[str, set[str]] = defaultdict(set)
    for sentences in texts:
        for sentence in sentences:
            beside[sentence].update({*sentences} - {sentence})

    def wraps(sentence: str, sentences: list[str]) -> bool:
        others = [len(beside[other]) for other in sentences if other != sentence]
        return bool(others) and sentence not in alone and len(beside[sentence]) > min(others)

    return [[sentence for sentence in sentences if not wraps(sentence, sentences)] for sentences in texts]


def _grams(sentences: Sequence[str]) -> list[str]:
    words = [sentence.split(" ") for sentence in sentences]
    return [" ".join(each[at : at + GRAM]) for each in words for at in range(len(each) - GRAM + 1)]


def _joined(codes: Codes, sets: Sequence[Sequence[str]], *, fewest: int, share: float) -> Codes:
    """Return ``codes``, two sets joined if the smaller, of at least ``fewest``, shares ``share`` of its members.

    ``ROWS`` sets are compared with all others at once, which bounds the memory of many texts that are alike.
    """
    from sklearn.preprocessing import MultiLabelBinarizer

    table = csr_array(MultiLabelBinarizer(sparse_output=True).fit_transform(sets), dtype=float)
    size, every = table.sum(axis=1), np.arange(len(sets))
    for start in range(0, len(sets), ROWS):
        common = (table[start : start + ROWS] @ table.T).tocoo()
        row, column = common.row + start, common.col
        smaller = np.minimum(size[row], size[column])
        alike = (row < column) & (smaller >= fewest) & (common.data >= share * smaller - 1e-9)
        _, first, family = np.unique(codes, return_index=True, return_inverse=True)
        ends = np.concatenate([row[alike], every]), np.concatenate([column[alike], first[family]])
        graph = csr_array((np.ones(len(ends[0])), ends), shape=(len(sets), len(sets)))
        codes = connected_components(graph, directed=False)[1]
    return codes


Shared = Literal["sentence", "picture", "thing"]
TIMES = 3  # pairs of a draw that one case may be in: of few cases with one label each is met by several of the other


def all_pairs(group: Int[np.ndarray, " case"], safe: Bool[np.ndarray, " case"]) -> Int[np.ndarray, "pair 2"]:
    """Return the positions of the safe and the unsafe member of every two cases of one ``group`` with opposite
    truth.
    """
    order = np.argsort(group, kind="stable")
    ends = np.flatnonzero(np.diff(group[order])) + 1
    sides = [(where[safe[where]], where[~safe[where]]) for where in np.split(order, ends)]
    grids = [np.stack(np.meshgrid(*both, indexing="ij"), axis=-1).reshape(-1, 2) for both in sides]
    return np.concatenate(grids).astype(int)


def drawn_pairs(
    samples: Sequence[Sample], shared: Shared = "sentence", *, seed: int, times: int = TIMES
) -> list[tuple[int, int]]:
    """Return the positions of pairs of a safe and an unsafe case with pictures: the benchmark's pairs, or a draw.

    Both are asked the same (``shared`` sentence), or show the same picture, or the same thing in two pictures, which is
    always a draw. In a draw each case is in one pair, and where there are more of the other truth in at most ``times``.
    It depends only on ids and seed. In the order of the cases.
    """
    if shared != "thing" and any(sample.pair for sample in samples):
        key = _KEYS[shared]
        alike = [pair for pair in named_pairs(samples) if key(samples[pair[0]]) == key(samples[pair[1]])]
        pairs = [pair for pair in alike if all(samples[index].image is not None for index in pair)]
    else:
        pairs = list(_drawn(samples, shared, seed, times))
    return sorted(pairs, key=min)


def twins(samples: Sequence[Sample], *, seed: int) -> list[int | None]:
    """Return the index of each case's twin, of the opposite truth: by name, or else in a draw of pairs; None without
    one.
    """
    pairs = named_pairs(samples) if any(sample.pair for sample in samples) else drawn_pairs(samples, seed=seed)
    first: dict[int, int] = {}
    for safe, unsafe in pairs:
        first.setdefault(safe, unsafe)
        first.setdefault(unsafe, safe)
    return [first.get(index) for index in range(len(samples))]


def are_pair(first: Sample, second: Sample) -> bool:
    """Return whether two cases of opposite truth have one pair's name or, without a name, ask the same."""
    same = first.pair == second.pair if first.pair or second.pair else first.prompt == second.prompt
    return same and is_safe(first) != is_safe(second)


def is_safe(sample: Sample) -> bool:
    """Return whether answering is right."""
    return sample.gold in ("yes", "comply")


def hash_key(*parts: object) -> str:
    """Return a sort key that shuffles. It depends only on ``parts`` (seed, ids), not on machine, order or section."""
    return hashlib.sha256(":".join(map(str, parts)).encode()).hexdigest()


def thing_in(sample: Sample) -> str:
    """Return the name of what the case shows, or the sentence that says it; "" where neither is known."""
    return str(sample.tags.get("concept") or sample.described).casefold()


_KEYS = {"sentence": lambda sample: sample.prompt, "picture": picture_in, "thing": thing_in}


def named_pairs(samples: Sequence[Sample]) -> list[tuple[int, int]]:
    """Return the positions of the safe and the unsafe case of each pair that the benchmark names."""
    members: dict[str, dict[bool, int]] = {}
    for index, sample in enumerate(samples):
        if sample.pair:
            members.setdefault(sample.pair, {})[is_safe(sample)] = index
    return [(both[True], both[False]) for both in members.values() if len(both) == 2]


def _drawn(samples: Sequence[Sample], shared: Shared, seed: int, times: int) -> Iterator[tuple[int, int]]:
    groups: dict[str, tuple[list[int], list[int]]] = {}
    for index, sample in enumerate(samples):
        key = _KEYS[shared](sample)
        if key and sample.image is not None and sample.subset != "control":
            groups.setdefault(key, ([], []))[is_safe(sample)].append(index)
    for unsafe, safe in groups.values():
        for side in (unsafe, safe) if unsafe and safe else ():
            side.sort(key=lambda index: hash_key(seed, samples[index].id))
        if len(safe) < len(unsafe):
            yield from zip(cycle(safe), unsafe[: times * len(safe)], strict=False)
        else:
            yield from zip(safe[: times * len(unsafe)], cycle(unsafe), strict=False)
