"""Methods of other packages: what they return is checked, and their mistakes name the method and the line."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

import covist
from covist import CovistError, tiny
from covist.contract.guard import is_own
from covist.methods.registry import available_methods, option_defaults

N, K = 16, 4


@dataclass
class Image:
    """As much of an image as the check reads."""

    positions: torch.Tensor


IMAGE = Image(torch.arange(N))


def returning(found):
    class Mine(covist.Method):
        name = "mine"

        def select(self, image, count):
            return found

    return Mine()


MASK = torch.zeros(N, dtype=torch.bool).index_fill_(0, torch.tensor([1, 5, 9, 15]), True)


@pytest.mark.parametrize(
    "found",
    [
        torch.tensor([9, 1, 15, 5]),
        torch.tensor([9, 1, 15, 5], dtype=torch.int32),
        torch.tensor([9, 1, 15, 5], dtype=torch.uint8),
        [9, 1, 15, 5],
        (9, 1, 15, 5),
        [torch.tensor(9), torch.tensor(1), torch.tensor(15), torch.tensor(5)],
        np.array([9, 1, 15, 5]),
        MASK,
        MASK.tolist(),
        MASK.numpy(),
    ],
    ids=lambda found: f"{type(found).__name__} {getattr(found, 'dtype', '')}",
)
def test_indices_and_masks_are_understood_in_every_usual_form(found):
    chosen = returning(found).select(IMAGE, K)
    assert chosen.dtype == torch.long and sorted(chosen.tolist()) == [1, 5, 9, 15]


def test_a_range_and_the_order_of_indices_are_kept():
    assert returning(range(3, 7)).select(IMAGE, K).tolist() == [3, 4, 5, 6]
    assert returning([9, 1, 15, 5]).select(image=IMAGE, count=K).tolist() == [9, 1, 15, 5]


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (None, "it returned nothing; return the indices of the tokens to keep"),
        ("1234", "it returned a str; return the indices"),
        ({"a": 1}, "it returned a dict; return the indices"),
        (torch.linspace(0.1, 0.9, K), "it returned torch.float32, such as 0"),
        ([0.0, 1.0, 2.0, 3.0], "it returned torch.float32, such as 0"),
        (torch.zeros(K, dtype=torch.long), "it returned token 0 4 times; every token may be kept once"),
        ([0, 1, 2, -1], "it returned token -1, but the 16 tokens are numbered from 0 to 15"),
        ([0, 1, 2, 16], "it returned token 16, but the 16 tokens"),
        ([0, 1, 2], "it returned 3 tokens, but 4 were asked for"),
        ([], "it returned 0 tokens, but 4 were asked for"),
        (torch.arange(N), "it returned 16 tokens, but 4 were asked for"),
        (torch.ones(N, dtype=torch.bool), "it returned 16 tokens, but 4 were asked for"),
        (MASK[:-1], r"it returned a mask of shape \[15\] for 16 tokens"),
        (torch.arange(K)[:, None], r"it returned a tensor of shape \[4, 1\]"),
        (7, r"it returned a tensor of shape \[\]"),
    ],
    ids=lambda value: str(value)[:24].replace("\n", " "),
)
def test_anything_else_is_refused_in_a_line_that_names_the_method_and_its_file(found, said):
    with pytest.raises(CovistError, match=said) as refused:
        returning(found).select(IMAGE, K)
    line = inspect.getsourcelines(returning)[1] + 4
    assert str(refused.value).startswith(f"method 'mine' failed in select ({Path(__file__).name} line {line}): ")
    assert "\n" not in str(refused.value)


class Broken(covist.Method):
    name = "broken"

    def __init__(self, when: str, **options):
        super().__init__(**options)
        self._when = when

    def select(self, image, count):
        if self._when == "select":
            self._divide(count)
        return image.positions.argsort()[:count]

    def _divide(self, count):
        return count // 0  # the line to name

    def memory(self, image):
        if self._when == "memory":
            raise KeyError("memory")

    def attention_rule(self, decoder):
        if self._when == "attention_rule":
            covist.create_method("magic")

    def schedule(self, layers, budget, tokens):
        return None if self._when == "schedule" else super().schedule(layers, budget, tokens)

    def enter(self, image, state, count):
        if self._when == "enter":
            return state
        if self._when == "nothing":
            return covist.Reduction(state.restrict(state.indices[:0]))
        if self._when == "twice":
            return covist.Reduction(state.restrict(torch.zeros(count, dtype=torch.long)))
        return super().enter(image, state, count)


@pytest.fixture(scope="module")
def small():
    return tiny.build_random(size=tiny.Size(vision_layers=2, text_layers=1, decoder_layers=2))


def run(small, method) -> covist.Report:
    model, processor, clip = small
    image, question, _ = tiny.demo()
    inputs = processor(images=image, text=tiny.prompt_for(question), return_tensors="pt")
    with covist.compress(model, processor, method=method, budget=16, clip=clip) as handle:
        model.generate(**inputs, max_new_tokens=1)
    return handle.report


@pytest.mark.parametrize(
    ("when", "said"),
    [
        ("select", r"failed in _divide \(test_own_methods.py line \d+\): ZeroDivisionError: "),
        ("memory", r"failed in memory \(test_own_methods.py line \d+\): KeyError: 'memory'"),
        ("attention_rule", r"failed in attention_rule \(test_own_methods.py line \d+\): unknown method 'magic'"),
        ("enter", r"failed in enter \(test_own_methods.py line \d+\): it returned a VisualState; return a covist.Red"),
        ("nothing", r"failed in enter \(test_own_methods.py line \d+\): it returned a state without tokens, but 16 "),
        ("twice", r"failed in enter \(test_own_methods.py line \d+\): VisualState: indices must increase strictly"),
    ],
)
def test_an_error_inside_a_method_names_the_method_and_the_line(small, when, said):
    with pytest.raises(CovistError, match=f"^method 'broken' {said}") as refused:
        run(small, Broken(when))
    if when == "select":
        lines, first = inspect.getsourcelines(Broken)
        wanted = first + next(place for place, line in enumerate(lines) if "the line to name" in line)
        assert f"line {wanted})" in str(refused.value)
        assert isinstance(refused.value.__cause__, ZeroDivisionError), "its traceback is there for whoever wants it"


@pytest.mark.parametrize("found", [[], None, ["no reduction"]], ids=["too few", "nothing", "something else"])
def test_images_that_are_reduced_together_have_one_reduction_each(found):
    class Mine(covist.Method):
        name = "mine"

        def begin_together(self, images, count):
            return found

    with pytest.raises(CovistError, match=r"method 'mine' failed in begin_together .*[Rr]eduction"):
        Mine().begin_together([IMAGE], K)


def test_a_method_without_mistakes_runs_and_reaches_its_budget(small):
    assert run(small, Broken("never")).mean_tokens == 16
    assert run(small, returning([*range(16)])).mean_tokens == 16


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("no"), MemoryError(), RuntimeError("CUDA error: lost")])
def test_errors_of_the_machine_stay_what_they_are(error):
    """Batches are halved when memory runs out, and a worker ends when its accelerator is lost."""

    class Hungry(covist.Method):
        name = "hungry"

        def select(self, image, count):
            raise error

    with pytest.raises(type(error)) as raised:
        Hungry().select(IMAGE, K)
    assert raised.value is error


def test_methods_of_covist_are_not_watched():
    """Their choices stay on the accelerator: a check would read them back."""
    for method in available_methods().values():
        if is_own(method):
            watched = [name for name, function in vars(method).items() if hasattr(function, "__wrapped__")]
            assert watched == [], method.name


def test_the_options_of_a_watched_method_are_those_of_its_constructor():
    assert list(option_defaults(Broken)) == ["when", "positions"]
    with pytest.raises(CovistError, match=r"method 'broken' failed in __init__ .*missing 1 required positional"):
        Broken()


@pytest.mark.parametrize(
    "name", ["", " ", "a:b", "a+b", "a b", "a,b", "a=b", "a/b", "-a", "vanilla", "all", "covist-row-a", None, 7, "a\n"]
)
def test_names_that_commands_could_not_tell_apart_are_refused(name):
    made = type("Mine", (covist.Method,), {"name": name, "select": lambda self, image, count: None})
    with pytest.raises(CovistError, match="Mine cannot be named") as refused:
        covist.register_method(made)
    assert repr(name) in str(refused.value)


@pytest.mark.parametrize("name", ["mine", "Mine2", "my-own_method.v2", "größte"])
def test_ordinary_names_are_accepted(name):
    covist.register_method(type("Mine", (covist.Method,), {"name": name, "select": lambda self, image, count: None}))
    assert name in available_methods()
    assert covist.create_method(f"{name}+sca").name == f"{name}+sca"


def test_names_of_covist_and_classes_that_are_no_methods_are_refused():
    mine = {"select": lambda self, image, count: None}
    with pytest.raises(CovistError, match="a method named 'random' is already registered by covist.methods.random"):
        covist.register_method(type("Mine", (covist.Method,), {"name": "random", **mine}))
    with pytest.raises(CovistError, match="is not a method: make it a subclass of covist.Method"):
        covist.register_method(type("Mine", (), {"name": "mine", **mine}))
    with pytest.raises(CovistError, match="Mine cannot be named None"):
        covist.register_method(type("Mine", (covist.Method,), mine))
    with pytest.raises(CovistError, match="Mine chooses no tokens: write select"):
        covist.register_method(type("Mine", (covist.Method,), {"name": "mine"}))


def test_a_class_that_is_defined_again_takes_its_own_place_and_no_other():
    def made(kind: str, first: int) -> type[covist.Method]:
        chosen = {"select": lambda self, image, count: list(range(first, first + count))}
        return covist.register_method(type(kind, (covist.Method,), {"name": "mine", **chosen}))

    made("Mine", 0)
    again = made("Mine", 1)
    assert available_methods()["mine"] is again, "as when a cell of a notebook runs twice"
    with pytest.raises(CovistError, match="a method named 'mine' is already registered by"):
        made("Other", 2)
