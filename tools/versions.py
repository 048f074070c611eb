"""Run the tests on the declared versions, each combination in its own environment.

The lowest releases and the versions of Python are read from `pyproject.toml`, so that the declared versions are tested.
Nothing is skipped silently: an interpreter or a build of torch that is not available is reported at the end.

    python tools/versions.py                          everything (`make test-versions`)
    python tools/versions.py --pythons                every Python, with the newest releases (`make test-pythons`)
    python tools/versions.py --only 3.12              the environments whose name contains "3.12"
    python tools/versions.py --torch-build "" -- -x   whatever build of torch the index offers; arguments for pytest
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENTS = ROOT / ".versions"
TORCH = re.search(r"^torch==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)[1]  # type: ignore[index]
DECLARED = (ROOT / "pyproject.toml").read_text()
PYTHONS = re.findall(r'^  "Programming Language :: Python :: (\d+\.\d+)"', DECLARED, re.MULTILINE)


def lowest(package: str) -> str:
    """The lowest release of `package` that pyproject.toml allows."""
    found = re.search(rf'^  "{package}>=([\d.]+)"', DECLARED, re.MULTILINE)
    if found is None:
        raise SystemExit(f"pyproject.toml declares no lowest release of {package}")
    return found[1]


@dataclass(frozen=True)
class Environment:
    """One combination: an interpreter, and the releases that the resolver must not choose."""

    python: str
    transformers: str  # a requirement without the name; empty for the newest that this Python supports
    torch: str = TORCH

    @property
    def name(self) -> str:
        release = self.transformers.strip("=~") or "newest"
        return f"python {self.python}, transformers {release}, torch {self.torch}"

    @property
    def folder(self) -> Path:
        return ENVIRONMENTS / re.sub(r"[ ,]+", "-", self.name)


def environments(pythons_only: bool = False) -> list[Environment]:
    if pythons_only:
        return [Environment(python, "") for python in PYTHONS]
    ours = ".".join(map(str, sys.version_info[:2]))
    return [
        Environment(ours, f"=={lowest('transformers')}"),
        Environment(ours, "~=5.19.0"),  # vLLM requires transformers below 5.20
        Environment(ours, ""),
        Environment(ours, "", lowest("torch")),
        *(Environment(python, "") for python in PYTHONS if python != ours),
    ]


def interpreter(python: str) -> str | None:
    """A Python of this minor version. pyenv also has shims for inactive versions, so each candidate is run."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    installed = sorted(pyenv.glob(f"versions/{python}.*/bin/python"), reverse=True)
    for candidate in (shutil.which(f"python{python}"), *map(str, installed)):
        if candidate is None:
            continue
        asked = subprocess.run([candidate, "--version"], capture_output=True, text=True)
        if asked.stdout.startswith(f"Python {python}."):
            return candidate
    return None


def install(environment: Environment, python: str, build: str) -> str | None:
    """Create the environment; returns the reason if that is not possible."""
    shutil.rmtree(environment.folder, ignore_errors=True)
    subprocess.run([python, "-m", "venv", environment.folder], check=True)
    pip = [environment.folder / "bin" / "python", "-m", "pip", "install", "--quiet"]
    torch = f"torch=={environment.torch}{build}"
    # The installation below brings its dependencies; without --dry-run the wheel would be downloaded twice.
    if subprocess.run([*pip, "--dry-run", "--no-deps", torch], capture_output=True).returncode:
        return f"no {torch} for Python {environment.python} in the package index"
    wanted = [torch, f"transformers{environment.transformers}", "--editable", f"{ROOT}[dev]"]
    installed = subprocess.run([*pip, *wanted], capture_output=True, text=True)
    return f"FAILED to install: {installed.stderr.strip().splitlines()[-1]}" if installed.returncode else None


def run(environment: Environment, build: str, arguments: list[str]) -> str:
    """The outcome of one environment, in one line."""
    python = interpreter(environment.python)
    if python is None:
        return f"skipped: no Python {environment.python} on this machine"
    reason = install(environment, python, build)
    if reason is not None:
        return reason if reason.startswith("FAILED") else f"skipped: {reason}"
    own = environment.folder / "bin" / "python"
    resolved = "from importlib.metadata import version; print(version('transformers'), version('torch'))"
    releases = subprocess.run([own, "-c", resolved], capture_output=True, text=True, check=True).stdout.split()
    tests = [own, "-m", "pytest", "-n", "2", *arguments]
    finished = subprocess.run(tests, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"})
    outcome = "passed" if finished.returncode == 0 else f"FAILED with exit code {finished.returncode}"
    return f"{outcome}: transformers {releases[0]}, torch {releases[1]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pythons", action="store_true", help="every declared Python, newest releases")
    parser.add_argument("--only", default="", metavar="TEXT", help="environments whose name contains this")
    parser.add_argument(
        "--torch-build", default="+cpu", metavar="TAG", help="local version of torch; empty may fetch gigabytes of CUDA"
    )
    parser.add_argument("pytest", nargs="*", help="arguments for pytest, after --")
    options = parser.parse_args()
    outcomes = {}
    for environment in environments(options.pythons):
        if options.only in environment.name:
            print(f"== {environment.name}", flush=True)
            outcomes[environment.name] = run(environment, options.torch_build, options.pytest)
            print(outcomes[environment.name], flush=True)
    print("\n".join(["", *(f"{name}: {outcome}" for name, outcome in outcomes.items())]))
    return any(outcome.startswith("FAILED") for outcome in outcomes.values())


if __name__ == "__main__":
    raise SystemExit(main())
