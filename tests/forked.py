"""Commands as they are typed, each in a process of its own that has imported the libraries before it begins.

They are forks of a Python that has done nothing else: torch, transformers and the rest take seconds to import, once a
test run and not once a command. What a fresh Python does while it imports is asked of ``sys.executable``.
"""

import gc
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
LIBRARIES = (
    *("experiments.evaluation.study", "interp.loading", "mitigation.vcd", "matplotlib.backends.backend_svg"),
    *(f"transformers.models.{one}" for one in ("clip.modeling_clip", "llama.modeling_llama", "llava.modeling_llava")),
)


def typed(
    module: str, *words: str, folder: Path = REPOSITORY, seconds: int = 600, **environment: str
) -> subprocess.CompletedProcess[str]:
    """What ``python -m module words`` answers in ``folder``; it is ended after ``seconds``."""
    server = _server()
    with tempfile.TemporaryDirectory() as kept:
        said = [Path(kept, "stdout"), Path(kept, "stderr")]
        asked = [module, words, str(folder), dict(os.environ | environment), [*map(str, said)], seconds]
        print(json.dumps(asked), file=server.stdin, flush=True)
        code = int(server.stdout.readline())
        return subprocess.CompletedProcess([module, *words], code, *(path.read_text() for path in said))


@cache
def _server() -> "subprocess.Popen[str]":
    """Ends with this process, which holds its input open."""
    command = [sys.executable, "-m", "tests.forked"]
    return subprocess.Popen(command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _become(module: str, words: list[str], folder: str, environment: dict[str, str], said: list[str], end: int) -> None:
    for number, path in enumerate([os.devnull, *said]):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT), number)
    os.chdir(folder)
    os.environ.clear()
    os.environ |= environment
    sys.path[:1] = [folder, str(REPOSITORY)]
    sys.argv[1:] = words
    signal.alarm(end)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _serve() -> None:
    """Forks a command for each line; of the fork, which goes on at the end, the rest of its life is the command."""
    for library in LIBRARIES:
        importlib.import_module(library)
    gc.freeze()  # or each fork would copy most of it while it collects garbage
    for line in sys.stdin:
        if (child := os.fork()) == 0:
            return _become(*json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    _serve()
