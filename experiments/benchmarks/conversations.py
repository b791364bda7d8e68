"""Two published benchmarks of conversations: MTMCS-Bench (three turns) and MIS (two pictures in one request).

Their files are tables (JSON, JSON lines, Parquet) in a folder, or folders that ``datasets`` saved. Knows nothing of
models, judges or metrics.

- MTMCS-Bench (arXiv 2601.06757): three turns about one picture, a safe and an unsafe conversation in each row. They
  differ in the last turn (``type_a``) or in the first (``type_b``): a pair with one picture and two equal turns.
- MIS (arXiv 2501.18533): a request about two pictures, which is harmful only with both. It has no harmless requests.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from experiments.benchmarks.published_benchmark import Collected, PublishedBenchmark, check_part
from experiments.benchmarks.rows import Unfit, encodable, json_file, need, read_file
from experiments.benchmarks.table import cell_picture
from interp.errors import UserError
from interp.messages import Message

GIVEN = "I see. What else would you like to know?"  # the assistant's earlier answers under turns=given
VARIED = {"type_a": "r3", "type_b": "r1"}  # the turn in which the two conversations of a row differ
LEVELS = ("easy", "hard", "real")


@dataclass(frozen=True)
class MTMCS(PublishedBenchmark):
    """MTMCS-Bench in the folder ``root``; ``part`` is type_a, type_b or both.

    ``turns`` says where the answers to the first two turns come from: ``own`` (each arm gives its own, greedily) or
    ``given`` (a fixed text).

    Raises:
        UserError: an option has an unknown value.
    """

    part: str = "both"
    turns: str = "own"
    name: str = "mtmcs"
    GET = (
        "run hf download ND-25/MCS-bench --repo-type dataset --local-dir <folder>, and keep the tables or folders "
        "type_a and type_b in it"
    )

    def __post_init__(self) -> None:
        check_part("part", self.part, (*VARIED, "both"))
        check_part("turns", self.turns, ("own", "given"))

    def find(self) -> Collected:
        """Return all conversations that the files name."""
        cases = Collected(self.folder)
        answer = Message("assistant", (GIVEN,) if self.turns == "given" else ())
        for part in (self.part,) if self.part != "both" else VARIED:
            for source, where, row in published_rows(self.folder, part, self.GET):
                name = f"{part}-{encodable(str(row.get('id') if row.get('id') is not None else where))[:60]}"
                with cases.entry(name, source, where):
                    image = cell_picture(row.get("image"), name, self.folder, "benchmark")
                    rounds = {side: _rounds(row, part, side) for side in ("safe", "unsafe")}
                    if rounds["safe"] == rounds["unsafe"]:
                        raise Unfit(f"both conversations are the same; they differ in {VARIED[part]}")
                    for side, (first, second, third) in rounds.items():
                        turns = (Message("user", (image, first)), answer, Message("user", (second,)), answer,
                                 Message("user", (third,)))  # fmt: skip
                        scenario = str(row.get("category") or part)
                        cases.add(f"{name}-{side}", side, text=third, scenario=scenario, image=image, cluster="",
                                  pair=name, tags={"part": part}, turns=turns)  # fmt: skip
        return cases


@dataclass(frozen=True)
class MIS(PublishedBenchmark):
    """MIS in the folder ``root``; ``level`` is easy, hard, real or all. Every request is harmful.

    Raises:
        UserError: the level is unknown.
    """

    level: str = "all"
    name: str = "mis"
    GET: ClassVar[str] = (
        "download the test set of MIS (arXiv 2501.18533), and keep mis_easy.json, mis_hard.json, mis_real.json and the "
        "folder of their pictures together"
    )

    def __post_init__(self) -> None:
        check_part("level", self.level, (*LEVELS, "all"))

    def find(self) -> Collected:
        """Return all requests that the files name."""
        cases = Collected(self.folder)
        for level in (self.level,) if self.level != "all" else LEVELS:
            for number, (source, where, row) in enumerate(published_rows(self.folder, f"mis_{level}", self.GET)):
                name = f"{level}-{encodable(str(row.get('id', number)))[:60]}"
                with cases.entry(name, source, where):
                    text = need(row, "question")
                    cells = [row.get(f"image_path{n}") for n in (1, 2)]
                    first, second = (cell_picture(cell, name, self.folder, "benchmark") for cell in cells)
                    turns, scenario = (Message("user", (first, second, text)),), str(row.get("category") or level)
                    cases.add(name, "unsafe", text=text, scenario=scenario, image=first, cluster="",
                              tags={"level": level}, turns=turns)  # fmt: skip
        return cases


def _rounds(row: Mapping[str, Any], part: str, side: str) -> tuple[str, str, str]:
    """Return the three turns of the user; an empty variant falls back to the plain turn.

    Raises:
        Unfit: a turn is missing.
    """
    dialogue = row.get("multimodal_dialogue")
    if isinstance(dialogue, str):
        try:
            dialogue = json.loads(dialogue)
        except (ValueError, RecursionError) as error:
            raise Unfit(f"field 'multimodal_dialogue' is not JSON ({error})") from error
    if not isinstance(dialogue, Mapping):
        raise Unfit("field 'multimodal_dialogue' is no object with r1, r2 and r3")
    varied = f"{side}_{VARIED[part]}"
    chosen = {name: name for name in ("r1", "r2", "r3")}
    if str(dialogue.get(varied) or "").strip():
        chosen[VARIED[part]] = varied
    first, second, third = (need(dialogue, name) for name in chosen.values())
    return first, second, third


def published_rows(folder: Path, name: str, get: str) -> Iterator[tuple[Path, str, Mapping[str, Any]]]:
    """Yield the file, the place in it, and the row, of the tables or the ``datasets`` folder called ``name``.

    Raises:
        UserError: there is none, or one cannot be read.
    """
    patterns = (f"{name}.json", f"{name}.jsonl", f"**/{name}*.parquet", f"{name}/*.parquet", f"{name}/*.arrow")
    files = next((result for pattern in patterns if (result := sorted(folder.glob(pattern)))), [])
    if not files:
        raise UserError(f"{folder} has no {name}.json, {name}.jsonl, {name}*.parquet or datasets folder {name}; {get}")
    for file in files:
        if file.suffix == ".json":
            rows = [(f"entry {n}", row) for n, row in enumerate(json_file(file, list, get), 1)]
        elif file.suffix == ".arrow":
            rows = [(f"row {n}", row) for n, row in enumerate(_arrow(file, get), 1)]
        else:
            names = ("id", "image", "multimodal_dialogue", "category", "question", "image_path1", "image_path2")
            rows = list(read_file(file, names).rows)
        for where, row in rows:
            yield file, where, row if isinstance(row, Mapping) else {}


def _arrow(file: Path, get: str) -> list[dict[str, Any]]:
    import pyarrow

    try:
        with pyarrow.memory_map(str(file)) as source:
            table = pyarrow.ipc.open_stream(source).read_all()
            table.validate(full=True)  # a damaged file may name places outside its memory
            return list(table.to_pylist())
    except (OSError, ValueError) as error:
        raise UserError(f"{file} is not a file that datasets saved ({error}); {get}") from error
