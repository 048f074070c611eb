"""How many tokens fit: by the positions of the model and the memory of the machine."""

import json
from types import SimpleNamespace

import pytest
import torch
from support.serving import said, shown

from covist import tiny
from covist.serve import capacity
from covist.serve.capacity import Capacity, free_memory
from covist.serve.errors import Refusal
from covist.serve.limits import Limits
from covist.serve.schema import parse_chat

IMAGE = tiny.demo()[0]


@pytest.mark.parametrize(
    ("positions", "tokens", "asked", "answer"),
    [
        (None, None, None, 2048),
        (None, None, 5000, 5000),
        (1000, None, None, 400),  # positions are those before compression
        (1000, None, 50, 50),
        (10_000, 300, None, 200),  # memory is taken after compression
    ],
)
def test_an_answer_takes_what_the_prompt_leaves(positions, tokens, asked, answer):
    assert Capacity(positions, tokens).answer_tokens(Limits(), length=600, kept=100, asked=asked) == answer


@pytest.mark.parametrize(
    ("capacity", "limits", "words"),
    [
        (Capacity(600), Limits(), "600 tokens, more than the 600 positions of the model allow"),
        (Capacity(None, 100), Limits(), "100 tokens after compression, more than fit into the memory"),
        (Capacity(), Limits(prompt_tokens=99), "100 tokens after compression, more than 99"),
    ],
)
def test_a_prompt_without_room_for_an_answer_is_refused(capacity, limits, words):
    with pytest.raises(Refusal, match=words) as refused:
        capacity.answer_tokens(limits, length=600, kept=100, asked=None)
    assert refused.value.status == 400


def test_batches_share_the_memory():
    assert Capacity(None, 4000).batch_tokens(Limits(batches=4)) == 1000
    assert Capacity(None, 10**9).batch_tokens(Limits()) == Limits().batch_tokens == Capacity().batch_tokens(Limits())


def test_memory_is_that_of_the_machine_or_of_its_container(tmp_path, monkeypatch):
    monkeypatch.setattr(capacity, "_MEMORY", tmp_path / "meminfo")
    monkeypatch.setattr(capacity, "_CGROUP", tmp_path)
    cpu = torch.device("cpu")
    assert free_memory(cpu) is None
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable: 8 kB\n")
    assert free_memory(cpu) == 8192
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("1000\n")
    assert free_memory(cpu) == 8192
    (tmp_path / "memory.max").write_text("5000\n")
    assert free_memory(cpu) == 4000
    model = SimpleNamespace(device=cpu, config=SimpleNamespace(get_text_config=lambda: SimpleNamespace()))
    assert Capacity.of(model, 10.0) == Capacity(None, 200)


def test_prompts_count_as_they_are_after_compression(server):
    admission = server.service._admission

    body = {"model": "tiny", "messages": [{"role": "user", "content": [shown(IMAGE)] * 3 + [said("where ?")]}]}

    def prompt(**choice):
        return admission.prepare_here(parse_chat(json.dumps({**body, "covist": choice}).encode()))

    plain = prompt(budget="none")
    assert plain.kept_tokens == plain.length and plain.visual_tokens == 3 * 576
    assert prompt(budget=64).kept_tokens == plain.length - 3 * (576 - 64)
    assert prompt(budget="25%").kept_tokens == plain.length - 3 * (576 - 144)
    assert prompt(budget=64, min_coverage=0.9).kept_tokens == plain.length
    assert prompt(budget="total:300").kept_tokens == plain.length - 3 * 576 + 300
    assert prompt(budget="25%", max_visual_tokens=200).kept_tokens == plain.length - 3 * 576 + 200
    with pytest.raises(Refusal, match="covist: budget='total:2' is not enough for 3 images of at least 1 token each"):
        prompt(budget="total:2")
    with pytest.raises(Refusal, match="1,728 visual tokens, and without compression 1,000 are allowed"):
        prompt(budget="none", max_visual_tokens=1000)
