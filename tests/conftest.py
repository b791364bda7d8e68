"""Shapes are checked while the tests run: the import hook comes before anything of ours is imported."""

import gc
import os
from pathlib import Path
from typing import Any

from tests import typechecks

REPOSITORY = Path(__file__).resolve().parent.parent
typechecks.install(REPOSITORY / "interp", REPOSITORY / "mitigation")

import pytest  # noqa: E402
import torch  # noqa: E402
from hypothesis import settings  # noqa: E402

import interp  # noqa: E402
from interp.checkpoints import load  # noqa: E402
from interp.vlm import VLM  # noqa: E402
from tests.families import FAMILIES, every_family  # noqa: E402
from tests.tiny import tiny_llava  # noqa: E402

# No deadlines: how long an example takes says more about the machine than about the code.
settings.register_profile("forestlens", deadline=None)
settings.load_profile("forestlens")


def pytest_collection_finish() -> None:
    """What is imported stays: looking for garbage in its half a million objects took a tenth of the time of tests."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)  # before a fixture could want the GPU
def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test marked ``gpu`` skips where there is none, so that no selection has to leave it out."""
    if item.get_closest_marker("gpu") is not None and not torch.cuda.is_available():
        pytest.skip("no CUDA device")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The team's folder of data and golden files, which lies beside the repository and is not part of it."""
    folder = Path(os.environ.get("FORESTLENS_SHARED", REPOSITORY.parent / "shared"))
    if not (folder / "data").is_dir():
        pytest.skip(f"no shared folder with data at {folder}; set FORESTLENS_SHARED to run this test")
    return folder


@pytest.fixture
def vlm() -> VLM:
    """A fresh tiny LLaVA, so that a test which changes it changes nobody else's."""
    return VLM(*tiny_llava(), name="tiny")


@pytest.fixture(params=every_family())
def family(request: pytest.FixtureRequest) -> VLM:
    """One model of every family in turn."""
    return VLM(*FAMILIES[request.param](), name=request.param)


@pytest.fixture(scope="session")
def organism() -> VLM:
    """The bundled LLaVA; who changes it undoes that."""
    return interp.load("organism:llava", device="cpu")


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tiny LLaVA's weights and processor."""
    folder = tmp_path_factory.mktemp("models") / "tiny-saved"
    model, processor = tiny_llava()
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


@pytest.fixture
def no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails the test where ``load`` reads weights."""

    def fail(*_: Any) -> None:
        raise AssertionError("weights were read")

    monkeypatch.setattr(load, "read_weights", fail)
