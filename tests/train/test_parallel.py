"""Training in several processes: real ones, joined the way torchrun joins them."""

import json
import os
import socket
import subprocess
import sys

import pytest
import torch
from torch import nn

from train import parallel

# The module by itself: importing the rest of its package would take most of the time.
PROGRAM = """
import json, sys, torch
from importlib.util import module_from_spec, spec_from_file_location
from torch import nn

spec = spec_from_file_location("parallel", sys.argv[1])
parallel = module_from_spec(spec)
spec.loader.exec_module(parallel)
parallel.join()
rank = parallel.rank()
used, matrix, unused = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2, 3)), nn.Parameter(torch.zeros(4))
used.grad = torch.tensor([1.0, -2.0]) * (rank + 1)
matrix.grad = torch.arange(6.0).view(2, 3) + 10 * rank
seconds = parallel.average([used, unused, matrix], seconds=3.0 + 2 * rank)
print(json.dumps([rank, parallel.processes(), seconds, used.grad.tolist(), matrix.grad.tolist(), unused.grad]))
"""


@pytest.fixture(scope="module")
def two_processes():
    """What each of two joined processes prints, by rank."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = str(listener.getsockname()[1])
    group = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, parallel.__file__],
            env={**group, "RANK": str(rank)},
            stdout=subprocess.PIPE,
        )
        for rank in range(2)
    ]
    try:
        return [json.loads(process.communicate(timeout=300)[0].splitlines()[-1]) for process in started]
    finally:
        for process in started:
            process.kill()


def test_processes_know_their_rank_and_number(two_processes):
    assert [said[:2] for said in two_processes] == [[0, 2], [1, 2]]


def test_every_process_takes_the_mean_of_gradients_and_times(two_processes):
    for _, _, seconds, used, matrix, unused in two_processes:
        assert seconds == 4.0
        assert used == [1.5, -3.0]
        assert matrix == [[5.0, 6.0, 7.0], [8.0, 9.0, 10.0]]
        assert unused is None


def test_without_torchrun_there_is_one_process(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    parallel.join()
    assert (parallel.rank(), parallel.processes()) == (0, 1)


def test_a_single_process_keeps_its_gradients_and_its_time():
    parameter = nn.Parameter(torch.zeros(3))
    parameter.grad = torch.tensor([1.0, 2.0, 3.0])
    assert parallel.average([parameter], seconds=2.5) == 2.5
    assert parameter.grad.tolist() == [1, 2, 3]
