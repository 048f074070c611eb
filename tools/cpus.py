"""Run the tests as other CPUs would: with fewer instructions, other libraries' limits, another number of threads.

CPUs add up sums in different orders, so results differ in their last bits. A test that compares a choice of tokens with
a reference must not hang on these bits (CONTRIBUTING.md, "Choices and ties"). A row of the table costs minutes, so each
names a CPU that differs from the others in as much as possible, and this one is left to `make test`. The last row needs
no other instructions: it shakes the last bits of every result (tests/support/rounding.py).

    python tools/cpus.py                     every CPU (`make test-cpus`)
    python tools/cpus.py --only SSE          the CPUs whose name contains "SSE"
    python tools/cpus.py --processes 1       on a machine that others use
    python tools/cpus.py -- tests/methods    other tests; arguments for pytest
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CHOICES = ("tests/formulas", "tests/methods")
TESTS = (*CHOICES, "tests/engine", "tests/families")
AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
SSE = {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2"}


@dataclass(frozen=True)
class Cpu:
    """One row of the table: what torch and its libraries are told, and arguments for pytest."""

    name: str
    settings: dict[str, str] = field(default_factory=dict)
    threads: int = 1
    arguments: tuple[str, ...] = ()
    tests: tuple[str, ...] = TESTS


CPUS = [
    Cpu("SSE", SSE),
    Cpu("AVX2, two threads", AVX2, threads=2),
    # Libraries that disagree about the CPU, as their builds do.
    Cpu("AVX-512 without bf16, compatible MKL", {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE", "MKL_CBWR": "COMPATIBLE"}),
    Cpu("torch without vectors, two threads", {"ATEN_CPU_CAPABILITY": "default"}, threads=2),
    # Only tests that compare choices: shaking reaches neither other threads nor the kernels' own kinds of tensors, and
    # what the engine's tests compare bit for bit is the same call twice.
    Cpu("shaken", arguments=("--rounding", "1"), tests=CHOICES),
]


@dataclass(frozen=True)
class Outcome:
    passed: bool
    summary: str  # the last line of pytest
    failures: list[str]
    seconds: float


def run(cpu: Cpu, processes: int, arguments: Sequence[str]) -> Outcome:
    environment = {**os.environ, **cpu.settings, "OMP_NUM_THREADS": str(cpu.threads)}
    shared = ["-n", str(processes // cpu.threads)] if processes > cpu.threads else []
    command = [sys.executable, "-m", "pytest", "-rfE", *shared, *cpu.arguments, *arguments]
    started = time.perf_counter()
    # Each line is shown as it comes: a run takes minutes.
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as running:
        lines = []
        for line in running.stdout or ():
            print(line, end="", flush=True)
            lines.append(line.rstrip())
    failures = [found[1] for line in lines if (found := re.match(r"(?:FAILED|ERROR) (\S+)", line))]
    counted = [line.strip("= ") for line in lines if re.search(r"\d+ \w+.* in [\d.]+s", line)]
    summary = counted[-1] if counted else "no summary: see above"
    return Outcome(running.returncode == 0, summary, failures, time.perf_counter() - started)


def table(outcomes: dict[str, Outcome]) -> str:
    width = max(map(len, outcomes))
    lines = [""]
    for name, outcome in outcomes.items():
        word = "passed" if outcome.passed else "FAILED"
        lines.append(f"{name:{width}}  {word}  {outcome.seconds / 60:5.1f} min  {outcome.summary}")
    lines += [f"{name}: {failure}" for name, outcome in outcomes.items() for failure in outcome.failures]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="TEXT", help="CPUs whose name contains this")
    parser.add_argument("--processes", type=int, default=2, metavar="N", help="of pytest; a thread counts as one")
    parser.add_argument("pytest", nargs="*", help="arguments for pytest, after --")
    options = parser.parse_args(arguments)
    chosen = [cpu for cpu in CPUS if options.only in cpu.name]
    if not chosen:
        parser.error(f"--only {options.only!r} matches none of: {', '.join(cpu.name for cpu in CPUS)}")
    outcomes = {}
    for cpu in chosen:
        told = " ".join(f"{name}={value}" for name, value in cpu.settings.items())
        print(f"== {cpu.name} {told}".rstrip(), flush=True)
        outcomes[cpu.name] = run(cpu, options.processes, options.pytest or cpu.tests)
    print(table(outcomes))
    return int(not all(outcome.passed for outcome in outcomes.values()))


if __name__ == "__main__":
    raise SystemExit(main())
