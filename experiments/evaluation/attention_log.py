"""Attention of single cases under several arms, small enough to stand in a report: ``attention/cases.json``.

Each map is pooled over the picture, averaged over heads (all of them, and a few groups) and kept in 8 bits. How coarse
follows from how much there is to keep, and the file's ``note`` says so. Knows nothing of pages.

Attention of chosen cases while they are answered as in the study: cached, batched, greedy generation.

Knows nothing of statistics or files.

What is recorded of some cases, as the tables and tensors of ``attention/``.

How fine the attention maps of single cases are kept, so that a report of many stays one file. Imports no torch.
"""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from experiments.benchmarks.images import open_image
from experiments.evaluation.answer import batches
from experiments.evaluation.matching import MatchedCase
from experiments.judges.yes_no import anchored
from experiments.report.cases import choose, correct, flips
from experiments.runs.directory import write_json
from experiments.types import Sample
from interp.errors import UserError

if TYPE_CHECKING:
    from interp.attention_tables import AttentionMap
    from interp.image_grid import PatchGrid
    from interp.segments import RowSegments
    from interp.vlm import VLM, Generation, Prompt
    from mitigation.method import Method


EDGES = (("image", "verdict"),)


@dataclass(frozen=True)
class Recorded:
    """Some cases' answers and attention, all in the order of ``prompts``; ``maps`` are of the verdict alone."""

    prompts: "list[Prompt]"
    texts: list[str]
    margins: Float[np.ndarray, "case"]
    masses: pd.DataFrame  # of the recorder; ``row`` is the place in ``prompts``
    maps: "list[AttentionMap]"
    rows: "list[RowSegments]"


def prompts_of(samples: Sequence[Sample]) -> "list[Prompt]":
    """What the study asks of each case."""
    from interp.vlm import Prompt

    return [Prompt(s.prompt, None if s.image is None else open_image(s.image), key=s.id) for s in samples]


def record(
    vlm: "VLM",
    samples: Sequence[Sample],
    *,
    batch_size: int,
    max_new_tokens: int,
    layers: Sequence[int] | None = None,
) -> Recorded:
    """Answers the cases (all with an image, or none) and logs verdict and generated tokens in ``layers``.

    Raises:
        UserError: an unknown layer, or a model whose attention cannot be recorded.
    """
    from interp.attention import Queries, record_attention

    prompts = prompts_of(samples)
    texts: list[str] = []
    margins: list[float] = []
    with record_attention(vlm, queries=Queries.GENERATED, maps=Queries.VERDICT, layers=layers) as log:
        for batch in batches(prompts, batch_size):
            generation = vlm.generate(batch, max_new_tokens=max_new_tokens)
            texts += generation.texts
            margins += generation.margins.tolist()
    maps = sorted(log.maps, key=lambda found: found.row)
    return Recorded(prompts, texts, np.array(margins), log.masses, maps, log.rows)


def margins_without_image_edge(
    vlm: "VLM", prompts: "Sequence[Prompt]", *, batch_size: int, layers: Sequence[int] | None = None
) -> Float[np.ndarray, "case"]:
    """Margins with image → verdict attention cut in ``layers`` (default: all); what text tokens saw of it stays."""
    from interp.attention_knockout import knockout

    with knockout(vlm, EDGES, layers=layers):
        return margins(vlm, prompts, batch_size=batch_size)


def margins(vlm: "VLM", prompts: "Sequence[Prompt]", *, batch_size: int) -> Float[np.ndarray, "case"]:
    """One forward a batch."""

    return np.concatenate([vlm.score(batch).numpy() for batch in batches(prompts, batch_size)]).astype(np.float64)


MASSES = ("case", "step", "layer", "head", "segment", "tokens", "mass", "mass_without_sink", "mass_per_token")


class Tables(NamedTuple):
    """The tables of a run, or of one subset of it; each is a Parquet file of its name."""

    cases: pd.DataFrame  # one row a case: who it is, its margins (``effects``), its answer while recorded
    shares: pd.DataFrame  # case, layer, share, share_with_sink: the verdict's attention on the image, mean over heads
    masses: pd.DataFrame  # ``MASSES``
    words: pd.DataFrame  # case, place, word, in_sentence, mass
    tokens: pd.DataFrame  # what the places of a map are


def tables_of(
    subset: str, cases: Sequence[MatchedCase], recorded: Recorded, effects: pd.DataFrame, tokenizer: Any
) -> Tables:
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
    from interp.attention_tables import image_share

    verdict = recorded.masses[recorded.masses["step"] == 0]
    table = image_share(verdict).merge(
        image_share(verdict, without_sink=False), on=["row", "step", "layer"], suffixes=("", "_with_sink")
    )
    return table.assign(case=[cases[row] for row in table["row"]])[["case", "layer", "share", "share_with_sink"]]


def _masses(recorded: Recorded, cases: Sequence[str]) -> pd.DataFrame:
    from interp.attention_tables import normalised

    table = normalised(recorded.masses)
    return table.assign(case=[cases[row] for row in table["row"]])[list(MASSES)]


