"""Ray itself: started on this machine or joined where it runs, and what one worker may take of it."""

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
    "RAY_USAGE_STATS_ENABLED": "0",  # nothing is reported to anybody
    "RAY_worker_niceness": "0",  # workers are the work here, not what is done beside it
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",  # we show our own
    # A notification that got lost would hide a new replica for a minute.
    "LISTEN_FOR_CHANGE_REQUEST_TIMEOUT_S_LOWER_BOUND": "2",
    "LISTEN_FOR_CHANGE_REQUEST_TIMEOUT_S_UPPER_BOUND": "4",
}


@dataclass(frozen=True)
class Share:
    """What Ray sets aside for one worker; with CPUs come as many threads, and at least one."""

    cpus: float
    gpus: int

    @property
    def options(self) -> dict[str, Any]:
        """As Ray's actors take it."""
        return {"num_cpus": self.cpus, "num_gpus": self.gpus}


def share_of(workers: int, cpus: float, gpus: float) -> Share:
    """One GPU for each worker where there are GPUs, else the cores divided, one of which stays free for Ray's own work.

    Ray waits for ever where its own tasks find no core left.
    """
    if gpus >= 1:
        return Share(cpus=min(1.0, cpus / (2 * workers)), gpus=1)
    each = max(0.5, cpus - 1) / workers
    return Share(cpus=float(int(each)) if each >= 1 else round(each, 3), gpus=0)


def worker_share(workers: int, device: str = "auto") -> Share:
    """The share of each of `workers` in the Ray that is running; GPUs that cannot suffice are refused here."""
    import ray

    gpus = gpus_for(device)
    if 1 <= gpus < workers:
        raise CovistError(f"{workers} workers need a GPU each, and Ray has {gpus}; ask for fewer, or --device cpu")
    return share_of(workers, ray.cluster_resources().get("CPU", 1.0), gpus)


def gpus_for(device: str) -> int:
    """GPUs of the Ray that is running, if workers of this device may have any."""
    import ray

    return 0 if device == "cpu" else int(ray.cluster_resources().get("GPU", 0))


@contextmanager
def ray_running(address: str = LOCAL) -> Iterator[None]:
    """Ray for the length of a block: `local` starts one here that ends with the block, anything else joins one.

    Meanwhile what Ray prints goes to stderr; stdout is for results.
    """
    check_address(address)
    os.environ.update({name: value for name, value in _SETTINGS.items() if name not in os.environ})
    import ray

    if ray.is_initialized():  # a program that has its own Ray keeps it
        yield
        return
    with redirect_stdout(sys.stderr):
        _initialise(address)
        try:
            yield
        finally:
            ray.shutdown()


def _initialise(address: str) -> None:
    """Start or join; a machine under load may need longer to start than the half minute that Ray allows itself."""
    import ray

    own: dict[str, Any] = {"include_dashboard": False} if address == LOCAL else {}
    for is_last in (address != LOCAL, False, True):
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **own)
            return
        except Exception as error:  # Ray raises all kinds of them
            ray.shutdown()
            if is_last or "timed out during startup" not in str(error):
                failed = "Ray did not start" if address == LOCAL else "no Ray cluster answers"
                raise CovistError(f"--ray {address}: {failed} ({first_cause(error)})") from None


def is_address(text: str) -> bool:
    """Whether --ray can mean this: `--ray rows.jsonl` gives no address."""
    return re.fullmatch(r"auto|local|[\w.-]+:\d+", text, re.ASCII) is not None


def check_address(address: str) -> None:
    """Refuse what cannot be the address of a cluster that this machine belongs to."""
    if not is_address(address):
        raise CovistError(
            f"--ray {address}: give auto or HOST:PORT of a cluster that this machine belongs to; from elsewhere, "
            "`ray job submit` runs the same command there"
        )
