"""Jobs that need a process of their own, because torch pretends devices for a whole process."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.conftest import REPOSITORY


def lines_of(module: str, *arguments: str) -> list[dict[str, Any]]:
    """The lines of JSON that the job prints; skips where this torch cannot pretend a device."""
    command = [sys.executable, "-W", "ignore", "-m", module, *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=900)
    assert ended.returncode == 0, ended.stderr[-3000:]
    lines = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
    if reason := lines[0].get("unsupported"):
        pytest.skip(reason)
    return lines
