"""What the package promises from outside: its names, its wheel, its metadata, its README."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
import yaml

import covist
from covist.extras import PACKAGES

ROOT = Path(__file__).parents[1]


def run(*command: object, **environment: str) -> str:
    finished = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, env={**os.environ, **environment}, cwd=ROOT
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", folder, ROOT)
    (built,) = folder.glob("covist-*.whl")
    return built


def test_public_names_are_there_and_documented():
    for name in covist.__all__:
        assert getattr(covist, name).__doc__
        assert name in dir(covist)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = covist.nonsense


def test_dir_shows_only_what_is_public():
    assert sorted(dir(covist)) == sorted([*covist.__all__, "__version__"])
    expected = """compress Compression CovistConfig Method MethodInfo register_method create_method available_methods
        available_families register_family ImageContext DecoderView BlockView EncoderRead Schedule Reduction
        VisualState ConcentrationTracker CovistError tiny eval viz"""
    assert set(expected.split()) <= set(covist.__all__)


def test_importing_the_package_waits_for_nothing_heavy_and_finds_its_submodules():
    program = (
        "import sys, covist\n"
        "print(sorted({'torch', 'transformers', 'matplotlib', 'pyarrow'} & set(sys.modules)))\n"
        "print(covist.tiny.demo()[1], covist.eval.load_suite('scenes').name, covist.viz.__name__)"
    )
    assert run(sys.executable, "-c", program) == "[]\nwhere is the blue square? scenes covist.viz\n"


@pytest.mark.parametrize("command", ["plan --preset llava-1.5-7b --budget 64", "methods"])
def test_commands_that_need_no_model_do_not_wait_for_transformers(command):
    program = (
        "import sys\nfrom covist.cli import main\n"
        f"try: main({command.split()})\nexcept SystemExit as exit_: assert not exit_.code\n"
        "print('transformers' in sys.modules)"
    )
    assert run(sys.executable, "-c", program).splitlines()[-1] == "False"


def test_the_package_runs_as_a_module():
    assert run(sys.executable, "-m", "covist", "--version") == f"covist {covist.__version__}\n"


def test_the_wheel_is_typed_and_small_and_carries_the_embedded_model(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        weights = [archive.getinfo(name).file_size for name in names if name.endswith(".safetensors")]
    assert {"covist/py.typed", "covist/tiny/demo.png", "covist/tiny/weights/model.safetensors"} <= names
    assert "covist/tiny/films/weights/model.safetensors" in names
    assert not any(name.startswith("tests") for name in names)
    assert sum(weights) <= 20e6
    assert wheel.stat().st_size <= 20e6


@pytest.fixture(scope="module")
def metadata(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("METADATA")]
        return Parser().parsestr(archive.read(name).decode())


def test_the_metadata_of_the_wheel_says_what_it_is(metadata):
    assert metadata["Version"] == covist.__version__
    assert metadata["Author"] == "covist contributors"
    urls = dict(line.split(", ") for line in metadata.get_all("Project-URL"))
    assert set(urls) == {"Documentation", "Source", "Issues", "Changelog"}
    assert all(url.startswith(urls["Source"]) for url in urls.values())
    extras: dict[str, set[str]] = {}
    for line in metadata.get_all("Requires-Dist"):
        package, _, extra = line.partition("; extra == ")
        extras.setdefault(extra.strip("'"), set()).add(package)
    for name in ("figures", "parquet", "serve", "page", "ray", "lmms", "video", "docs"):
        assert extras[name] and extras[name] <= extras["all"]
    assert set(PACKAGES) < set(extras)


def test_the_description_for_a_package_index_needs_no_file_beside_it(metadata):
    text = metadata.get_payload()
    assert "## Ten lines" in text and "](" not in text and "<img" not in text and "Made by" not in text
    assert "pip install 'covist[figures,parquet]'" in text and "make demo" not in text and "## Citation" in text


def test_the_source_distribution_holds_what_is_needed_to_build_and_to_read(tmp_path):
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", tmp_path)
    (built,) = tmp_path.glob("covist-*.tar.gz")
    with tarfile.open(built) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    assert {"src/covist/api/compress.py", "docs/method.md", "README.md", "LICENSE", "pyproject.toml"} <= set(names)
    unwanted = ("tests", "tools", "benchmarks", ".ci", ".github", ".venv", "Makefile", "constraints")
    assert [name for name in names if name.startswith(unwanted)] == []


def test_the_wheel_runs_where_the_source_is_not(wheel, tmp_path):
    target = tmp_path / "site"
    run(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", target, wheel)
    program = "import covist, sys; from covist.cli import main; print(covist.__file__, file=sys.stderr); main(['run'])"
    finished = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(target)},
    )
    assert finished.returncode == 0, finished.stderr
    assert str(target) in finished.stderr
    assert "top-right" in finished.stdout


def test_pages_name_the_lowest_releases_that_are_declared():
    declared = dict(re.findall(r'^  "(torch|transformers)>=([\d.]+)"', (ROOT / "pyproject.toml").read_text(), re.M))
    for page in ("README.md", "docs/limits.md"):
        words = " ".join((ROOT / page).read_text(encoding="utf-8").split())
        assert [f"`{package}` {lowest} or newer" in words for package, lowest in declared.items()] == [True, True], page


def test_the_citation_names_this_release_and_the_paper_of_the_readme():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    paper = citation["preferred-citation"]
    assert citation["version"] == covist.__version__
    released = dict(re.findall(r"^## \[(.+)\] - (.+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M))
    assert released.get(covist.__version__, str(citation["date-released"])) == str(citation["date-released"])
    authors = " and ".join(f"{author['given-names']} {author['family-names']}" for author in paper["authors"])
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"title  = {{{paper['title']}}}" in readme
    assert f"author = {{{authors}}}" in readme


def test_integration_and_hooks_run_targets_of_the_makefile():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    commands = [
        *workflow_commands("test.yml"),
        *(hook["entry"] for repository in hooks for hook in repository["hooks"]),
    ]
    assert {f"make {target}" for target in targets} >= set(commands) >= {"make test", "make lint", "make types"}


def workflow_commands(file):
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / file).read_text())
    for job in workflow["jobs"].values():
        several = job.get("strategy", {}).get("matrix", {}).get("target", [""])
        for step in job["steps"]:
            yield from (step["run"].replace("${{ matrix.target }}", target) for target in several if "run" in step)


def test_slower_test_targets_run_on_a_schedule():
    """All targets that need other environments or more time, except those that only a release needs."""
    targets = set(re.findall(r"^(test-[\w-]+):", (ROOT / "Makefile").read_text(), re.M))
    needs_a_release = {"test-order", "test-versions", "test-pythons"}
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "scheduled.yml").read_text())
    assert {f"make {target}" for target in targets - needs_a_release} == set(workflow_commands("scheduled.yml"))
    assert "schedule" in workflow[True]  # YAML reads the key `on` as true
