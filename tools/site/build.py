"""Build the site.

    python tools/site/build.py [FOLDER]

zensical runs no code of ours while it builds. So the pages that are made from the source, and those that lie in the
root of the repository, are put beside the others first, in a folder that is deleted afterwards.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import messages
import pages

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "build" / "site"


def build(site: Path) -> int:
    """Write the site into a folder; returns zensical's exit code, which is not 0 if a link or an anchor is dead."""
    with TemporaryDirectory() as name:
        project = Path(name)
        shutil.copytree(ROOT / "docs", project / "docs")
        (project / "docs" / "messages.md").write_text(messages.page(), encoding="utf-8")
        pages.add_root_pages(ROOT, project / "docs")
        shutil.copy(ROOT / "zensical.toml", project)
        for folder in ("src", "tools"):  # what the page of the Python API is made from
            (project / folder).symlink_to(ROOT / folder)
        command = [sys.executable, "-m", "zensical", "build", "--strict"]
        built = subprocess.run(command, cwd=project, capture_output=True, text=True)
        if built.returncode:
            print(built.stdout, built.stderr, sep="\n", file=sys.stderr)
        else:
            shutil.copytree(project / "site", site, dirs_exist_ok=True)
        return built.returncode


if __name__ == "__main__":
    sys.exit(build(Path(sys.argv[1]) if len(sys.argv) > 1 else SITE))
