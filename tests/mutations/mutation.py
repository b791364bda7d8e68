"""Mutations: small faults in the science, each of which the tests named with it must catch.

A ``*.patch`` beside this file says in its first lines what it breaks, names ``tests:`` (a pytest node id a line), and
has one hunk or more in the manner of a diff, without file names and line numbers: ``@@``, then lines that begin with a
blank (stays), ``-`` (goes) or ``+`` (comes). Its file is the one that holds these lines, so that it survives whatever
is moved or added around them.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
PRODUCT = ("interp", "mitigation", "experiments")


class Stale(Exception):
    """Why a mutation can no longer be made; a sentence."""


@dataclass(frozen=True)
class Mutation:
    """What one patch breaks, the tests that must notice, and its hunks as (lines before, lines after)."""

    name: str
    breaks: str
    tests: tuple[str, ...]
    hunks: tuple[tuple[str, str], ...]

    @classmethod
    def read(cls, path: Path) -> "Mutation":
        """The patch in ``path``.

        Raises:
            Stale: it says nothing of what it breaks, names no test, or has a hunk that changes nothing.
        """
        head, *bodies = re.split(r"^@@\n", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
        lines = head.split("\n")
        tests = tuple(line.removeprefix("tests:").strip() for line in lines if line.startswith("tests:"))
        breaks = " ".join(line for line in lines if line and not line.startswith("tests:"))
        hunks = tuple((_side(body, " -"), _side(body, " +")) for body in bodies)
        if not breaks or not tests or not hunks or any(before == after for before, after in hunks):
            raise Stale(f"{path.name}: needs a sentence, a line 'tests:' and a hunk that changes something")
        return cls(path.stem, breaks, tests, hunks)

    def apply(self, root: Path) -> list[Path]:
        """Makes the fault in the checkout at ``root``; the files that changed.

        Raises:
            Stale: the lines of a hunk are in no file of the product, or in several places.
        """
        changed = []
        for before, after in self.hunks:
            path = self.home(root, before)
            path.write_text(path.read_text(encoding="utf-8").replace(before, after), encoding="utf-8")
            changed.append(path)
        return changed

    def home(self, root: Path, before: str) -> Path:
        """The one file with these lines, once."""
        found = {path: text.count(before) for path, text in _sources(root) if before in text}
        if sum(found.values()) != 1:
            where = ", ".join(str(path.relative_to(root)) for path in found) or "no file"
            raise Stale(f"{self.name}: these lines must stand in one place, and are in {where}:\n{before}")
        return next(iter(found))


def _side(body: str, kinds: str) -> str:
    return "".join(f"{line[1:]}\n" for line in body.splitlines() if line[:1] in kinds)


def _sources(root: Path) -> Iterator[tuple[Path, str]]:
    for package in PRODUCT:
        for path in sorted((root / package).rglob("*.py")):
            yield path, path.read_text(encoding="utf-8")


def mutations() -> list[Mutation]:
    """All patches, by name."""
    return [Mutation.read(path) for path in sorted(FOLDER.glob("*.patch"))]
