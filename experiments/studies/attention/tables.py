"""The failure analysis's record of some cases: answered as in the study, with attention, as tables and tensors.

Cases are answered by cached, batched, greedy generation, as the study answers them. Everything lands in ``attention/``
of a run's directory: one Parquet file a table, and the verdict's whole attention rows as safetensors.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from experiments.evaluation.attention_log import at_verdicts, prompts_of
from experiments.evaluation.matching import MatchedCase
from experiments.judges.yes_no import anchored
from experiments.metrics.sentence_families import family_names
from experiments.types import Sample
from interp.errors import UserError
from mitigation.method import Baseline
from mitigation.vcd import in_two_branches

if TYPE_CHECKING:
    from interp.attention.tables import AttentionMap
    from interp.segments import RowSegments
    from interp.vlm import VLM, Prompt
    from mitigation.method import Method

BASELINE = Baseline()


@dataclass(frozen=True)
class AttendedCase:
    """A case with its answer and where that looked; ``masses`` are those of the recorder, ``map`` is the verdict's."""

    sample: Sample
    prompt: "Prompt"
    response: str
    margin: float
    masses: pd.DataFrame
    map: "AttentionMap"
    row: "RowSegments"

    @property
    def short_response(self) -> str:
        """The first 40 characters of the answer."""
        return self.response if len(self.response) <= 40 else f"{self.response[:39]}…"

    @property
    def title(self) -> str:
        """The case in a line or two."""
        subset = self.sample.subset.replace("_", "-")
        kind = "" if self.sample.gold == "unknown" else f"{subset}, right: {self.sample.gold}, "
        return f"The verdict on “{self.sample.text}” ({kind}answered: {self.short_response})"


def record_answers(
    vlm: "VLM",
    samples: Sequence[Sample],
    *,
    max_new_tokens: int,
    layers: Sequence[int] | None = None,
    method: "Method" = BASELINE,
) -> list[AttendedCase]:
    """Answers the cases (all with an image, or none) by ``method``; records verdict and generated tokens in ``layers``.

    Behind a thought these are the verdict's token and those after it. Batches are those of ``vlm.batches``.

    Raises:
        UserError: an unknown layer, a model whose attention cannot be recorded, or a method that asks more prompts than
            there are cases.
    """
    from interp.attention.record import Queries, record_attention

    def ask(some: "list[Prompt]") -> list[tuple[Any, ...]]:
        some = at_verdicts(vlm, some, method, max_new_tokens=max_new_tokens)
        # A record of its own: one that memory ran out in is thrown away with what it has of the batch.
        with record_attention(vlm, queries=Queries.GENERATED, maps=Queries.VERDICT, layers=layers) as log:
            answers = in_two_branches(method).generate(vlm, some, max_new_tokens=max_new_tokens)
        if len(log.rows) != len(some):
            raise UserError(
                f"{len(log.rows)} prompts were forwarded for {len(some)} cases; its attention is not one answer's; "
                "look at it with branch=sequential"
            )
        masses = dict(list(log.masses.groupby("row")))
        maps = {found.row: found for found in log.maps}
        return [
            (prompt, text, margin, masses[row], maps[row], log.rows[row])
            for row, (prompt, text, margin) in enumerate(
                zip(some, answers.texts, answers.margins.tolist(), strict=True)
            )
        ]

    found = vlm.batches.gathered(prompts_of(samples), ask)
    return [AttendedCase(sample, *one) for sample, one in zip(samples, found, strict=True)]


MASSES = ("case", "step", "layer", "head", "segment", "tokens", "mass", "mass_without_sink", "mass_per_token")


class AttentionTables(NamedTuple):
    """The tables of a run or of one subset; each becomes the Parquet file of its name."""

    cases: pd.DataFrame  # one row a case: sample, margins with and without interventions, the recorded answer
    shares: pd.DataFrame  # case, layer, share, share_with_sink: the verdict's attention on the image, mean over heads
    masses: pd.DataFrame  # ``MASSES``
    words: pd.DataFrame  # case, place, word, in_sentence, mass
    tokens: pd.DataFrame  # what each position of a map is


