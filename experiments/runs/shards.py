"""One JSONL file written by several processes: one part file each, merged while no process writes.

``predictions.jsonl`` has the parts ``predictions.<rank>.jsonl``. A merge may be killed at any moment: until
``predictions.jsonl.merged`` exists nothing has changed, and from then on it holds all lines.
"""

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path

MERGED = ".merged"
BLOCK = 1 << 16
_PART = re.compile(r"(?P<stem>.+)\.(?P<rank>\d+)\.jsonl")
Place = Callable[[bytes], int | None]


def part(path: Path, rank: int) -> Path:
    """The part file that only process ``rank`` writes."""
    return path.with_name(f"{path.stem}.{rank}{path.suffix}")


def parts(path: Path) -> list[Path]:
    """The existing part files, by rank."""
    found = [(match, other) for other in path.parent.iterdir() if (match := _PART.fullmatch(other.name))]
    own = [(int(match["rank"]), other) for match, other in found if match["stem"] == path.stem]
    return [other for _, other in sorted(own)]


def leftover(folder: Path) -> list[Path]:
    """The files in ``folder`` of which a launch has left parts, or an incomplete merge."""
    names = {f"{match['stem']}.jsonl" for path in folder.iterdir() if (match := _PART.fullmatch(path.name))}
    names |= {path.name.removesuffix(MERGED) for path in folder.glob(f"*.jsonl{MERGED}")}
    return [folder / name for name in sorted(names)]


def merge(path: Path, place: Place | None = None) -> None:
    """Merges the parts of ``path`` into it. No process may be writing them.

    ``place`` gives the position of lines to be sorted, None for others. The sorted lines come last, so that a line
    which they replace stands before them; equal positions keep their order. Incomplete last lines are dropped.

    Raises:
        OSError: the disk is full or the folder cannot be written; nothing is lost.
    """
    merged = path.with_name(path.name + MERGED)
    if not merged.exists():
        own, others = parts(path), complete_lines(path)
        lines = [*others, *(line for one in own for line in complete_lines(one))]
        if place is not None:
            lines = _arranged(lines, place)
        if not own and lines == others:
            return
        _write(path.with_name(path.name + ".part"), lines)
        path.with_name(path.name + ".part").replace(merged)
        sync(path.parent)
    for one in parts(path):
        one.unlink()
    merged.replace(path)
    sync(path.parent)


def complete_lines(path: Path) -> list[bytes]:
    """The lines with their newlines, without an incomplete last line."""
    if not path.exists():
        return []
    return [line + b"\n" for line in path.read_bytes().split(b"\n")[:-1]]


def mend(path: Path) -> None:
    """Cuts off an incomplete last line."""
    with path.open("rb+") as handle:
        end = handle.seek(0, os.SEEK_END)
        place = end
        while place:
            start = max(0, place - BLOCK)
            handle.seek(start)
            if (found := handle.read(place - start).rfind(b"\n")) >= 0:
                place = start + found + 1
                break
            place = start
        if place < end:
            handle.truncate(place)


def sync(folder: Path) -> None:
    """Forces the directory entries of ``folder`` to disk, where the system supports it."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError:
        pass
    finally:
        os.close(handle)


def _arranged(lines: list[bytes], place: Place) -> list[bytes]:
    placed = [(number, line) for line in lines if (number := place(line)) is not None]
    mine = [line for _, line in sorted(placed, key=lambda one: one[0])]
    known = set(mine)
    return [*(line for line in lines if line not in known), *mine]


def _write(path: Path, lines: Iterable[bytes]) -> None:
    with path.open("wb") as handle:
        handle.writelines(lines)
        handle.flush()
        os.fsync(handle.fileno())
