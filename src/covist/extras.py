"""Packages that only some features need: imported when one of these is used, and named in one line if missing."""

from importlib.util import find_spec

from covist.errors import CovistError

PACKAGES = {
    "figures": ("matplotlib",),
    "page": ("gradio",),
    "parquet": ("pyarrow",),
    "ray": ("ray",),
    "serve": ("fastapi", "prometheus_client", "pydantic", "uvicorn"),
    "structured": ("llguidance",),
}
"""What covist imports of each extra."""


def require_extra(use: str, extra: str) -> None:
    """Refuse a use whose packages are missing, and say how to install them."""
    if reason := lack_of(extra):
        raise CovistError(f"{use} needs {reason}")


def lack_of(extra: str) -> str | None:
    """The missing packages of an extra and how to install them; None if nothing is missing."""
    missing = [package for package in PACKAGES[extra] if find_spec(package) is None]
    return f"{', '.join(missing)}: pip install 'covist[{extra}]'" if missing else None
