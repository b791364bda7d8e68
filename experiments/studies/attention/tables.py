"""The failure analysis's record of some cases: answered as in the study, with attention, as tables and tensors.

Cases are answered by cached, batched, greedy generation, as the study answers them. Everything lands in ``attention/``
of a run's directory: one Parquet file a table, and the verdict's whole attention rows as safetensors.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Float

from experiments.evaluation.attention_log import prompts_of
from experiments.evaluation.matching import MatchedCase
from experiments.judges.yes_no import anchored
from experiments.types import Sample
from interp.errors import UserError
from mitigation.method import Baseline

if TYPE_CHECKING:
    from interp.attention.tables import AttentionMap
    from interp.segments import RowSegments
    from interp.vlm import VLM, Prompt
    from mitigation.method import Method

BASELINE = Baseline()


@dataclass(frozen=True)
class RecordedAnswers:
    """Answers with their attention, all in the order of ``prompts``; ``maps`` are of the verdict alone."""

    prompts: "list[Prompt]"
    texts: list[str]
    margins: Float[np.ndarray, " case"]
    masses: pd.DataFrame  # of the recorder; ``row`` is the index into ``prompts``
    maps: "list[AttentionMap]"
    rows: "list[RowSegments]"


def record_answers(
    vlm: "VLM",
    samples: Sequence[Sample],
    *,
    max_new_tokens: int,
    layers: Sequence[int] | None = None,
    method: "Method" = BASELINE,
) -> RecordedAnswers:
    """Answers the cases (all with an image, or none) by ``method``; records verdict and generated tokens in ``layers``.

    Batches are those of ``vlm.batches``.

    Raises:
        UserError: an unknown layer, a model whose attention cannot be recorded, or a method that asks more prompts than
            there are cases.
    """
    from interp.attention.record import Queries, record_attention

    def ask(some: "list[Prompt]") -> list[_RecordedAnswer]:
        # A record of its own: one that memory ran out in is thrown away with what it has of the batch.
        with record_attention(vlm, queries=Queries.GENERATED, maps=Queries.VERDICT, layers=layers) as log:
            answers = method.generate(vlm, some, max_new_tokens=max_new_tokens)
        if len(log.rows) != len(some):
            raise UserError(
                f"{len(log.rows)} prompts were forwarded for {len(some)} cases; its attention is not one answer's; "
                "look at it with branch=sequential"
            )
        masses = dict(list(log.masses.groupby("row")))
        maps = {found.row: found for found in log.maps}
        return [
            _RecordedAnswer(text, margin, masses[row], maps[row], log.rows[row])
            for row, (text, margin) in enumerate(zip(answers.texts, answers.margins.tolist(), strict=True))
        ]

    prompts = prompts_of(samples)
    found = vlm.batches.gathered(prompts, ask)
    return RecordedAnswers(
        prompts,
        [one.text for one in found],
        np.array([one.margin for one in found]),
        pd.concat([one.masses.assign(row=row) for row, one in enumerate(found)], ignore_index=True),
        [replace(one.map, row=row) for row, one in enumerate(found)],
        [one.segments for one in found],
    )


class _RecordedAnswer(NamedTuple):
    """One case of ``RecordedAnswers``; ``masses`` and ``map`` still have the row of its batch."""

    text: str
    margin: float
    masses: pd.DataFrame
    map: "AttentionMap"
    segments: "RowSegments"


MASSES = ("case", "step", "layer", "head", "segment", "tokens", "mass", "mass_without_sink", "mass_per_token")


class AttentionTables(NamedTuple):
    """The tables of a run or of one subset; each becomes the Parquet file of its name."""

    cases: pd.DataFrame  # one row a case: sample, margins with and without interventions, the recorded answer
    shares: pd.DataFrame  # case, layer, share, share_with_sink: the verdict's attention on the image, mean over heads
    masses: pd.DataFrame  # ``MASSES``
    words: pd.DataFrame  # case, place, word, in_sentence, mass
    tokens: pd.DataFrame  # what each position of a map is


def attention_tables(
    subset: str, cases: Sequence[MatchedCase], recorded: RecordedAnswers, interventions: pd.DataFrame, tokenizer: Any
) -> AttentionTables:
    """All tables of one subset; ``cases`` are in the order of ``recorded``, ``interventions`` has a row for each."""
    who = pd.DataFrame(
        {
            "case": [case.sample.id for case in cases],
            "subset": subset,
            "outcome": ["failure" if case.failed else "success" for case in cases],
            "match": [case.match for case in cases],
            "cluster": [case.sample.cluster for case in cases],
            "template": [case.sample.tags.get("template") for case in cases],
            "concept": [case.sample.tags.get("concept") for case in cases],
            "gold": [case.sample.gold for case in cases],
            "response": recorded.texts,
            # Batches of another size, or another machine, may have answered the study.
            "same_outcome": [
                (anchored(text).value != case.sample.gold) == case.failed
                for case, text in zip(cases, recorded.texts, strict=True)
            ],
        }
    )
    ids = list(who["case"])
    return AttentionTables(
        cases=who.merge(interventions, on="case", validate="one_to_one"),
        shares=_shares(recorded, ids),
        masses=_masses(recorded, ids),
        words=_words(recorded, ids, [case.sample.text for case in cases]),
        tokens=_tokens(recorded, ids, tokenizer),
    )


def concatenated(parts: Sequence[AttentionTables]) -> AttentionTables:
    """The tables of all subsets together."""
    return AttentionTables(*(pd.concat(tables, ignore_index=True) for tables in zip(*parts, strict=True)))


def write_tables(tables: AttentionTables, folder: Path) -> None:
    """One Parquet file a table."""
    for name, table in tables._asdict().items():
        table.to_parquet(folder / f"{name}.parquet", index=False)


def write_maps(recorded: RecordedAnswers, cases: Sequence[str], path: Path) -> None:
    """The verdict's whole attention: case → float32 (layer, head, position), without padding; see tokens.parquet."""
    from safetensors.torch import save

    tensors = {
        case: found.weights[..., _unpadded(row)].contiguous()
        for case, found, row in zip(cases, recorded.maps, recorded.rows, strict=True)
    }
    layers = " ".join(map(str, recorded.maps[0].layers))
    # Through bytes, since save_file() leaves a file that only its owner may read.
    path.write_bytes(save(tensors, metadata={"axes": "layer head place", "layers": layers, "step": "0"}))


