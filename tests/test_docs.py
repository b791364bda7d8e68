"""What the documents name exists: modules and functions, files, and the targets of links."""

import importlib
import re
from functools import reduce
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

LOG = "docs/log.md"  # keeps the names of its day
DOCUMENTS = sorted(
    str(path.relative_to(REPOSITORY)) for path in [*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md")]
)
DOTTED = re.compile(r"`((?:interp|mitigation|experiments)(?:\.\w+)+)`")
PATH = re.compile(r"`((?:interp|mitigation|experiments|conf|tests|docs)/[\w./]*)`")
LINK = re.compile(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)")


def resolved(name: str) -> object:
    """The module or attribute of a dotted name; ImportError or AttributeError where there is none."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            module = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        return reduce(getattr, parts[length:], module)
    raise ImportError(name)


@pytest.mark.parametrize("document", [name for name in DOCUMENTS if name not in (LOG, "CHANGELOG.md")])
def test_every_name_in_a_document_exists(document: str) -> None:
    text = (REPOSITORY / document).read_text(encoding="utf-8")
    for name in sorted(set(DOTTED.findall(text))):
        resolved(name)
    absent = [path for path in sorted(set(PATH.findall(text))) if not (REPOSITORY / path).exists()]
    assert absent == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_link_in_a_document_leads_somewhere(document: str) -> None:
    source = REPOSITORY / document
    targets = LINK.findall(source.read_text(encoding="utf-8"))
    assert [target for target in targets if not (source.parent / Path(target)).exists()] == []
