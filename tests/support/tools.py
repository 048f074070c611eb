"""The programs of tools/, as modules."""

import importlib.util
from pathlib import Path
from types import ModuleType

TOOLS = Path(__file__).parents[2] / "tools"


def tool(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(path).stem, TOOLS / path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