def attention_tables(
    subset: str,
    cases: Sequence[MatchedCase],
    recorded: Sequence[AttendedCase],
    interventions: pd.DataFrame,
    tokenizer: Any,
) -> AttentionTables:
    """All tables of one subset; ``cases`` are in the order of ``recorded``, ``interventions`` has a row for each."""
    from interp.attention.tables import image_share, normalised

    who = pd.DataFrame(
        {
            "case": [case.sample.id for case in cases],
            "subset": subset,
            "outcome": ["failure" if case.failed else "success" for case in cases],
            "match": [case.match for case in cases],
            "cluster": [case.sample.cluster for case in cases],
            "template": family_names([case.sample.text for case in cases], [case.sample.tags for case in cases]),
            "concept": [case.sample.tags.get("concept") for case in cases],
            "gold": [case.sample.gold for case in cases],
            "response": [one.response for one in recorded],
            # Batches of another size, or another machine, may have answered the study.
            "same_outcome": [
                (anchored(one.response).value != case.sample.gold) == case.failed
                for case, one in zip(cases, recorded, strict=True)
            ],
        }
    )
    all_masses = pd.concat([one.masses.assign(row=at) for at, one in enumerate(recorded)], ignore_index=True)
    verdict = all_masses[all_masses["step"] == 0]
    shares = image_share(verdict).merge(
        image_share(verdict, without_sink=False), on=["row", "step", "layer"], suffixes=("", "_with_sink")
    )
    shares, masses = (
        table.assign(case=who["case"].to_numpy()[table["row"]]) for table in (shares, normalised(all_masses))
    )
    return AttentionTables(
        cases=who.merge(interventions, on="case", validate="one_to_one"),
        shares=shares[["case", "layer", "share", "share_with_sink"]],
        masses=masses[list(MASSES)],
        words=pd.concat(map(_words, recorded), ignore_index=True),
        tokens=_tokens(recorded, tokenizer),
    )


def concatenated(parts: Sequence[AttentionTables]) -> AttentionTables:
    """The tables of all subsets together."""
    return AttentionTables(*(pd.concat(tables, ignore_index=True) for tables in zip(*parts, strict=True)))


def write_tables(tables: AttentionTables, folder: Path) -> None:
    """One Parquet file a table."""
    for name, table in tables._asdict().items():
        table.to_parquet(folder / f"{name}.parquet", index=False)


def write_maps(recorded: Sequence[AttendedCase], path: Path) -> None:
    """The verdict's whole attention: case → float32 (layer, head, position), without padding; see tokens.parquet."""
    from safetensors.torch import save

    tensors = {one.sample.id: one.map.weights[..., _unpadded(one.row)].contiguous() for one in recorded}
    layers = " ".join(map(str, recorded[0].map.layers))
    # Through bytes, since save_file() leaves a file that only its owner may read.
    path.write_bytes(save(tensors, metadata={"axes": "layer head place", "layers": layers, "step": "0"}))


def _words(one: AttendedCase) -> pd.DataFrame:
    """The verdict's mass on each word of the question, mean over layers and heads, and whether the sentence has it."""
    from interp.attention.tables import weights_of, word_masses

    table = word_masses(weights_of(one.map), one.row)
    first, last = sentence_words(one.prompt.text, one.sample.text, len(table))
    table.insert(0, "case", one.sample.id)
    table.insert(1, "place", range(len(table)))
    table.insert(3, "in_sentence", [first <= place < last for place in range(len(table))])
    return table


def sentence_words(question: str, sentence: str, words: int) -> tuple[int, int]:
    """The range of the question's words that are the sentence's; all where the sentence is not in it verbatim."""
    from interp.segments import WORD

    start = question.find(sentence)
    if start < 0 or len(WORD.findall(question)) != words:
        return 0, words
    before = len(WORD.findall(question[:start]))
    return before, before + len(WORD.findall(sentence))


def _tokens(recorded: Sequence[AttendedCase], tokenizer: Any) -> pd.DataFrame:
    """What each position of a map's last axis is: segment, token, and which patch of the picture."""
    rows: list[dict[str, Any]] = []
    for case in recorded:
        row, columns = case.row, _unpadded(case.row)
        names = tokenizer.convert_ids_to_tokens([row.input_ids[column] for column in columns])
        patches = {
            column: {"grid": grid.name, "patch_row": y, "patch_column": x}
            for grid in row.grids
            for y, line in enumerate(grid.columns.tolist())
            for x, column in enumerate(line)
        }
        nowhere = {"grid": None, "patch_row": None, "patch_column": None}
        for position, (column, name) in enumerate(zip(columns, names, strict=True)):
            entry = {"case": case.sample.id, "place": position, "segment": row.labels[column], "token": name}
            rows.append(entry | patches.get(column, nowhere))
    return pd.DataFrame(rows).astype({"patch_row": "Int16", "patch_column": "Int16"})


def _unpadded(row: "RowSegments") -> list[int]:
    return [column for column, label in enumerate(row.labels) if label != "padding"]
