"""The images that visitors upload: a folder of this process, limited by number and age."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from time import time

from covist.serve.errors import Refusal

MOST = 100
"""Files that are kept; the oldest of more are deleted."""
SECONDS = 3600.0
"""How long a file is kept."""
EXAMPLES = "examples"
"""A folder among the uploads whose files are the page's own, and stay. Gradio names those of uploads by a hash."""


class Uploads:
    """The folder that Gradio writes uploads to: the only one whose files a visitor may name."""

    def __init__(self, folder: Path, most: int = MOST, seconds: float = SECONDS):
        self.folder = folder.resolve()
        self.most, self.seconds = most, seconds

    def find(self, place: object) -> Path:
        """The file at a path that a visitor sent. A path that leads elsewhere is refused without a look at the disk."""
        with suppress(OSError, ValueError, RuntimeError):  # too long, with a zero byte, a circle of links
            path = Path(str(place))
            if self.folder in path.parents and ".." not in path.parts:
                found = path.resolve(strict=True)
                if self.folder in found.parents and found.is_file():
                    return found
        message = "the image is not on the server, or not any more: upload it, or pick an example"
        raise Refusal(400, "no_upload", message)

    def tidy(self) -> list[str]:
        """Delete what is too old, and the oldest of too many; returns the paths."""
        files = sorted(self._files(), reverse=True)  # the newest first
        oldest = time() - self.seconds
        gone = [path for number, (made, path) in enumerate(files) if number >= self.most or made < oldest]
        for path in gone:
            with suppress(OSError):  # deleted by another call, or its folder holds more
                path.unlink()
                if path.parent != self.folder:
                    path.parent.rmdir()
        return [str(path) for path in gone]

    def _files(self) -> list[tuple[float, Path]]:
        found = []
        for folder, folders, names in os.walk(self.folder):
            if Path(folder) == self.folder and EXAMPLES in folders:
                folders.remove(EXAMPLES)
            for path in (Path(folder) / name for name in names):
                with suppress(FileNotFoundError):  # renamed by an upload that has just ended
                    found.append((path.lstat().st_mtime, path))
        return found
