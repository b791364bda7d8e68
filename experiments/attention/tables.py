"""What is recorded of some cases, as the tables and tensors of ``attention/``."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from experiments.attention.matching import Case
from experiments.attention.recording import Recorded
from experiments.judges.yes_no import anchored

if TYPE_CHECKING:
    from interp.segments import RowSegments

MASSES = ("case", "step", "layer", "head", "segment", "tokens", "mass", "mass_without_sink", "mass_per_token")


class Tables(NamedTuple):
    """The tables of a run, or of one subset of it; each is a Parquet file of its name."""

    cases: pd.DataFrame  # one row a case: who it is, its margins (``effects``), its answer while recorded
    shares: pd.DataFrame  # case, layer, share, share_with_sink: the verdict's attention on the image, mean over heads
    masses: pd.DataFrame  # ``MASSES``
    words: pd.DataFrame  # case, place, word, in_sentence, mass
    tokens: pd.DataFrame  # what the places of a map are


def tables_of(subset: str, cases: Sequence[Case], recorded: Recorded, effects: pd.DataFrame, tokenizer: Any) -> Tables:
    """All tables of one subset's cases, which are in the order of ``recorded``."""
    who = pd.DataFrame(
        {
            "case": [case.sample.id for case in cases],
            "subset": subset,
            "outcome": ["failure" if case.failed else "success" for case in cases],
            "match": [case.match for case in cases],
            "cluster": [case.sample.cluster for case in cases],
            "gold": [case.sample.gold for case in cases],
            "response": recorded.texts,
            # The study may have answered in batches of another size, or the run be of another machine.
            "same_outcome": [
                (anchored(text).value != case.sample.gold) == case.failed
                for case, text in zip(cases, recorded.texts, strict=True)
            ],
        }
    )
    ids = list(who["case"])
    return Tables(
        cases=who.merge(effects, on="case", validate="one_to_one"),
        shares=_shares(recorded, ids),
        masses=_masses(recorded, ids),
        words=_words(recorded, ids, [case.sample.text for case in cases]),
        tokens=_tokens(recorded, ids, tokenizer),
    )


def joined(parts: Sequence[Tables]) -> Tables:
    """The tables of all subsets together."""
    return Tables(*(pd.concat(tables, ignore_index=True) for tables in zip(*parts, strict=True)))


def write_tables(tables: Tables, folder: Path) -> None:
    """One Parquet file a table."""
    for name, table in tables._asdict().items():
        table.to_parquet(folder / f"{name}.parquet", index=False)


def write_maps(recorded: Recorded, cases: Sequence[str], path: Path) -> None:
    """The verdict's whole rows: case → float32 tensor (layer, head, place), without padding; see tokens.parquet."""
    from safetensors.torch import save

    tensors = {
        case: found.weights[..., _shown(row)].contiguous()
        for case, found, row in zip(cases, recorded.maps, recorded.rows, strict=True)
    }
    layers = " ".join(map(str, recorded.maps[0].layers))
    # Through bytes, since save_file() leaves a file that its owner alone may read.
    path.write_bytes(save(tensors, metadata={"axes": "layer head place", "layers": layers, "step": "0"}))


def _shares(recorded: Recorded, cases: Sequence[str]) -> pd.DataFrame:
    from interp.attention import image_share

    verdict = recorded.masses[recorded.masses["step"] == 0]
    table = image_share(verdict).merge(
        image_share(verdict, without_sink=False), on=["row", "step", "layer"], suffixes=("", "_with_sink")
    )
    return table.assign(case=[cases[row] for row in table["row"]])[["case", "layer", "share", "share_with_sink"]]


def _masses(recorded: Recorded, cases: Sequence[str]) -> pd.DataFrame:
    from interp.attention import normalised

    table = normalised(recorded.masses)
    return table.assign(case=[cases[row] for row in table["row"]])[list(MASSES)]


def _words(recorded: Recorded, cases: Sequence[str], sentences: Sequence[str]) -> pd.DataFrame:
    """The verdict's mass on each word of the question, mean over layers and heads; is it in the sentence?"""
    from interp.attention import weights_of, word_masses

    tables = []
    for index, (case, sentence) in enumerate(zip(cases, sentences, strict=True)):
        table = word_masses(weights_of(recorded.maps[index]), recorded.rows[index])
        first, last = _words_of_sentence(recorded.prompts[index].text, sentence, len(table))
        table.insert(0, "case", case)
        table.insert(1, "place", range(len(table)))
        table.insert(3, "in_sentence", [first <= place < last for place in range(len(table))])
        tables.append(table)
    return pd.concat(tables, ignore_index=True)


def _words_of_sentence(question: str, sentence: str, words: int) -> tuple[int, int]:
    """Which of the question's words are the sentence's; all where the sentence does not stand in it as it is."""
    from interp.segments import WORD

    start = question.find(sentence)
    if start < 0 or len(WORD.findall(question)) != words:
        return 0, words
    before = len(WORD.findall(question[:start]))
    return before, before + len(WORD.findall(sentence))


def _tokens(recorded: Recorded, cases: Sequence[str], tokenizer: Any) -> pd.DataFrame:
    """What each place of a map's last axis is: segment, token, and where it lies in the picture."""
    rows: list[dict[str, Any]] = []
    for case, row in zip(cases, recorded.rows, strict=True):
        shown = _shown(row)
        names = tokenizer.convert_ids_to_tokens([row.input_ids[column] for column in shown])
        patches = {
            column: {"grid": grid.name, "patch_row": y, "patch_column": x}
            for grid in row.grids
            for y, line in enumerate(grid.columns.tolist())
            for x, column in enumerate(line)
        }
        nowhere = {"grid": None, "patch_row": None, "patch_column": None}
        for place, (column, name) in enumerate(zip(shown, names, strict=True)):
            entry = {"case": case, "place": place, "segment": row.labels[column], "token": name}
            rows.append(entry | patches.get(column, nowhere))
    return pd.DataFrame(rows).astype({"patch_row": "Int16", "patch_column": "Int16"})


def _shown(row: "RowSegments") -> list[int]:
    return [column for column, label in enumerate(row.labels) if label != "padding"]
