"""A run is named by what was loaded: its name, and the beginning of its weights' hash, wherever it is mentioned."""

import pytest

from experiments.runs.record_fields import arm_title, model_title
from tests.experiments.compose import composed, run_of


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        (("model.path=/x/my-llava",), "my-llava"),
        (("model=llava_1_5_7b", "++model.path=owner/my-llava"), "my-llava"),
        (("model=llava_1_5_7b", "model.path=organism:llava"), "organism:llava"),
        (("model.path=/x/my-llava", "model.name=llava_organism"), "llava_organism"),  # given, so it is meant
        (("model=llava_1_5_7b",), "llava_1_5_7b"),
        (("model=api_vllm", "model.model=Qwen/Qwen2.5-VL-7B-Instruct"), "Qwen2.5-VL-7B-Instruct"),
        (("model=api_vllm", "model.base_url=http://127.0.0.1:9000/v1"), "api_vllm"),
    ],
)
def test_a_model_is_named_by_what_is_loaded(overrides: tuple[str, ...], name: str) -> None:
    run = run_of(*overrides)
    assert run.model.name == name
    assert run.config["model"]["name"] == name


@pytest.mark.long
def test_a_model_that_is_not_moved_continues_what_was_begun_under_its_name() -> None:
    for overrides in (("model=llava_1_5_7b", "model.dtype=float32"), ("model=api_vllm", "model.retries=1")):
        assert run_of(*overrides).config["model"] == composed(*overrides).model


def test_the_title_of_a_model_has_the_beginning_of_its_hash() -> None:
    assert model_title({"name": "my-llava", "revision": "sha256:3f9a1c2e7777"}) == "my-llava (3f9a1c2e)"
    assert model_title({"name": "my-llava", "revision": None}) == "my-llava"
    model = {"name": "m", "adapters": {"tuned": "sha256:abcdef0123"}}
    assert [arm_title(model, arm) for arm in ("tuned", "vcd")] == ["tuned (adapter abcdef01)", "vcd"]
