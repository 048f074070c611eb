"""The programs of tools/, as modules."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

TOOLS = Path(__file__).parents[2] / "tools"


def tool(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(path).stem, TOOLS / path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with patch.object(sys, "path", [str(TOOLS), *sys.path]):  # as when it is run
        spec.loader.exec_module(module)
    return module
