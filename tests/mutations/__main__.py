"""``make mutations``: makes every mutation in a copy of this checkout and runs its tests there, which must fail.

    python -m tests.mutations [NAME ...]

First the named tests run without any mutation, and must pass. Ends with 1 where a mutation was not caught, no longer
applies, or broke its tests otherwise than by failing (a module that does not import proves nothing).
"""

import argparse
import multiprocessing
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.mutations.mutation import PRODUCT, Mutation, Stale, mutations

ROOT = Path(__file__).resolve().parents[2]
PASSED, FAILED = 0, 1  # pytest's exit codes
LIMIT = 900  # seconds for the tests of one mutation
# Imported once and inherited by every run, which is a fork: these take longer than most of the tests.
SLOW_TO_IMPORT = (
    *("torch", "hypothesis", "pandas", "peft", "sklearn.model_selection", "statsmodels.stats.proportion"),
    *("transformers.generation.utils", "transformers.models.llava.modeling_llava", "transformers.models.auto"),
)


def copied(to: Path) -> Path:
    """A copy of what git tracks or would add, as it is in the working tree."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)
    return to


def run_tests(root: Path, tests: Sequence[str]) -> tuple[int, str]:
    """The exit code of ``tests`` in ``root``, up to the first failure, and the last lines; only in a fork."""
    os.chdir(root)
    os.environ |= {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    sys.path[:] = [str(root), *(path for path in sys.path if path not in ("", str(ROOT)))]
    for name in [name for name in sys.modules if name.partition(".")[0] in ("tests", *PRODUCT)]:
        del sys.modules[name]
    with (root / "output.txt").open("w+") as output:
        for stream in (1, 2):
            os.dup2(output.fileno(), stream)
        code = pytest.main(["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", *tests])
        sys.stdout.flush()
        return int(code), "\n".join((root / "output.txt").read_text(encoding="utf-8").splitlines()[-15:])


def unmutated(tests: Sequence[str]) -> tuple[int, str]:
    """``run_tests`` in a copy as it is."""
    with TemporaryDirectory(prefix="mutation-") as folder:
        return run_tests(copied(Path(folder)), tests)


def outcome(mutation: Mutation) -> tuple[bool, str]:
    """Whether the mutation was caught, and a line on it."""
    begun = time.perf_counter()
    with TemporaryDirectory(prefix="mutation-") as folder:
        root = copied(Path(folder))
        try:
            mutation.apply(root)
        except Stale as error:
            return False, f"STALE      {error}"
        code, said = run_tests(root, mutation.tests)
    took = f"{time.perf_counter() - begun:4.0f} s"
    if code == FAILED:
        failed = next((line for line in said.splitlines() if line.startswith("FAILED")), "")
        return True, f"caught     {mutation.name} ({took}) {failed.partition(' - ')[0]}"
    what = "NOT CAUGHT" if code == PASSED else f"EXIT {code}    "
    return False, f"{what} {mutation.name} ({took}): {mutation.breaks}" + ("" if code == PASSED else f"\n{said}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="these mutations alone")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    known = {one.name: one for one in mutations()}
    if unknown := [name for name in given.names if name not in known]:
        parser.error(f"no mutation {unknown[0]}; known: {', '.join(known)}")
    chosen = [known[name] for name in given.names or known]
    print(f"{len(chosen)} mutations; first their tests without any", flush=True)
    for name in SLOW_TO_IMPORT:
        import_module(name)
    caught = 0
    with multiprocessing.get_context("fork").Pool(given.jobs, maxtasksperchild=1) as pool:
        tests = list(dict.fromkeys(test for one in chosen for test in one.tests))
        code, said = pool.apply(unmutated, [tests])
        if code != PASSED:
            print(f"without a mutation the tests must pass:\n{said}")
            return 1
        done = pool.imap(outcome, chosen)
        for mutation in chosen:
            try:
                good, line = done.next(timeout=LIMIT)
            except multiprocessing.TimeoutError:
                print(f"NO END after {LIMIT} s: {mutation.name}")
                return 1
            print(line, flush=True)
            caught += good
    print(f"{caught} of {len(chosen)} mutations caught")
    return 0 if caught == len(chosen) else 1


if __name__ == "__main__":
    raise SystemExit(main())
