"""A pretended device counts memory by storage, work by operation, and runs out of memory where a GPU would."""

import os
import subprocess
import sys

import pytest

from tests.conftest import REPOSITORY

# The hook into torch is for the whole process.
SCRIPT = """
import torch
from experiments.shapes.ledger import BLOCK, Rates
from experiments.shapes.device import Unsupported, place, world

MIB = 2**20
try:
    with world() as here:
        ledger = here.ledger

        def held():
            return ledger.now

        one = torch.ones(512, 512, device="pretend:0")
        assert held() == MIB
        views = [one[2:5], one.T, one.reshape(-1), one.expand(3, 512, 512), one.detach(), one.view(256, 1024)]
        assert held() == MIB  # a view takes nothing
        del one
        assert held() == MIB  # and keeps what it is on
        del views
        assert held() == 0
        few = torch.ones(3, device="pretend:0")
        assert held() == BLOCK
        del few

        ledger.restart()
        one = torch.ones(512, 512, device="pretend:0")
        (one * 2) + 1
        assert held() == MIB and ledger.most == 3 * MIB
        out = torch.empty(512, 512, device="pretend:0")
        torch.mm(one, one, out=out)
        assert held() == 2 * MIB
        del out

        # What autograd keeps is held until the gradient is there.
        weight = torch.ones(512, 512, device="pretend:0", requires_grad=True)
        loss = (one @ weight).exp().sum()
        assert held() == 3 * MIB + BLOCK  # exp keeps what it gave
        loss.backward()
        assert held() == 3 * MIB + BLOCK and weight.grad is not None
        del weight, loss

        for rates in (Rates(2.0 * 512**3, 1e15, 0.0), Rates(1e15, 3.0 * MIB, 0.0), Rates(1e15, 1e15, 1.0)):
            ledger.rates, before = rates, ledger.seconds
            one @ one  # by its arithmetic, by what it reads and writes, by its start
            assert abs(ledger.seconds - before - 1) < 1e-9

        queries = torch.ones(1, 2, 1024, 64, device="pretend:0")
        ledger.restart()
        start = held()
        torch.nn.functional.scaled_dot_product_attention(queries, queries, queries)
        assert ledger.most - start < 2 * MIB  # not 8 MiB of queries × keys
        del queries

        class Tied(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.one = torch.nn.Linear(512, 512, bias=False)
                self.other = torch.nn.Linear(512, 512, bias=False)
                self.other.weight = self.one.weight

        del one
        with torch.device("meta"):
            tied = Tied()
        place(tied, {"": torch.device("pretend:0")})
        assert tied.one.weight is tied.other.weight and held() == MIB
    with world() as here:
        here.ledger.capacity = 2 * MIB
        one = torch.ones(512, 512, device="pretend:0")
        two = torch.ones(512, 512, device="pretend:0")
        try:
            torch.ones(1, device="pretend:0")
        except torch.OutOfMemoryError:
            print("as hardware")
        other = torch.ones(512, 512, device="pretend:1")  # a device of its own
        del two
        one * 2
except Unsupported as error:
    print("unsupported:", error)
"""


@pytest.mark.long
def test_a_pretended_device_counts() -> None:
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=300)
    assert ended.stdout.startswith(("as hardware", "unsupported")), ended.stderr[-3000:]
