"""The official client works unchanged."""

import pytest
from support.serving import said, shown

from covist import tiny

IMAGE, QUESTION, ANSWER = tiny.demo()


def first(completion) -> str:
    return completion.choices[0].message.content


def test_a_question_about_an_image_is_answered(server):
    completion = server.ask([shown(IMAGE), said(QUESTION)])
    assert first(completion) == ANSWER
    assert completion.choices[0].finish_reason == "stop"
    assert completion.model == "tiny" and completion.object == "chat.completion"


def test_usage_counts_what_was_sent_and_the_extension_what_was_left(server):
    completion = server.ask([shown(IMAGE), said(QUESTION)])
    text = server.ask(QUESTION)
    assert completion.usage.prompt_tokens == text.usage.prompt_tokens + 576
    assert completion.usage.total_tokens == completion.usage.prompt_tokens + completion.usage.completion_tokens
    own = completion.model_extra["covist"]
    assert own["visual_tokens"] == {"before": 576, "after": 64}
    assert own["method"] == "covist-fixed" and own["budget"] == 64
    tokens = completion.usage.prompt_tokens
    assert own["cache_bytes"]["after"] / own["cache_bytes"]["before"] == (tokens - 512) / tokens
    assert 0 <= own["seconds"]["queue"] <= own["seconds"]["first_token"] <= own["seconds"]["total"]
    assert text.model_extra["covist"]["visual_tokens"] == {"before": 0, "after": 0}


def test_several_images_in_several_turns(server):
    other = tiny.scene_image(tiny.sample_scene(7))
    messages = [
        {"role": "user", "content": [shown(IMAGE), said(QUESTION)]},
        {"role": "assistant", "content": ANSWER},
        {"role": "user", "content": [said("and in this ?"), shown(other), shown(IMAGE)]},
    ]
    completion = server.client().chat.completions.create(model="tiny", messages=messages)
    assert completion.model_extra["covist"]["visual_tokens"] == {"before": 3 * 576, "after": 3 * 64}
    assert first(completion)


def test_an_answer_can_be_sent_back_as_the_client_dumps_it(server):
    before = server.ask([shown(IMAGE), said(QUESTION)])
    messages = [
        {"role": "system", "content": "what is in the picture ?"},
        {"role": "user", "content": [shown(IMAGE), said(QUESTION)]},
        before.choices[0].message.model_dump(),
        {"role": "user", "content": "is there a square ?"},
    ]
    assert first(server.client().chat.completions.create(model="tiny", messages=messages))


def test_an_answer_ends_after_max_tokens(serve):
    server = serve()
    for name in ("max_tokens", "max_completion_tokens"):
        completion = server.ask(**{name: 5})
        assert completion.usage.completion_tokens == 5
        assert completion.choices[0].finish_reason == "length"


def test_an_answer_ends_before_a_stop_string(serve):
    server = serve()
    whole = first(server.ask(max_tokens=12, temperature=1.5, seed=3))
    stop = whole.split()[4]
    cut = server.ask(max_tokens=12, temperature=1.5, seed=3, stop=[stop, "never"])
    assert first(cut) == whole[: whole.index(stop)]
    assert cut.choices[0].finish_reason == "stop"


def test_a_seed_repeats_an_answer_and_another_seed_does_not(serve):
    server = serve()
    same = [first(server.ask(max_tokens=16, temperature=2, top_p=0.9, seed=7)) for _ in range(2)]
    other = first(server.ask(max_tokens=16, temperature=2, top_p=0.9, seed=8))
    assert same[0] == same[1] != other


def test_a_tiny_nucleus_is_greedy(serve):
    server = serve()
    assert first(server.ask(max_tokens=8, temperature=2, top_p=1e-9)) == first(server.ask(max_tokens=8))


def test_several_choices_are_drawn_apart(serve):
    completion = serve().ask(max_tokens=16, temperature=2, seed=1, n=3)
    texts = [choice.message.content for choice in completion.choices]
    assert [choice.index for choice in completion.choices] == [0, 1, 2]
    assert len(set(texts)) == 3
    assert completion.usage.completion_tokens == 48