def _words(recorded: Recorded, cases: Sequence[str], sentences: Sequence[str]) -> pd.DataFrame:
    """The verdict's mass on each word of the question, mean over layers and heads; is it in the sentence?"""
    from interp.attention_tables import weights_of, word_masses

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


FILE = "attention/cases.json"
BUDGET = 12_000_000  # bytes of all maps together
TYPICAL_WORDS = 80  # text tokens of a prompt, for the estimate


@dataclass(frozen=True)
class Grain:
    """How fine the maps are: answer tokens, cells a side of the picture, groups of heads (0: only their mean)."""

    tokens: int
    cells: int
    groups: int

    def bytes(self, layers: int) -> int:
        """Of one case under one arm."""
        return self.tokens * layers * (1 + self.groups) * (self.cells**2 + TYPICAL_WORDS)


# From fine to coarse; the first that fits is taken, else the last.
GRAINS = (Grain(3, 12, 4), Grain(3, 12, 2), Grain(2, 12, 2), Grain(2, 8, 2), Grain(2, 8, 0), Grain(1, 8, 0))


def finest(*, layers: int, maps: int) -> Grain:
    """The finest grain at which ``maps`` (cases × arms) of a model of ``layers`` layers fit the budget, or the last."""
    return next((grain for grain in GRAINS if grain.bytes(layers) * maps <= BUDGET), GRAINS[-1])


WHOLE_PICTURE = ("base", "global")  # grids that cover the picture at once; tiles are left out where there is one
DROPPED = ("padding",)


class _Batch(NamedTuple):
    """One batch of cases under one arm."""

    samples: Sequence[Sample]
    generation: "Generation"
    maps: "Mapping[tuple[int, int], AttentionMap]"  # by row of the batch and step
    rows: "Sequence[RowSegments]"


