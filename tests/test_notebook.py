"""The tour runs from its first cell to its last in a kernel of its own, on the embedded model."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import nbformat
import pytest
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from nbclient import NotebookClient

TOUR = Path(__file__).parents[1] / "examples" / "tour.ipynb"


@pytest.fixture(scope="module")
def ran(tmp_path_factory) -> nbformat.NotebookNode:
    folder = tmp_path_factory.mktemp("tour")
    notebook = nbformat.read(TOUR, as_version=4)
    client = NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(folder)}})
    client.create_kernel_manager()
    client.km.kernel_spec_manager = OwnPython()
    client.execute(env={**os.environ, "HF_HUB_OFFLINE": "1", "IPYTHONDIR": str(folder), "MPLBACKEND": "agg"})
    return notebook


class OwnPython(KernelSpecManager):
    """The interpreter that runs the tests, whatever kernels the machine knows."""

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        return KernelSpec(argv=[sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"])


def shown(notebook: nbformat.NotebookNode) -> str:
    """Everything that the cells print and show."""
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    texts = [output.get("text", "") for output in outputs]
    return "\n".join([*texts, *(str(output.get("data", {})) for output in outputs)])


def test_the_tour_runs_and_shows_what_it_promises(ran):
    text = shown(ran)
    assert "where is the blue square? | top-right | top-right" in text
    assert "Compression of LlavaForConditionalGeneration by covist-fixed, budget 64 (active)" in text
    assert text.count("text/html") >= 3  # the handle and two reports
    assert "covist-max at 32: 100.0 %" in text


def test_the_tour_is_kept_without_results():
    cells = [cell for cell in nbformat.read(TOUR, as_version=4).cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in cells)


def test_real_checkpoints_are_marked(ran):
    first, second, *_ = [cell.source for cell in ran.cells if cell.cell_type == "code"]
    assert "REAL = False" in first
    assert all("if REAL:  # needs a GPU and a network" in source for source in (first, second))