def test_a_stream_says_what_the_whole_answer_says(serve):
    server = serve()
    options = {"max_tokens": 12, "temperature": 2, "seed": 5, "n": 2}
    whole = server.ask([shown(IMAGE), said(QUESTION)], **options)
    chunks = list(
        server.ask([shown(IMAGE), said(QUESTION)], **options, stream=True, stream_options={"include_usage": True})
    )
    texts, ends = ["", ""], ["", ""]
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            ends[choice.index] += choice.finish_reason or ""
    assert texts == [choice.message.content for choice in whole.choices]
    assert ends == ["length", "length"]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices == [] and chunks[-1].usage == whole.usage
    assert chunks[-1].model_extra["covist"]["visual_tokens"] == whole.model_extra["covist"]["visual_tokens"]
    assert len({chunk.id for chunk in chunks}) == 1


def test_a_stream_without_usage_ends_with_the_last_choice(server):
    chunks = list(server.ask([shown(IMAGE), said(QUESTION)], stream=True))
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert all(chunk.usage is None for chunk in chunks)
    assert chunks[-1].model_extra["covist"]["visual_tokens"] == {"before": 576, "after": 64}
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == ANSWER


@pytest.mark.parametrize(
    ("choice", "method", "after"),
    [
        ({"budget": 32}, "covist-fixed", 32),
        ({"budget": "25%"}, "covist-fixed", 144),
        ({"strategy": "pro"}, "covist-pro", 64),
        ({"method": "divprune", "budget": 16}, "divprune", 16),
        ({"method": "divprune+sca+csc"}, "divprune+csc+sca", 64),
        ({"budget": "none"}, "vanilla", 576),
        ({"method": "vanilla"}, "vanilla", 576),
    ],
)
def test_a_request_chooses_its_own_compression(server, choice, method, after):
    completion = server.ask([shown(IMAGE), said(QUESTION)], extra_body={"covist": choice})
    own = completion.model_extra["covist"]
    assert own["method"] == method
    assert own["visual_tokens"]["before"] == 576
    assert own["visual_tokens"]["after"] == pytest.approx(after, abs=1)


def test_the_model_is_listed(server):
    assert [model.id for model in server.client().models.list()] == ["tiny"]


def test_a_request_may_ask_for_as_many_tokens_as_its_image_needs(server):
    content = [shown(IMAGE), said(QUESTION)]
    own = server.ask(content, extra_body={"covist": {"budget": "auto:0.85"}}).model_extra["covist"]
    (certificate,) = own["certificates"]
    assert own["budget"] == "auto:0.85" and own["visual_tokens"]["after"] == certificate["kept"] < 192
    assert certificate["coverage"] >= 0.85 and "what they leave out carries" in certificate["words"]


def test_a_request_may_ask_for_a_least_coverage(server):
    content = [shown(IMAGE), said(QUESTION)]
    own = server.ask(content, extra_body={"covist": {"budget": 16, "min_coverage": 0.99}}).model_extra["covist"]
    assert own["visual_tokens"] == {"before": 576, "after": 576}
    assert own["certificates"][0]["missed"] < 0.99


@pytest.mark.parametrize(
    ("choice", "kept"),
    [
        ({"budget": "total:100"}, 100),
        ({"budget": "ages:64,16"}, 64 + 16),
        ({"budget": 64, "max_visual_tokens": 40}, 40),
    ],
)
def test_a_request_may_give_all_its_images_a_budget(server, choice, kept):
    turn = {"role": "user", "content": [shown(IMAGE), said(QUESTION)]}
    messages = [turn, {"role": "assistant", "content": "left"}, turn]
    body = {"model": "tiny", "messages": messages, "max_tokens": 1, "covist": {"method": "covist-max", **choice}}
    answer = server.post(body).json()["covist"]
    total = sum(certificate["kept"] for certificate in answer["certificates"])
    assert total == kept and len(answer["certificates"]) == 2
    assert answer["visual_tokens"] == {"before": 2 * 576, "after": kept}
