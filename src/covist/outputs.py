"""Where results go. A place that cannot be written is refused before the work begins, not after it."""

import json
import tempfile
from pathlib import Path
from typing import Any

from covist.errors import CovistError


def writable_file(path: str | Path, suffixes: tuple[str, ...] = ()) -> Path:
    """A file that can be created: its directory is made if needed and tried out."""
    path = Path(path)
    if suffixes and path.suffix.lower() not in suffixes:
        raise CovistError(f"cannot write {path}: its name must end in {' or '.join(suffixes)}")
    if path.is_dir():
        raise CovistError(f"cannot write {path}: it is a directory")
    writable_directory(path.parent)
    return path


def writable_directory(path: str | Path) -> Path:
    """A directory in which files can be created; made if it is not there."""
    path = Path(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise CovistError(f"cannot write to {path}: {(error.strerror or 'not a directory').lower()}") from None
    return path


def write_json(path: Path, payload: Any) -> None:
    path.write_text(json.dumps(payload, indent=2) + "\n", encoding="utf-8")
