"""What a browser says about a page."""

from __future__ import annotations

from typing import Any

SERIOUS = ("serious", "critical")


def serious_findings(page: Any) -> list[str]:
    """What axe-core finds in a page that keeps people from using it: the rule, and where it is broken."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page).response["violations"]
    return [
        f"{one['id']}: {node['target']} {node.get('failureSummary', '')}"
        for one in found
        if one["impact"] in SERIOUS
        for node in one["nodes"]
    ]