def _shares(recorded: RecordedAnswers, cases: Sequence[str]) -> pd.DataFrame:
    from interp.attention.tables import image_share

    verdict = recorded.masses[recorded.masses["step"] == 0]
    table = image_share(verdict).merge(
        image_share(verdict, without_sink=False), on=["row", "step", "layer"], suffixes=("", "_with_sink")
    )
    return table.assign(case=[cases[row] for row in table["row"]])[["case", "layer", "share", "share_with_sink"]]


def _masses(recorded: RecordedAnswers, cases: Sequence[str]) -> pd.DataFrame:
    from interp.attention.tables import normalised

    table = normalised(recorded.masses)
    return table.assign(case=[cases[row] for row in table["row"]])[list(MASSES)]


def _words(recorded: RecordedAnswers, cases: Sequence[str], sentences: Sequence[str]) -> pd.DataFrame:
    """The verdict's mass on each word of the question, mean over layers and heads, and whether the sentence has it."""
    from interp.attention.tables import weights_of, word_masses

    tables = []
    for index, (case, sentence) in enumerate(zip(cases, sentences, strict=True)):
        table = word_masses(weights_of(recorded.maps[index]), recorded.rows[index])
        first, last = sentence_words(recorded.prompts[index].text, sentence, len(table))
        table.insert(0, "case", case)
        table.insert(1, "place", range(len(table)))
        table.insert(3, "in_sentence", [first <= place < last for place in range(len(table))])
        tables.append(table)
    return pd.concat(tables, ignore_index=True)


def sentence_words(question: str, sentence: str, words: int) -> tuple[int, int]:
    """The range of the question's words that are the sentence's; all where the sentence is not in it verbatim."""
    from interp.segments import WORD

    start = question.find(sentence)
    if start < 0 or len(WORD.findall(question)) != words:
        return 0, words
    before = len(WORD.findall(question[:start]))
    return before, before + len(WORD.findall(sentence))


def _tokens(recorded: RecordedAnswers, cases: Sequence[str], tokenizer: Any) -> pd.DataFrame:
    """What each position of a map's last axis is: segment, token, and which patch of the picture."""
    rows: list[dict[str, Any]] = []
    for case, row in zip(cases, recorded.rows, strict=True):
        columns = _unpadded(row)
        names = tokenizer.convert_ids_to_tokens([row.input_ids[column] for column in columns])
        patches = {
            column: {"grid": grid.name, "patch_row": y, "patch_column": x}
            for grid in row.grids
            for y, line in enumerate(grid.columns.tolist())
            for x, column in enumerate(line)
        }
        nowhere = {"grid": None, "patch_row": None, "patch_column": None}
        for position, (column, name) in enumerate(zip(columns, names, strict=True)):
            entry = {"case": case, "place": position, "segment": row.labels[column], "token": name}
            rows.append(entry | patches.get(column, nowhere))
    return pd.DataFrame(rows).astype({"patch_row": "Int16", "patch_column": "Int16"})


def _unpadded(row: "RowSegments") -> list[int]:
    return [column for column, label in enumerate(row.labels) if label != "padding"]