def cases_to_show(
    samples: Sequence[Sample], records: Sequence[Mapping[str, Any]], *, studied: str, reference: str, limit: int
) -> list[Sample]:
    """At most ``limit`` cases: half of them flips from ``reference`` to ``studied``, then failures of the former."""
    found = choose(flips(records, arm=studied, reference=reference), arm=studied, count=max(1, limit // 2))
    flipped = [flip.case for flip in found]
    failures = [
        r["case"] for r in records if r["arm"] == reference and correct(r) is False and r["case"] not in flipped
    ]
    chosen = {*flipped, *failures[:: max(1, len(failures) // max(1, limit - len(flipped)))][: limit - len(flipped)]}
    return [sample for sample in samples if sample.id in chosen]


def record_cases(
    vlm: "VLM",
    arms: "Mapping[str, Method]",
    samples: Sequence[Sample],
    folder: Path,
    *,
    batch_size: int,
    max_new_tokens: int,
) -> dict[str, Any]:
    """Answers ``samples`` under ``arms`` once more, and writes where the first tokens of each answer looked.

    Returns the contents of ``attention/cases.json``: ``note``, and ``cases[id][arm]`` with ``tokens`` (of the answer),
    ``layers``, ``groups`` (of heads), ``grid`` (rows, columns; null without image), ``keys`` (text tokens read) with
    their ``segments``, ``names`` (of segments) with their ``counts`` of tokens, the shares
    ``masses[token][layer][group][segment]``, and the packed maps ``image`` and ``words``: base64 of uint8
    [token][layer][group][place], to be multiplied by ``image_scale`` and ``words_scale`` [token][layer][group] over
    255. An arm whose attention cannot be recorded is named in the note.
    """
    layers = len(vlm.layout.attentions(vlm.model))
    grain = finest(layers=layers, maps=len(samples) * len(arms))
    cases: dict[str, dict[str, Any]] = {}
    refused: list[str] = []
    for arm, method in arms.items():
        try:
            for batch in _recorded(vlm, method, samples, grain, batch_size, max_new_tokens):
                for row, sample in enumerate(batch.samples):
                    cases.setdefault(sample.id, {})[arm] = _packed(vlm, batch, row, grain)
        except UserError as error:
            refused.append(f"{arm}: {error}")
    result = {"note": _note(grain, len(samples), refused), "cases": cases}
    (folder / FILE).parent.mkdir(parents=True, exist_ok=True)
    write_json(folder / FILE, result)
    return result


def _recorded(
    vlm: "VLM", method: "Method", samples: Sequence[Sample], grain: Grain, batch_size: int, max_new_tokens: int
) -> list[_Batch]:
    from interp.attention import record_attention

    steps = range(min(grain.tokens, max_new_tokens))
    found = []
    for batch in batches(samples, batch_size):
        with record_attention(vlm, queries=steps, maps=steps) as log:
            generation = method.generate(vlm, prompts_of(batch), max_new_tokens=max_new_tokens)
        if len(log.rows) != len(batch):
            raise UserError(
                f"{len(log.rows)} prompts were forwarded for {len(batch)} cases; its attention is not one answer's; "
                "look at it with branch=sequential"
            )
        found.append(_Batch(batch, generation, {(m.row, m.step): m for m in log.maps}, log.rows))
    return found


def _packed(vlm: "VLM", batch: _Batch, row: int, grain: Grain) -> dict[str, Any]:
    from interp.segments import SEGMENTS

    segments, ids = batch.rows[row], batch.generation.token_ids[row]
    steps = [step for step in range(grain.tokens) if (row, step) in batch.maps and step < max(1, len(ids))]
    names = [name for name in SEGMENTS if name not in DROPPED]
    labels = [*segments.labels, *["generated"] * len(steps)]
    words = [at for at, name in enumerate(labels) if not name.startswith("image") and name not in DROPPED]
    read = [*segments.input_ids, *ids][: len(labels)]
    words = [at for at in words if at < len(read)]
    grid = _grid(segments)
    weights = torch.stack([_grouped(batch.maps[row, step], grain, len(labels)) for step in steps])
    of_segment = [[at for at, label in enumerate(labels) if label == name] for name in names]
    masses = torch.stack([weights[..., columns].sum(-1) for columns in of_segment], dim=-1)
    decoded = [vlm.tokenizer.decode([token]).strip() or "␣" for token in read]
    first = batch.maps[row, steps[0]]
    return {
        "tokens": [vlm.tokenizer.decode([ids[step]]).strip() or "␣" if ids else "(nothing)" for step in steps],
        "layers": list(first.layers),
        "groups": _group_names(first.weights.shape[1], grain),
        "keys": [decoded[at] for at in words],
        "segments": [names.index(labels[at]) for at in words],
        "names": names,
        "counts": [len(columns) for columns in of_segment],
        "masses": np.round(masses.numpy().astype(float), 4).tolist(),
        "grid": None,
        **_quantised("words", weights[..., words]),
        **({} if grid is None else _picture(weights, grid, grain)),
    }


def _grouped(found: "AttentionMap", grain: Grain, width: int) -> Float[Tensor, "layer group column"]:
    """Mean over all heads, then over each group; columns that were not there yet are 0."""
    weights = found.weights.float()
    parts = [weights, *(weights.tensor_split(grain.groups, dim=1) if grain.groups else ())]
    means = torch.stack([part.mean(dim=1) for part in parts if part.shape[1]], dim=1)
    return torch.nn.functional.pad(means, (0, max(0, width - means.shape[-1])))[..., :width]


def _group_names(heads: int, grain: Grain) -> list[str]:
    parts = [part.tolist() for part in torch.arange(heads).tensor_split(grain.groups)] if grain.groups else []
    spans = [f"heads {part[0]} to {part[-1]}" if len(part) > 1 else f"head {part[0]}" for part in parts if part]
    return ["mean of all heads", *spans]


def _grid(segments: "RowSegments") -> "PatchGrid | None":
    """The grid over the whole picture, or else the first there is."""
    whole = [grid for grid in segments.grids if grid.name in WHOLE_PICTURE]
    return next(iter([*whole, *segments.grids]), None)


def _picture(weights: Float[Tensor, "token layer group column"], grid: "PatchGrid", grain: Grain) -> dict[str, Any]:
    """The share of attention in each cell of the picture."""
    patches = weights[..., grid.columns]
    height, width = grid.columns.shape
    cells = (min(height, grain.cells), min(width, grain.cells))
    pooled = adaptive_avg_pool2d(patches.flatten(0, 2), cells) * (height * width / (cells[0] * cells[1]))
    return {"grid": list(cells), **_quantised("image", pooled.reshape(*weights.shape[:3], -1))}


def _quantised(name: str, weights: Float[Tensor, "token layer group place"]) -> dict[str, Any]:
    scale = weights.amax(dim=-1).clamp(min=0) if weights.shape[-1] else weights.new_zeros(weights.shape[:-1])
    steps = (255 * weights / scale.clamp(min=1e-12).unsqueeze(-1)).round().to(torch.uint8)
    packed = base64.b64encode(steps.contiguous().numpy().tobytes()).decode("ascii")
    return {name: packed, f"{name}_scale": np.round(scale.numpy().astype(float), 6).tolist()}


def _note(grain: Grain, cases: int, refused: Sequence[str]) -> str:
    groups = f"all of them and {grain.groups} groups" if grain.groups else "all of them together"
    return " ".join(
        [
            f"Attention of {cases} cases, half of them chosen for a changed verdict, the rest failures: pooled to at "
            f"most {grain.cells} × {grain.cells} cells of the picture, heads averaged ({groups}), in 256 steps of each "
            f"map's largest weight, for the first {grain.tokens} tokens of an answer. A token's attention is that of "
            "the position which it was read off. An arm that only changes scores (a contrast, a shift) looks like the "
            "baseline until its answer differs. Attention shows where a model looked, not why it answered.",
            *(f"Not recorded: {reason}" for reason in refused),
        ]
    )
