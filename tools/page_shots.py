"""Write docs/page-ask.png and docs/page-compare.png: the page as it looks now.

covist serve --page                                    in the environment of `make test-page`
python tools/page_shots.py http://127.0.0.1:8000       in the same one, on a machine that is not busy: it shows times
"""

from __future__ import annotations

import shutil
import sys
from io import BytesIO
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

DOCS = Path(__file__).resolve().parents[1] / "docs"
WIDTH, SHOWN = 1280, 1000  # pixels of the window, and of the image on a page


def save(page: Page, name: str) -> None:
    page.mouse.move(0, 0)
    with Image.open(BytesIO(page.screenshot(full_page=True))) as taken:
        smaller = taken.convert("RGB").resize((SHOWN, taken.height * SHOWN // taken.width), Image.Resampling.LANCZOS)
    smaller.quantize(256).save(DOCS / f"page-{name}.png", optimize=True)


def main() -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": 860})
        page.set_default_timeout(300_000)
        page.goto(sys.argv[1])
        page.wait_for_selector("#cv-drawing .covist")
        page.click("#cv-ask")  # again: the first answer of a process is slow
        page.wait_for_selector("#cv-drawing .cv-empty")
        page.wait_for_selector("#cv-drawing .covist")
        save(page, "ask")
        page.get_by_role("tab", name="Compare methods").click()
        page.click("#cv-compare")
        page.wait_for_selector("#cv-grid .covist >> nth=4")
        save(page, "compare")
        browser.close()


if __name__ == "__main__":
    main()
