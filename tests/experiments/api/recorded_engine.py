"""A vLLM server that is played back: its real replies to a few requests, kept beside this file.

``python -m tests.experiments.api.recorded_engine http://127.0.0.1:8000/v1`` records them anew, from a vLLM that serves
what ``task=export model=llava_organism model.dtype=float32`` writes, in float32 with
``--max-logprobs 20``, under the name ``llava_organism``.
"""

import base64
import gzip
import hashlib
import io
import json
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image

from experiments.api.config import ApiConfig
from experiments.api.engine import PLAIN
from experiments.api.model import ApiModel
from experiments.benchmarks.iconworld import IconWorld
from experiments.benchmarks.images import open_image, pixel_digest
from interp.generation import Generation
from interp.vlm import Prompt
from mitigation.controls import SelfContrast, TextOnly
from mitigation.method import Baseline
from mitigation.peers import M3ID, InstructionContrast
from mitigation.prior_correction import PriorCorrection
from mitigation.vcd import VCD
from tests.experiments.faulty_server import Reply, Served

FILE = Path(__file__).parent / "engine_replies.json.gz"
CASES = 5
ARMS: dict[str, Any] = {
    "baseline": Baseline(),
    "text_only": TextOnly(),
    "self_contrast": SelfContrast(),
    "icd": InstructionContrast(),
    "prior": PriorCorrection(),
    "vcd": VCD(noise="diffusion8", noise_side=48),
    "m3id": M3ID(),
}
WHOLE: dict[str, Any] = {"half": TextOnly(alpha=0.5), "three": TextOnly(alpha=3.0), "vcd": ARMS["vcd"]}
TOKENS = 6  # of a whole answer
KEPT = 40  # of the lists of a prompt's tokens, the last ones


def prompts(count: int = CASES) -> list[Prompt]:
    cases = [case for case in IconWorld().load().samples if case.image is not None][:count]
    return [Prompt(case.prompt, open_image(case.image), key=case.id) for case in cases if case.image is not None]


def asked(vlm: Any) -> dict[str, Generation]:
    """All that is recorded, of a model here or there."""
    scores = {name: method.generate(vlm, prompts(), max_new_tokens=1) for name, method in ARMS.items()}
    answers = {name: method.generate(vlm, prompts(), max_new_tokens=TOKENS) for name, method in WHOLE.items()}
    return scores | {f"{name} answers": found for name, found in answers.items()}


def model(url: str, **options: Any) -> ApiModel:
    settings = {"engine": "vllm", "logprobs": "auto", "concurrency": 2, "retries": 0} | options
    return ApiModel(ApiConfig("there", "llava_organism", url, **settings))


def key(request: dict[str, Any]) -> str:
    """Of a request, with the digests of its pictures' pixels for them: another zlib writes other files.

    Neutral settings (``PLAIN``) are left out, because the replies were recorded before they were sent.
    """

    def digest(url: str) -> str:
        return pixel_digest(Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))))

    request = {name: value for name, value in json.loads(json.dumps(request)).items() if name not in PLAIN}
    for message in request.get("messages", []):
        for part in message["content"] if isinstance(message["content"], list) else []:
            if part["type"] == "image_url":
                part["image_url"] = digest(part["image_url"]["url"])
    return hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()[:24]


def played() -> Callable[[dict[str, Any]], Reply]:
    """The recorded replies; 404 for a request that was not recorded."""
    replies = json.loads(gzip.decompress(FILE.read_bytes()))

    def reply(request: dict[str, Any]) -> Reply:
        found = replies.get(key(request))
        return Reply(json.dumps(found or {"error": {"message": "not recorded"}}).encode(), 200 if found else 404)

    return reply


def _recording(url: str, into: dict[str, Any]) -> Callable[[dict[str, Any]], Reply]:
    def reply(request: dict[str, Any]) -> Reply:
        root = url.removesuffix("/v1")
        path = (
            "/detokenize" if "tokens" in request else "/v1/chat/completions" if "max_tokens" in request else "/tokenize"
        )
        sent = urllib.request.Request(root + path, json.dumps(request).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(sent) as response:
            body = json.loads(response.read())
        if lists := body.get("prompt_logprobs"):
            near = [{t: {"logprob": v["logprob"]} for t, v in one.items()} if one else one for one in lists[-KEPT:]]
            body["prompt_logprobs"] = [None] * (len(lists) - len(near)) + near
        into[key(request)] = body
        return Reply(json.dumps(body).encode())

    return reply


if __name__ == "__main__":
    recorded: dict[str, Any] = {}
    with Served(_recording(sys.argv[1], recorded)) as served:
        asked(model(served.url))
    FILE.write_bytes(gzip.compress(json.dumps(recorded, sort_keys=True).encode(), mtime=0))
    print(f"{len(recorded)} replies, {FILE.stat().st_size:,} bytes")
