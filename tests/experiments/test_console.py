"""``forestlens``, installed from a wheel, works in any directory; so does ``python -m`` where ours is shadowed."""

import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from experiments.command_line.help_page import COMMANDS
from tests.conftest import REPOSITORY

PACKAGES = ("interp", "mitigation", "experiments", "conf")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of the files that git tracks or would: pip builds in the folder it is given."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in _tracked("."):
        if (REPOSITORY / name).is_file():
            (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / "source" / name).write_bytes((REPOSITORY / name).read_bytes())
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--wheel-dir", str(folder), str(folder / "source")], check=True)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def command(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``forestlens`` in a fresh environment: the wheel, and the libraries of this one without its forestlens."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    site = Path(subprocess.run(
        [folder / "bin" / "python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True, capture_output=True, text=True,
    ).stdout.strip())  # fmt: skip
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install", "--quiet"]
    subprocess.run([*pip, "--no-deps", "--force-reinstall", "--ignore-installed", str(wheel)], check=True)
    return folder / "bin" / "forestlens"


def _tracked(*folders: str) -> list[str]:
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *folders]
    return subprocess.run(listed, cwd=REPOSITORY, check=True, capture_output=True, text=True).stdout.splitlines()


@pytest.mark.slow
def test_the_wheel_holds_every_file_of_the_packages(wheel: Path) -> None:
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if not name.startswith("forestlens-")}
    assert packed == {name for name in _tracked(*PACKAGES) if (REPOSITORY / name).is_file()}


@pytest.mark.slow
@pytest.mark.parametrize("own", [False, True], ids=["an empty directory", "one with its own conf and experiments"])
def test_the_main_experiment_runs_anywhere(command: Path, tmp_path: Path, own: bool) -> None:
    if own:
        for name in PACKAGES:
            (tmp_path / name).mkdir()
            (tmp_path / name / "__init__.py").write_text("raise ImportError('the wrong package')\n")
        (tmp_path / "conf" / "config.yaml").write_text("mine: 1\n")
    answer = subprocess.run(
        [command, "+exp=vcd_llava", "limit=20"], cwd=tmp_path, capture_output=True, text=True, timeout=600
    )
    assert answer.returncode == 0, answer.stderr
    assert "llava_organism: 20 cases from iconworld" in answer.stdout
    assert len(list(tmp_path.glob("outputs/vcd_llava/*/report.html"))) == 1


@pytest.mark.long
def test_python_m_is_not_shadowed_by_the_working_directory(tmp_path: Path) -> None:
    for name in ("conf", "interp", "mitigation"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
    (tmp_path / "own.py").write_text("print('own.py is found, after our packages')\n")
    code = f"import sys; sys.path.insert(1, {str(REPOSITORY)!r})\nfrom experiments.run import main\nmain()\n"
    asked = [sys.executable, "-c", code, "method._target_=own.Method"]
    answer = subprocess.run(asked, cwd=tmp_path, capture_output=True, text=True)
    assert answer.stdout == "own.py is found, after our packages\n"
    assert answer.returncode == 2, answer.stderr


def test_the_demo_is_the_first_command_of_the_greeting() -> None:
    text = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    demo = text[text.index("demo:") : text.index("smol: ")]
    assert re.findall(r"\$\(BIN\)/forestlens (.*)$", demo, re.MULTILINE) == [next(iter(COMMANDS))]
