"""Collects what the contract tests find, holds it against ``interp/contract.json``, and writes it on demand.

``--contract-json PATH`` writes the table of the run and prints how it differs from the committed one. Without it a test
that contradicts the committed table fails, if that was made with the transformers that is installed.

``--contract-check`` writes nothing, prints how the table of the run differs from the committed one, and fails where it
does, or where the run has less than the whole.

The cells of a run take the place of those in the file at PATH, which was made with the same versions: with ``-k`` a
table can be made in pieces.
"""

import json
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from tests.contract.facts import WITHOUT_ROW
from tests.contract.table import (
    CAPABILITIES,
    COMMITTED,
    FAILS,
    Found,
    contradiction,
    differences,
    drawn,
    merged,
    table,
    untested,
)

KEY = "contract"
FAMILY_ARGUMENTS = ("family", "name", "pieces")
_FOUND: list[Found] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options that write the table and compare it."""
    parser.addoption("--contract-json", metavar="PATH", help="write what the contract tests find to this file")
    parser.addoption(
        "--contract-check", action="store_true", help="fail where interp/contract.json is not what is found"
    )


def pytest_configure(config: pytest.Config) -> None:
    """The marker."""
    config.addinivalue_line(
        "markers", "contract(*capabilities): shows what works on a family (tests/contract/table.py)"
    )


def family_of(item: Any) -> str:
    """The family that a parametrised test is about; AssertionError where it has no such parameter."""
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    for name in FAMILY_ARGUMENTS:
        if name in parameters:
            return str(getattr(parameters[name], "__name__", parameters[name]))
    raise AssertionError(f"{item.nodeid} shows a capability of no family; parametrise it by {FAMILY_ARGUMENTS}")


def capabilities_of(item: Any) -> tuple[str, ...]:
    """What the test shows."""
    return tuple(name for marker in item.iter_markers(KEY) for name in marker.args)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: Any, call: Any) -> Iterator[None]:
    """Puts the finding into the report, which reaches the first process from any worker."""
    outcome: Any = yield
    report = outcome.get_result()
    names = capabilities_of(item)
    if not names or (report.when != "call" and report.passed) or report.skipped:
        return
    assert set(names) <= set(CAPABILITIES), f"{names}: known capabilities are {CAPABILITIES}"
    said = dict(item.user_properties)
    error = "" if report.passed else f"{call.excinfo.typename}: {call.excinfo.value}".splitlines()[0]
    found = Found(
        family=family_of(item),
        capabilities=names,
        test=item.nodeid,
        passed=report.passed,
        error=error,
        not_applicable=said.get("not_applicable", ""),
        limit=said.get("limit", ""),
        facts=said.get("facts", {}),
    )
    if report.passed and item.config.getoption("--contract-json", None) is None and (against := _against(found)):
        report.outcome = "failed"
        report.longrepr = f"interp/contract.json: {against}; write it anew with `make contract`"
    report.user_properties.append((KEY, vars(found)))


def _against(found: Found) -> str:
    if not COMMITTED.is_file():
        return ""
    committed = json.loads(COMMITTED.read_text())
    return contradiction(found, committed) if committed["transformers"] == version("transformers") else ""


def pytest_runtest_logreport(report: Any) -> None:
    """In the first process: every finding, wherever it was made."""
    _FOUND.extend(Found(**value) for name, value in report.user_properties if name == KEY)


def _made() -> dict[str, Any]:
    """The table of this run."""
    return table(
        _FOUND,
        {
            "transformers": version("transformers"),
            "torch": version("torch").partition("+")[0],
            "without_row": {why: list(names) for why, names in WITHOUT_ROW.items()},
        },
    )


def _differing(contents: dict[str, Any], config: pytest.Config) -> list[str]:
    """How it differs from the committed table; a cell without a test counts where all families were asked."""
    committed = json.loads(COMMITTED.read_text()) if COMMITTED.is_file() else {"families": {}}
    whole = config.getoption("--contract-check") and not config.getoption("keyword")
    return differences(contents, committed) + (untested(contents, committed) if whole else [])


def pytest_sessionfinish(session: Any) -> None:
    """In the first process: with ``--contract-check`` a table that is not the committed one is a failure."""
    config = session.config
    if config.getoption("--contract-check") and not hasattr(config, "workerinput") and _differing(_made(), config):
        session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Writes and shows the table where it was asked for."""
    path, check = config.getoption("--contract-json"), config.getoption("--contract-check")
    if not (path or check) or hasattr(config, "workerinput"):  # a worker of xdist has seen a part of it alone
        return
    contents = _made()
    write = terminalreporter.write_line
    for line in ["", f"contract with transformers {contents['transformers']}", *drawn(contents)]:
        write(line)
    changed = _differing(contents, config)
    write(f"{len(changed)} cells differ from {COMMITTED.name}" + (":" if changed else ""))
    for line in changed:
        write("  " + line)
    if path is not None and _FOUND:
        write(_written(Path(path), contents))


def _written(path: Path, contents: dict[str, Any]) -> str:
    """Write the cells into the table at ``path``, or a new table. Return what was done."""
    cells = [cell for entry in contents["families"].values() for cell in entry["capabilities"].values()]
    if any((cell["reason"] or "").startswith(FAILS) for cell in cells) and path.resolve() == COMMITTED:
        return f"not written: {COMMITTED.name} is never made of failing tests"
    before = json.loads(path.read_text()) if path.is_file() else {}
    if all(before.get(name) == contents[name] for name in ("transformers", "torch")):
        contents = merged(contents, {**before, "without_row": contents["without_row"]})
    path.write_text(json.dumps(contents, indent=1, ensure_ascii=False) + "\n")
    return f"written: {path}"
