"""The examples in the docstrings of everything public: each has one, and each runs."""

import doctest
import inspect

import pytest
import torch

import covist
import covist.eval
import covist.reproduce
import covist.tiny
import covist.viz


def public_objects():
    """What `import covist` offers, and the functions of its public submodules, by the name that users know."""
    for room in (covist, covist.eval, covist.reproduce, covist.tiny, covist.viz):
        for name in room.__all__:
            item = getattr(room, name)
            if inspect.isfunction(item) or (room is covist and inspect.isclass(item)):
                yield f"{room.__name__}.{name}", item


PUBLIC = dict(public_objects())


@pytest.mark.filterwarnings("ignore:no clip= given")
@pytest.mark.parametrize("name", PUBLIC)
def test_the_example_of_a_public_name_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    (example, *_) = doctest.DocTestFinder(recurse=False).find(PUBLIC[name], name, globs={"covist": covist})
    assert example.examples, f"{name} has no example in its docstring"
    failed = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    runner.run(example, out=failed.append)
    assert not runner.failures, "".join(failed)
