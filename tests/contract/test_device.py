"""Pretended devices refuse what hardware would refuse, and count memory and what would make the host wait."""

import os
import subprocess
import sys

import pytest

from tests.conftest import REPOSITORY

# The hook into torch is for the whole process.
SCRIPT = """
import torch
from torch.utils.checkpoint import checkpoint
from interp.tools.gradients import same_functions
from tests.two_devices.device import TOKEN, DeviceMismatch, Unsupported, world

def refused(run, by=DeviceMismatch):
    try:
        run()
    except by:
        return True
    return False

try:
    with world() as here:
        one, other = (torch.ones(3, 4, device=f"pretend:{i}") for i in (0, 1))
        rows = torch.arange(3, device="pretend:1")
        assert refused(lambda: one + other)
        assert refused(lambda: one + torch.ones(4))
        assert refused(lambda: one[rows])  # indices on another card
        assert refused(lambda: torch.ones(3)[rows])
        assert refused(lambda: one.sum() + other)  # a number on another card, too
        assert not refused(lambda: one + torch.tensor(2.0))  # but not one on the host
        assert not refused(lambda: one + other.to("pretend:0"))
        assert (rows + 1).tolist() == [1, 2, 3] and int(rows.sum()) == 3
        assert one.argmax().item() == TOKEN and one.cpu().shape == (3, 4) and one.cpu().std() > 0
        assert (one > 0).sum().item() == 0
        rows_of_many = torch.ones(3, 2**19, device="pretend:0").cpu()
        assert rows_of_many.std() > 0 and not torch.equal(rows_of_many[0], rows_of_many[2])

        def waits(run):
            here.waits.clear()
            run()
            return len(here.waits)

        host, flags = torch.tensor([0, 2]), rows > 0
        assert waits(lambda: (one @ one.T).softmax(-1).to("pretend:1")) == 0
        assert waits(lambda: host.to("pretend:0", non_blocking=True)) == 0
        for run in (lambda: one.cpu(), lambda: rows[0].item(), lambda: bool(flags.any()), lambda: rows.tolist(),
                    lambda: other[flags], lambda: flags.nonzero(), lambda: one[host], lambda: one[[0, 2]],
                    lambda: host.to("pretend:0"), lambda: torch.tensor([1], device="pretend:0"),
                    lambda: torch.equal(rows, rows)):
            assert waits(run) == 1, waits(run)
        assert other[flags].shape == (2, 4)
        weight = torch.ones(4, device="pretend:1", requires_grad=True)
        (gradient,) = torch.autograd.grad((other @ weight).sum(), [weight])
        assert gradient.device == weight.device

        # Memory is that of storages: a view takes nothing, and keeps what it is on.
        first = here.ledger.accounts[one.device]
        before = first.now
        state = torch.ones(512, 512, device="pretend:0")
        assert first.now - before == 2**20
        views = [state[2:5], state.T, state.reshape(-1), state.expand(3, 512, 512), state.detach()]
        del state
        assert first.now - before == 2**20
        del views
        here.ledger.restart()
        assert first.now == before == first.most
        queries = torch.ones(1, 2, 1024, 64, device="pretend:0")
        torch.nn.functional.scaled_dot_product_attention(queries, queries, queries)
        assert first.most - before < 3 * 2**20  # not 8 MiB of queries × keys
        del queries

        many = torch.ones(2**20, device="pretend:0", requires_grad=True)
        here.ledger.capacity = here.ledger.now + 2**21  # no room for the gradient
        try:
            many.sum().backward()
            raise AssertionError("it fitted")
        except torch.OutOfMemoryError:
            here.ledger.capacity = None  # an exception within torch's engine would have aborted the process
    with world():  # what runs again in a backward pass attends by the same kernel as before
        query = torch.ones(1, 2, 8, 4, device="pretend:0", requires_grad=True)
        attend = torch.nn.functional.scaled_dot_product_attention
        for options in ({}, {"preserve_rng_state": False}):
            found = checkpoint(attend, query, query, query, use_reentrant=False, context_fn=same_functions, **options)
            found.sum().backward(retain_graph=True)
            found.sum().backward()
    with world(values=True):
        numbers = torch.tensor([1.0, 3.0]).to("pretend:0")
        view = numbers[:1]
        view += 1
        assert numbers.tolist() == [2.0, 3.0] and numbers.argmax().item() == 1
        assert numbers.double().tolist() == [2.0, 3.0]

    with world(values=True, float64=False):  # as on Apple's MPS
        numbers = torch.ones(2, device="pretend:0")
        for run in (numbers.double, lambda: torch.ones(2, dtype=torch.float64).to("pretend:0"),
                    lambda: torch.zeros(2, dtype=torch.float64, device="pretend:0"),
                    lambda: torch.stack([numbers, numbers]).mean(dtype=torch.float64)):
            assert refused(run, TypeError)
        assert numbers.cpu().double().tolist() == [1.0, 1.0]
    print("as hardware")
except Unsupported as error:
    print("unsupported:", error)
"""


@pytest.mark.long
def test_devices_are_as_hardware() -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT], cwd=REPOSITORY, env=environment, capture_output=True, text=True
    )
    assert ended.stdout.startswith(("as hardware", "unsupported")), ended.stderr[-2000:]
