"""What a model's configuration refuses, and what it does not import."""

import pytest

from interp.checkpoints.config import ModelConfig
from interp.errors import UserError


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda", "cuda:1", "mps"])
def test_devices(device: str) -> None:
    assert ModelConfig("tiny", "a/b", device=device).device == device


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"path": ""}, "empty path"),
        ({"dtype": "float8"}, "'float8'"),
        ({"device": "gpu"}, "'gpu'"),
        ({"device": "cuda:x"}, "'cuda:x'"),
        ({"device": "cpu:1"}, "'cpu:1'"),
        ({"device": "cuda:"}, "'cuda:'"),
        ({"memory_gib": 0.0}, "model.memory_gib=0.0"),
        ({"device_map": "somewhere"}, "unknown device_map 'somewhere'"),
        ({"device_map": "auto", "device": "cuda:1"}, "device cuda:1 and device_map auto are both given"),
        ({"max_pixels": 0}, "model.max_pixels=0"),
        ({"min_pixels": -1}, "model.min_pixels=-1"),
        ({"memory_gib": float("nan")}, "model.memory_gib=nan"),
        ({"template": {"enable thinking": True}}, "model.template.enable thinking is no keyword"),
        (
            {"template": {"messages": []}},
            "model.template.messages is no keyword of a chat template, or each",
        ),
        ({"template": {"x": float("inf")}}, "model.template.x=inf cannot be written as JSON"),
        ({"template": {"x": {1, 2}}}, "cannot be written as JSON"),
    ],
)
def test_refusals_name_the_value(fields: dict, named: str) -> None:
    with pytest.raises(UserError, match=named):
        ModelConfig(**{"name": "tiny", "path": "a/b", **fields})
