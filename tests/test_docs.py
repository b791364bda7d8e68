"""What the documents name exists: modules and functions, files, commands, and the targets of links."""

import importlib
import re
import shlex
from functools import cache, reduce
from pathlib import Path

import pytest
import torch

from experiments.command_line.arguments import expand, in_a_sentence
from interp.checkpoints.config import ORGANISMS
from tests.conftest import REPOSITORY
from tests.experiments.compose import composed

LOG = "docs/log/"  # keeps the names of its day, and the change log lists old names
DOCUMENTS = sorted(
    str(path.relative_to(REPOSITORY)) for path in [*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md")]
)
CURRENT = [name for name in DOCUMENTS if not name.startswith(LOG)]
DOTTED = re.compile(r"`((?:interp|mitigation|experiments)(?:\.\w+)+)`")
PATH = re.compile(r"`((?:interp|mitigation|experiments|conf|tests|docs)/[\w./]*)`")
IMPORT = re.compile(r"^(?:>>> )?from ((?:interp|mitigation|experiments)[\w.]*) import (.+)$", re.MULTILINE)
COMMAND = re.compile(r"(?<![\w@.])(?:\+(exp)|(task))=(\w+)")
HEADING = re.compile(r"^#{1,6} +(.+?)\s*$", re.MULTILINE)
REMOVED_TABLE = re.compile(r"^\| removed \| instead \|\n(?:\|.*\n)+", re.M)
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
TYPED = re.compile(r"(?:^|\s|/)(?:forestlens|-m experiments\.run) (?!-)(.+)$")
INLINE = re.compile(r"`([^`\n]+)`")
ANCHORED = re.compile(r"\]\((?!https?:)([^)#]*)#([^)]+)\)")
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


def test_the_page_on_python_names_both_bundled_models_and_how_the_notebook_is_run() -> None:
    page = (REPOSITORY / "docs" / "guide-python.md").read_text(encoding="utf-8")
    for name in ("llava", "smol"):
        assert f'load("organism:{name}")' in page
        assert (ORGANISMS / name).is_dir()
    assert "make notebook" in page
    assert "jupyter lab docs/tutorial.ipynb" in (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    assert "python -m tests.notebook docs/tutorial.ipynb" in page  # test_tutorial runs this


@pytest.mark.parametrize("document", CURRENT)
def test_every_command_in_a_document_has_a_file(document: str) -> None:
    text = today((REPOSITORY / document).read_text(encoding="utf-8"))
    files = {f"conf/{exp or task}/{name}.yaml" for exp, task, name in COMMAND.findall(text)}
    assert sorted(file for file in files if not (REPOSITORY / file).is_file()) == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_link_in_a_document_leads_somewhere(document: str) -> None:
    source = REPOSITORY / document
    targets = LINK.findall(source.read_text(encoding="utf-8"))
    assert [target for target in targets if not (source.parent / Path(target)).exists()] == []


def anchors(text: str) -> set[str]:
    """What GitHub calls the headings of a page: lower case, without punctuation, "-" for a space."""
    plain = (re.sub(r"[`*]|\]\([^)]*\)", "", one).lower() for one in HEADING.findall(FENCED.sub("", text)))
    return {re.sub(r"[^\w\- ]", "", one).replace(" ", "-") for one in plain}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_anchor_is_a_heading(document: str) -> None:
    source = REPOSITORY / document
    named = ANCHORED.findall(FENCED.sub("", source.read_text(encoding="utf-8")))
    pages = {target: (source.parent / target if target else source).read_text(encoding="utf-8") for target, _ in named}
    assert [f"{target}#{anchor}" for target, anchor in named if anchor not in anchors(pages[target])] == []


def today(text: str) -> str:
    """Return the text without the table of removed features, which names what is gone."""
    return REMOVED_TABLE.sub("", text)


def typed(text: str) -> list[str]:
    """The commands of a document, in blocks and in sentences, with a word for each of its <placeholders>."""
    lines = [*"\n".join(FENCED.findall(text)).splitlines(), *INLINE.findall(FENCED.sub("", text))]
    found = [match[1] for line in lines if (match := TYPED.search(line))]
    found += [line for line in INLINE.findall(text) if re.match(r"(?:\+exp|task)=\w", line)]
    return [re.sub(r"<[^>]*>|…", "X", one.replace("=<model>", "=llava_1_5_7b")).replace("0|1|2", "0") for one in found]


@cache
def refusal(command: str) -> str:
    """Why the command does not compose; "" where it does. Half of the commands stand in several documents."""
    arguments = shlex.split(command, comments=True)
    if arguments[0] == "new":  # writes files, and composes nothing
        return ""
    try:
        composed(*expand(arguments))
    except Exception as error:
        return in_a_sentence(error, arguments) or repr(error)
    return ""


@pytest.mark.long
@pytest.mark.parametrize("document", CURRENT)
def test_every_command_in_a_document_composes(document: str) -> None:
    commands = typed(today((REPOSITORY / document).read_text(encoding="utf-8")))
    refused = {command: refusal(command) for command in commands}
    assert {command: said for command, said in refused.items() if said} == {}


def test_commands_are_found_in_blocks_and_in_sentences() -> None:
    block = "```\n.venv/bin/forestlens limit=2  # few\n$ python -m experiments.run seed=0|1|2\n```\n"
    text = f"Type `forestlens +exp=a x=<dir>` or `task=b`.\n{block}"
    assert typed(text) == ["limit=2  # few", "seed=0", "+exp=a x=X", "task=b"]
    assert anchors("# On `x`: [a page](b.md)?\n```\n# none\n```\n") == {"on-x-a-page"}


def test_nothing_leaves_the_tests_for_a_gpu_out() -> None:
    """They run where there is one, and skip by themselves elsewhere (``tests/conftest.py``)."""
    commands = [REPOSITORY / name for name in ("Makefile", ".ci/run", "pyproject.toml", *CURRENT)]
    assert [str(path) for path in commands if "not gpu" in path.read_text(encoding="utf-8")] == []


@pytest.mark.gpu
def test_a_test_for_a_gpu_runs_only_where_there_is_one() -> None:
    assert torch.cuda.is_available()
