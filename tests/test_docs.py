"""What the documents name exists: modules and functions, files, commands, and the targets of links."""

import importlib
import re
from functools import reduce
from pathlib import Path

import pytest
import torch

from tests.conftest import REPOSITORY

LOG = "docs/log.md"  # keeps the names of its day, and the change log lists old names
DOCUMENTS = sorted(
    str(path.relative_to(REPOSITORY)) for path in [*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md")]
)
CURRENT = [name for name in DOCUMENTS if name not in (LOG, "CHANGELOG.md")]
DOTTED = re.compile(r"`((?:interp|mitigation|experiments)(?:\.\w+)+)`")
PATH = re.compile(r"`((?:interp|mitigation|experiments|conf|tests|docs)/[\w./]*)`")
IMPORT = re.compile(r"^(?:>>> )?from ((?:interp|mitigation|experiments)[\w.]*) import (.+)$", re.MULTILINE)
COMMAND = re.compile(r"(?<![\w@.])(?:\+(exp)|(task))=(\w+)")
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


@pytest.mark.parametrize("document", CURRENT)
def test_every_name_in_a_document_exists(document: str) -> None:
    text = (REPOSITORY / document).read_text(encoding="utf-8")
    imported = [f"{module}.{name}" for module, names in IMPORT.findall(text) for name in names.split(", ")]
    for name in sorted({*DOTTED.findall(text), *imported}):
        resolved(name)
    absent = [path for path in sorted(set(PATH.findall(text))) if not (REPOSITORY / path).exists()]
    assert absent == []


@pytest.mark.parametrize("document", CURRENT)
def test_every_command_in_a_document_has_a_file(document: str) -> None:
    text = (REPOSITORY / document).read_text(encoding="utf-8")
    files = {f"conf/{exp or task}/{name}.yaml" for exp, task, name in COMMAND.findall(text)}
    assert sorted(file for file in files if not (REPOSITORY / file).is_file()) == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_link_in_a_document_leads_somewhere(document: str) -> None:
    source = REPOSITORY / document
    targets = LINK.findall(source.read_text(encoding="utf-8"))
    assert [target for target in targets if not (source.parent / Path(target)).exists()] == []


def test_nothing_leaves_the_tests_for_a_gpu_out() -> None:
    """They run where there is one, and skip by themselves elsewhere (``tests/conftest.py``)."""
    commands = [REPOSITORY / name for name in ("Makefile", ".ci/run", "pyproject.toml", *CURRENT)]
    assert [str(path) for path in commands if "not gpu" in path.read_text(encoding="utf-8")] == []


@pytest.mark.gpu
def test_a_test_for_a_gpu_runs_only_where_there_is_one() -> None:
    assert torch.cuda.is_available()
