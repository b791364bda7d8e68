"""Families of sentences: which texts of a benchmark are one request in other words around it.

Cases of one sentence are not independent, so intervals need to know them (``docs/metrics.md``, "Uncertainty"). A column
or tag ``template`` names the family of a case; where there is none it is proposed from the texts.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

TAG = "template"  # names the family of a case
GRAM = 3  # words in a row that two texts may share
FEWEST_GRAMS = 3  # of the shorter text: of fewer, only whole sentences are compared
ALIKE = 0.8  # of the shorter text's word sequences; one other word at the end of five is .67, at the end of seven .8

ROWS = 256  # texts that are compared with all others at once

Codes = Int[np.ndarray, "case"]
_END = re.compile(r"[.?!:;。？！：；\n]+")
_WORD = re.compile(r"[぀-ヿ㐀-鿿]|\w+")  # scripts without spaces: a character is a word


def families(texts: Sequence[str]) -> Codes:
    """Codes of the family of each text, from 0 in the order of first occurrence; an empty text is a family of its own.

    Texts are compared by their words, sentence by sentence. A sentence that never stands alone and goes with more
    different ones than those go with is a wrapper ("You are an actor in a film.") and is left out. Two texts are of one
    family where all sentences of one stand in the other, or where four fifths of the shorter one's sequences of three
    words do; and where both are of the family of a third.
    """
    distinct = list(dict.fromkeys(texts))
    cores = _without_wrappers([_sentences(text) for text in distinct])
    grams = [_grams(core) for core in cores]
    joined = _joined(np.arange(len(distinct)), [frozenset(core) for core in cores], fewest=1, share=1.0)
    joined = _joined(joined, grams, fewest=FEWEST_GRAMS, share=ALIKE)
    family = dict(zip(distinct, joined.tolist(), strict=True))
    names = [f"text {at}" if not text.strip() else family[text] for at, text in enumerate(texts)]
    return coded(names)


def sentence_codes(texts: Sequence[str], tags: Sequence[Mapping[str, Any]]) -> Codes:
    """Codes of the family of each case: by its tag ``template`` where it has one, else as proposed from its text."""
    named = [of.get(TAG) for of in tags]
    without = [at for at, name in enumerate(named) if name is None or name == ""]
    proposed = dict(zip(without, families([texts[at] for at in without]).tolist(), strict=True)) if without else {}
    return coded([("proposed", proposed[at]) if at in proposed else (TAG, str(name)) for at, name in enumerate(named)])


def family_names(texts: Sequence[str], tags: Sequence[Mapping[str, Any]]) -> list[str]:
    """The tag ``template`` of each case, or a name of its family where it has none."""
    codes = sentence_codes(texts, tags)
    return [str(of.get(TAG) or f"sentence {code + 1}") for of, code in zip(tags, codes, strict=True)]


def contradiction(texts: Sequence[str], tags: Sequence[Mapping[str, Any]]) -> tuple[str, str] | None:
    """Two texts that are of one family by their words and are not by the tag ``template``, which one may lack."""
    if not any(of.get(TAG) for of in tags):
        return None
    first: dict[int, int] = {}
    codes = sentence_codes(texts, tags)
    for at, family in enumerate(families(texts).tolist()):
        if codes[other := first.setdefault(family, at)] != codes[at]:
            return texts[other], texts[at]
    return None


def coded(names: Sequence[Any]) -> Codes:
    """Codes from 0 in the order of first occurrence."""
    codes: dict[Any, int] = {}
    return np.array([codes.setdefault(name, len(codes)) for name in names], dtype=int)


def _sentences(text: str) -> list[tuple[str, ...]]:
    parts = (tuple(_WORD.findall(part.casefold())) for part in _END.split(text))
    return list(dict.fromkeys(filter(None, parts))) or [(text.strip(),)]


def _without_wrappers(texts: Sequence[list[tuple[str, ...]]]) -> list[list[tuple[str, ...]]]:
    alone = {sentences[0] for sentences in texts if len(sentences) == 1}
    beside: dict[tuple[str, ...], set[tuple[str, ...]]] = defaultdict(set)
    for sentences in texts:
        for one in sentences:
            beside[one].update(other for other in sentences if other != one)

    def wraps(one: tuple[str, ...], others: Sequence[tuple[str, ...]]) -> bool:
        return one not in alone and len(beside[one]) > min(len(beside[other]) for other in others if other != one)

    return [
        [one for one in sentences if not wraps(one, sentences)] if len(sentences) > 1 else sentences
        for sentences in texts
    ]


def _grams(sentences: Sequence[tuple[str, ...]]) -> frozenset[tuple[str, ...]]:
    return frozenset(words[at : at + GRAM] for words in sentences for at in range(len(words) - GRAM + 1))


def _joined(codes: Codes, sets: Sequence[frozenset[Any]], *, fewest: int, share: float) -> Codes:
    """``codes``, two sets joined where the smaller, of at least ``fewest``, has the ``share`` of its members in common.

    ``ROWS`` sets are compared with all others at once, which bounds the memory of many texts that are alike.
    """
    members = {name: at for at, name in enumerate(dict.fromkeys(one for each in sets for one in sorted(each)))}
    rows = np.repeat(np.arange(len(sets)), [len(each) for each in sets])
    columns = np.array([members[one] for each in sets for one in each], dtype=int)
    table = csr_array((np.ones(len(rows)), (rows, columns)), shape=(len(sets), max(len(members), 1)))
    size, every = np.array([len(each) for each in sets], dtype=float), np.arange(len(sets))
    for start in range(0, len(sets), ROWS):
        common = (table[start : start + ROWS] @ table.T).tocoo()
        row, column = common.row + start, common.col
        smaller = np.minimum(size[row], size[column])
        alike = (row < column) & (smaller >= fewest) & (common.data >= share * smaller - 1e-9)
        _, first, at = np.unique(codes, return_index=True, return_inverse=True)
        ends = np.concatenate([row[alike], every]), np.concatenate([column[alike], first[at]])
        graph = csr_array((np.ones(len(ends[0])), ends), shape=(len(sets), len(sets)))
        codes = connected_components(graph, directed=False)[1]
    return codes
