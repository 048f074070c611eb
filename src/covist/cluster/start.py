"""Start Ray on this machine or join a running one, and divide its resources among workers."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from typing import Any

from covist.cluster.errors import first_cause
from covist.errors import CovistError

LOCAL = "local"
_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",  # no usage reports
    "RAY_worker_niceness": "0",  # workers do the main work and must not yield to other processes
    # A lost notification would hide a new replica for a minute.
    "LISTEN_FOR_CHANGE_REQUEST_TIMEOUT_S_LOWER_BOUND": "2",
    "LISTEN_FOR_CHANGE_REQUEST_TIMEOUT_S_UPPER_BOUND": "4",
}


@dataclass(frozen=True)
class Reservation:
    """What Ray reserves for one worker, which gets as many threads as CPUs, and at least one."""

    cpus: float
    gpus: int

    @property
    def options(self) -> dict[str, Any]:
        """The options of a Ray actor."""
        return {"num_cpus": self.cpus, "num_gpus": self.gpus}


def reservation_of(workers: int, cpus: float, gpus: float) -> Reservation:
    """One GPU per worker if there are GPUs, else an equal share of all cores but one.

    One core stays free for Ray's own tasks, which would otherwise wait for ever.
    """
    if gpus >= 1:
        return Reservation(cpus=min(1.0, cpus / (2 * workers)), gpus=1)
    each = max(0.5, cpus - 1) / workers
    return Reservation(cpus=float(int(each)) if each >= 1 else round(each, 3), gpus=0)


def worker_reservation(workers: int, device: str = "auto") -> Reservation:
    """What each worker gets in the running Ray; refuses more workers than GPUs."""
    import ray

    gpus = gpus_for(device)
    if 1 <= gpus < workers:
        raise CovistError(f"{workers} workers need a GPU each, but Ray has {gpus}; give fewer workers, or --device cpu")
    return reservation_of(workers, ray.cluster_resources().get("CPU", 1.0), gpus)


def gpus_for(device: str) -> int:
    """GPUs of the running Ray; 0 if workers run on the CPU."""
    import ray

    return 0 if device == "cpu" else int(ray.cluster_resources().get("GPU", 0))


@contextmanager
def ray_running(address: str = LOCAL) -> Iterator[None]:
    """Ray within a `with` block: `local` starts one that ends with the block, any other address joins a running one.

    Ray's own output goes to stderr, because stdout is for results.
    """
    check_address(address)
    os.environ.update({name: value for name, value in _SETTINGS.items() if name not in os.environ})
    import ray

    if ray.is_initialized():  # the program has its own Ray and keeps it
        yield
        return
    with redirect_stdout(sys.stderr):
        _initialise(address)
        try:
            yield
        finally:
            ray.shutdown()


def _initialise(address: str) -> None:
    """Start or join Ray; on a busy machine the start may exceed Ray's limit of half a minute, so it is retried."""
    import ray

    own: dict[str, Any] = {"include_dashboard": False} if address == LOCAL else {}
    for is_last in (address != LOCAL, False, True):
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **own)
            return
        except Exception as error:  # Ray raises many kinds
            ray.shutdown()
            if is_last or "timed out during startup" not in str(error):
                failed = "Ray did not start" if address == LOCAL else "no Ray cluster answers"
                raise CovistError(f"--ray {address}: {failed} ({first_cause(error)})") from None


def is_address(text: str) -> bool:
    """Whether a text can be the address of --ray: in `--ray rows.jsonl` it is not."""
    return re.fullmatch(r"auto|local|[\w.-]+:\d+", text, re.ASCII) is not None


def check_address(address: str) -> None:
    """Refuse a text that cannot be the address of a cluster that this machine belongs to."""
    if not is_address(address):
        raise CovistError(
            f"--ray {address}: give auto or HOST:PORT of a cluster that this machine belongs to; from elsewhere, "
            "`ray job submit` runs the same command there"
        )
