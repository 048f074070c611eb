"""Other settings for single calls: what a thread chooses concerns no other thread and no later call."""

import threading

import pytest
import torch
from support.llava import ask
from support.requests import greedy, step_logits

from covist.config import CovistConfig
from covist.errors import CovistError

PROMPT = "USER: <image> what color is this ? ASSISTANT:"
CHOICES = {
    "another budget": {"budget": 12},
    "the other strategy": {"strategy": "pro", "concentration": 0.05},
    "another method": {"method": "divprune"},
    "a method inside the decoder": {"method": "fastv", "budget": 50},
    "a method with settings": {"method": "vispruner", "important": 0.75, "budget": 20},
    "a method that reads other encoder layers": {"method": "vscan", "budget": 60},
    "a method that reads states of encoder layers": {"method": "evocut"},
    "a method that walks the encoder": {"method": "flowcut"},
}


@pytest.mark.parametrize("choice", CHOICES.values(), ids=CHOICES.keys())
def test_a_call_with_its_own_settings_equals_a_handle_with_them(multi_head, compress, choice):
    inputs = ask(PROMPT)
    own = compress(multi_head, **{"budget": 24, "concentration": None if "method" in choice else 0.05, **choice})
    expected = step_logits(greedy(multi_head, inputs, 3))
    own.remove()
    handle = compress(multi_head, budget=24, per_call=True)
    usual = step_logits(greedy(multi_head, inputs, 3))
    with handle.using(**choice) as run:
        found = step_logits(greedy(multi_head, inputs, 3))
    assert torch.equal(found, expected) and not torch.equal(found, usual)
    assert run.report.method == own.report.method and run.report.mean_tokens == own.report.mean_tokens
    assert torch.equal(step_logits(greedy(multi_head, inputs, 3)), usual)
    assert handle.report.method == "covist-fixed"


def test_no_budget_is_the_plain_model(multi_head, compress):
    inputs = ask(PROMPT)
    plain = greedy(multi_head, inputs, 3)
    handle = compress(multi_head, budget=24)
    with handle.using(budget="none") as run:
        assert torch.equal(step_logits(greedy(multi_head, inputs, 3)), step_logits(plain))
    assert run.report is None and handle.report is None
    multi_head(**inputs)
    assert handle.report.mean_tokens == 24


@pytest.mark.own_rounding
def test_threads_choose_for_themselves(multi_head, compress):
    handle = compress(multi_head, budget=24, per_call=True)
    choices = [{}, {"budget": 12}, {"method": "divprune"}, {"budget": "none"}, {"method": "vscan", "budget": 60}]
    inputs = ask(PROMPT)

    def answer(choice):
        with torch.no_grad(), handle.using(**choice):
            return step_logits(greedy(multi_head, inputs, 3))

    alone, together, barrier = [answer(choice) for choice in choices], {}, threading.Barrier(len(choices))

    def work(number):
        barrier.wait()
        together[number] = [answer(choices[number]) for _ in range(3)]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(choices))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, expected in enumerate(alone):
        assert all(torch.equal(found, expected) for found in together[number])


def test_choices_nest_and_end_with_an_error_too(multi_head, compress):
    handle, inputs = compress(multi_head, budget=24), ask(PROMPT)
    with handle.using(budget=12) as outer:
        with pytest.raises(RuntimeError, match="own"), handle.using(budget=6) as inner:
            multi_head(**inputs)
            raise RuntimeError("own")
        multi_head(**inputs)
    multi_head(**inputs)
    assert [run.report.mean_tokens for run in (inner, outer, handle)] == [6, 12, 24]


def test_a_cache_goes_on_under_the_choice_that_filled_it(multi_head, compress):
    handle, inputs = compress(multi_head, budget=24), ask(PROMPT)
    with handle.using(method="divprune", budget=12):
        cache = greedy(multi_head, inputs, 1).past_key_values
    step = {"input_ids": inputs["input_ids"][:, -1:], "past_key_values": cache}
    with handle.using(budget="none"), pytest.raises(CovistError, match="the settings that filled it"):
        multi_head(**step)
    with handle.using(method="divprune", budget=12):
        multi_head(**step)


def test_a_named_method_remembers_what_it_has_seen(multi_head, compress):
    handle, references = compress(multi_head, budget=24, concentration=None), []
    for seed in (1, 2):
        with handle.using(strategy="pro"):
            multi_head(**ask(PROMPT, seeds=(seed,)))
            references.append(handle._hooks._choice.settings.method.tracker.samples)
    assert references == [1, 2]


def test_a_call_keeps_what_it_does_not_ask_for(multi_head, compress):
    handle = compress(multi_head, budget=24, concentration=0.05, config=CovistConfig(weight_limit=64))
    with handle.using(strategy="pro", budget=12):
        settings = handle._hooks._choice.settings
        assert (settings.method.tracker.frozen, settings.method.config.weight_limit) == (0.05, 64)
    with handle.using(concentration=0.1):
        settings = handle._hooks._choice.settings
        assert (settings.method.name, settings.method.tracker.frozen) == ("covist-fixed", 0.1)
        assert str(settings.budget) == "24"
    with handle.using(strategy="fixed", budget="24"):
        assert handle._hooks._choice.settings.method is handle.settings.method


def test_changed_weights_are_noticed_under_every_choice(compress):
    from support.llava import build_llava

    model, inputs = build_llava(), ask(PROMPT)
    handle = compress(model, budget=24)
    with handle.using(strategy="pro", concentration=0.05):
        multi = model(**inputs).logits
    with torch.no_grad():
        model.model.language_model.layers[0].self_attn.q_proj.weight.mul_(3.0)
    with handle.using(strategy="pro", concentration=0.05):
        changed = model(**inputs).logits
    handle.remove()
    fresh = compress(model, budget=24, strategy="pro")
    assert torch.equal(model(**inputs).logits, changed) and not torch.equal(changed, multi)
    fresh.remove()


def test_bad_choices_are_refused_before_anything_runs(multi_head, compress):
    handle = compress(multi_head, budget=24)
    for choice, complaint in (
        ({"budget": -1}, "budget must be"),
        ({"method": "nobody"}, "nobody"),
        ({"method": "vscan"}, "per_call=True"),
        ({"method": "fastv", "strategy": "pro"}, "not both"),
    ):
        with pytest.raises(CovistError, match=complaint), handle.using(**choice):
            pass
    handle.remove()
    with pytest.raises(CovistError, match="has been removed"), handle.using(budget=12):
        pass
