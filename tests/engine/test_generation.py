"""Every way to call the model that works without compression works with it, or says at once why not."""

import pytest
import torch
from support.families import smooth_image
from support.ledgers import keys_at
from support.llava import IMAGE, PATCH, SIDE, TOKEN_ID, ask, build_llava, processor
from support.requests import assert_same, greedy, step_logits
from transformers import DynamicCache, pipeline

PROMPT = "USER: <image> what color is this ? ASSISTANT:"
LONGER = "USER: where is this <image> and <image> what color is the left object ? ASSISTANT:"


def by_hand(model, inputs, steps, choose):
    """Decode with plain forward calls; `choose(logits)` picks the next tokens."""
    cache = DynamicCache(config=model.config.text_config)
    output = model(**inputs, past_key_values=cache, use_cache=True)
    tokens = [choose(output.logits[:, -1])]
    for _ in range(steps - 1):
        output = model(tokens[-1], past_key_values=cache, use_cache=True)
        tokens.append(choose(output.logits[:, -1]))
    return torch.cat(tokens, dim=1)


def test_greedy_equals_forward_calls(model, strategy, compress):
    inputs = ask(LONGER)
    compress(model, budget=24, strategy=strategy)
    output = greedy(model, inputs, 5)
    never = model.config.image_token_id
    steps = by_hand(model, inputs, 5, lambda logits: logits.index_fill(1, torch.tensor(never), -1e9).argmax(-1, True))
    assert torch.equal(output.sequences[:, -5:], steps)


def test_sampling_follows_the_seed(multi_head, strategy, compress):
    inputs = ask(PROMPT)
    compress(multi_head, budget=24, strategy=strategy)

    def sample(seed):
        torch.manual_seed(seed)
        return greedy(multi_head, inputs, 5, do_sample=True, temperature=3.0).sequences

    assert torch.equal(sample(1), sample(1))
    assert not torch.equal(sample(1), sample(2))


def sequence_scores(model, inputs, sequences):
    """Sum of the log-probabilities of the generated tokens, from one forward each without a cache."""
    length, scores = inputs["input_ids"].shape[1], []
    for sequence in sequences:
        whole = {"input_ids": sequence[None], "pixel_values": inputs["pixel_values"]}
        logits = model(**whole, use_cache=False).logits[0, length - 1 : -1]
        scores.append(logits.log_softmax(-1).gather(1, sequence[length:, None]).sum())
    return torch.stack(scores)


def test_beams_carry_their_own_states(model, strategy, compress):
    """Scores of the returned beams are those of the same tokens without any cache."""
    inputs = ask(PROMPT)
    compress(model, budget=24, strategy=strategy)
    beams = greedy(model, inputs, 4, num_beams=4, num_return_sequences=3, output_scores=True, length_penalty=0.0)
    assert beams.sequences.shape[0] == 3
    expected = sequence_scores(model, inputs, beams.sequences)
    torch.testing.assert_close(beams.sequences_scores, expected, atol=1e-3, rtol=1e-4)


def test_beams_of_a_batch_equal_the_beams_alone(multi_head, strategy, compress):
    compress(multi_head, budget=24, strategy=strategy)
    texts = (PROMPT, "<image> what")
    together = greedy(multi_head, ask(*texts), 4, num_beams=3, output_scores=True)
    for index, text in enumerate(texts):
        alone = greedy(multi_head, ask(text, seeds=(index,)), 4, num_beams=3, output_scores=True)
        assert torch.equal(together.sequences[index, -4:], alone.sequences[0, -4:])
        torch.testing.assert_close(together.sequences_scores[index], alone.sequences_scores[0], atol=1e-4, rtol=1e-4)


def test_returned_sequences_of_sampling_share_one_state(multi_head, strategy, compress):
    handle = compress(multi_head, budget=24, strategy=strategy)
    torch.manual_seed(0)
    output = greedy(multi_head, ask(PROMPT), 3, do_sample=True, num_return_sequences=3, temperature=3.0)
    assert output.sequences.shape[0] == 3
    first, *others = (image.stages[0].indices for image in handle.report.images)
    assert len(others) == 2 and all(torch.equal(first, other) for other in others)
    logits = step_logits(output)
    torch.testing.assert_close(logits[0, 1:], logits[0, :1].expand(2, -1), atol=1e-4, rtol=1e-4)


def test_scores_and_single_token(multi_head, strategy, compress):
    compress(multi_head, budget=24, strategy=strategy)
    longer = greedy(multi_head, ask(PROMPT), 4, output_scores=True)
    assert len(longer.scores) == 4
    single = greedy(multi_head, ask(PROMPT), 1, output_scores=True)
    torch.testing.assert_close(single.scores[0], longer.scores[0])


def test_generation_without_a_cache(model, strategy, compress):
    """Every step compresses the image anew, from the same instruction."""
    inputs = ask(PROMPT)
    compress(model, budget=24, strategy=strategy)
    assert_same(greedy(model, inputs, 4, use_cache=False), greedy(model, inputs, 4), 1e-4)


@pytest.mark.parametrize("prompt", [PROMPT, "USER: <image> what color is this ?"], ids=["with a mark", "no mark"])
@pytest.mark.parametrize("reading", ["no processor", "processor"])
def test_generated_text_is_never_read_as_the_instruction(multi_head, strategy, compress, prompt, reading):
    inputs = ask(prompt)
    compress(multi_head, budget=24, strategy=strategy, **({"processor": None} if reading == "no processor" else {}))
    assert_same(greedy(multi_head, inputs, 4, use_cache=False), greedy(multi_head, inputs, 4), 1e-4)


@pytest.mark.parametrize("method", ["fastv", "sparsevlm", "pyramiddrop", "dart"])
def test_generated_text_is_not_read_by_other_methods_either(multi_head, compress, method):
    inputs = ask(PROMPT, "USER: where <image> and what is the word on the left object ? ASSISTANT:")
    compress(multi_head, budget=24, method=method, processor=None, concentration=None)
    assert_same(greedy(multi_head, inputs, 4, use_cache=False), greedy(multi_head, inputs, 4), 1e-4)


def test_steps_without_a_cache_count_an_image_once(multi_head, compress):
    handle = compress(multi_head, budget=24, concentration=None)
    greedy(multi_head, ask(PROMPT), 4, use_cache=False)
    assert handle.settings.method.tracker.samples == 1


def test_prompt_lookup_and_assisted_decoding_equal_greedy(model, strategy, compress):
    inputs = ask(PROMPT)
    compress(model, budget=24, strategy=strategy)
    expected = greedy(model, inputs, 6)
    assert_same(greedy(model, inputs, 6, prompt_lookup_num_tokens=3, max_matching_ngram_size=1), expected, 1e-4)
    assistant = build_llava(layers=2, seed=5)
    assert_same(greedy(model, inputs, 6, assistant_model=assistant), expected, 1e-4)


def test_model_that_assists_itself_equals_greedy(model, strategy, compress):
    """transformers gives an assistant no image features; its drafts are the plain model's on a prompt without them."""
    inputs = ask(PROMPT)
    handle = compress(model, budget=24, strategy=strategy)
    expected = greedy(model, inputs, 6)
    assert_same(greedy(model, inputs, 6, assistant_model=model), expected, 1e-4)
    assert handle.report.images[0].budget == 24


def test_generated_image_token_is_text(multi_head, strategy, compress):
    """Nothing stops a model from answering with its placeholder; without features it is a token like others."""
    compress(multi_head, budget=24, strategy=strategy)
    first = greedy(multi_head, ask(PROMPT), 1)
    spoken = torch.tensor([[TOKEN_ID[IMAGE]]])
    output = multi_head(spoken, past_key_values=first.past_key_values)
    assert output.logits.shape[1] == 1 and keys_at(output.past_key_values).visual[:, -1].eq(False).all()


def test_forward_with_labels(model, strategy, compress):
    """Logits have the original length; the loss is the one of the text positions, computed by hand."""
    inputs = ask(LONGER)
    compress(model, budget=24, strategy=strategy)
    labels = inputs["input_ids"].masked_fill(inputs["input_ids"] == TOKEN_ID[IMAGE], -100)
    output = model(**inputs, labels=labels)
    assert output.logits.shape[:2] == labels.shape
    targets = (labels[0, 1:] != -100).nonzero().squeeze(1)
    chosen = output.logits[0, targets].log_softmax(-1).gather(1, labels[0, targets + 1][:, None])
    torch.testing.assert_close(output.loss, -chosen.mean())
    last = greedy(model, inputs, 1).logits[0]
    torch.testing.assert_close(output.logits[:, -1], last)


def test_hidden_states_have_the_length_that_each_layer_saw(multi_head, strategy, compress):
    handle = compress(multi_head, budget=24, strategy=strategy)
    output = multi_head(**ask(PROMPT), output_hidden_states=True)
    counts = handle.report.images[0].tokens_per_layer
    text = handle.report.text_tokens[0]
    assert [states.shape[1] - text for states in output.hidden_states] == [counts[0], *counts]


def test_prediction_behind_an_image_is_that_of_its_last_representative(multi_head, strategy, compress):
    handle = compress(multi_head, budget=24, strategy=strategy)
    inputs = ask("what <image> color")
    logits = multi_head(**inputs).logits[0]
    last = 2 + int(handle.report.images[0].stages[-1].indices[-1])
    torch.testing.assert_close(logits[last], logits[2 + 143], atol=1e-5, rtol=1e-5)


def test_gradients_reach_the_decoder(multi_head, strategy, compress):
    handle = compress(multi_head, budget=24, strategy=strategy)
    inputs = ask(PROMPT)
    labels = inputs["input_ids"].masked_fill(inputs["input_ids"] == TOKEN_ID[IMAGE], -100)
    with torch.enable_grad():
        multi_head(**inputs, labels=labels).loss.backward()
    gradients = [layer.self_attn.q_proj.weight.grad for layer in multi_head.model.language_model.layers]
    multi_head.zero_grad(set_to_none=True)
    assert all(gradient.isfinite().all() and gradient.abs().sum() > 0 for gradient in gradients)
    assert not any(stage.weights.requires_grad for stage in handle.report.images[0].stages)


def test_gradient_checkpointing_is_refused(multi_head, compress):
    compress(multi_head, budget=24)
    multi_head.gradient_checkpointing_enable()
    multi_head.train()
    try:
        with pytest.raises(ValueError, match="gradient_checkpointing_disable"):
            multi_head(**ask(PROMPT))
    finally:
        multi_head.eval()
        multi_head.gradient_checkpointing_disable()


def test_prompt_embeddings_in_place_of_ids(multi_head, strategy, compress):
    """Without ids the instruction cannot be read from the prompt, so it is given."""
    inputs = ask(PROMPT)
    compress(multi_head, budget=24, strategy=strategy, instruction="what color is this")
    embeddings = multi_head.get_input_embeddings()(inputs["input_ids"])
    given = {"inputs_embeds": embeddings, "pixel_values": inputs["pixel_values"]}
    ours, expected = greedy(multi_head, given, 3), greedy(multi_head, inputs, 3)
    first, expected_first = (keys_at(output.past_key_values) for output in (ours, expected))
    assert torch.equal(first.positions, expected_first.positions)
    if strategy == "fixed":  # pro scores by the instruction's rows, which only ids can tell from the assistant turn
        torch.testing.assert_close(step_logits(ours), step_logits(expected))


def test_output_as_tuple(multi_head, strategy, compress):
    compress(multi_head, budget=24, strategy=strategy)
    inputs = ask(PROMPT)
    assert torch.equal(multi_head(**inputs, return_dict=False)[0], multi_head(**inputs).logits)


def test_pipeline(multi_head, strategy, compress):
    compress(multi_head, budget=24, strategy=strategy)
    messages = [
        {
            "role": "user",
            "content": [
                {"type": "image", "image": smooth_image(SIDE * PATCH, SIDE * PATCH, 0)},
                {"type": "text", "text": "what color is this ?"},
            ],
        }
    ]
    ask_model = pipeline("image-text-to-text", model=multi_head, processor=processor())
    answer = ask_model(text=messages, max_new_tokens=4, do_sample=False, return_full_text=False)
    direct = multi_head.generate(**ask(PROMPT), max_new_tokens=4, do_sample=False)
    expected = processor().decode(direct[0, -4:], skip_special_tokens=True)
    assert answer[0]["generated_text"].strip() == expected.strip()


REFUSALS = {
    "chunks": ({"prefill_chunk_size": 50}, "chunked prefill cannot be compressed"),
    "other encoder layer": ({"vision_feature_layer": -1}, "vision_feature_layer=-1: .* the model's own setting, -2"),
    "one chunk": ({"prefill_chunk_size": 500}, "chunked prefill cannot be compressed"),
}


@pytest.mark.parametrize("options, reason", REFUSALS.values(), ids=REFUSALS.keys())
def test_unsupported_generation_options_are_refused_and_leave_the_model_usable(
    multi_head, strategy, compress, options, reason
):
    inputs = ask(LONGER)
    compress(multi_head, budget=24, strategy=strategy)
    expected = greedy(multi_head, inputs, 2)
    with pytest.raises(ValueError, match=reason):
        greedy(multi_head, inputs, 2, **options)
    assert_same(greedy(multi_head, inputs, 2), expected, 0)


def test_one_encoding_serves_prompts_of_different_lengths(multi_head, compress):
    """A longer prompt about the same image is a prompt, not what a shorter one generated."""
    compress(multi_head, budget=24, strategy="pro", processor=None)
    prompts = [ask(text) for text in ("USER: <image> what ? ASSISTANT:", "USER: <image> where is this ? ASSISTANT:")]
    expected = [multi_head(**inputs, use_cache=False).logits for inputs in prompts]
    encoded = multi_head.get_image_features(prompts[0]["pixel_values"], return_dict=True)
    for inputs, logits in zip(prompts, expected, strict=True):
        given = {"input_ids": inputs["input_ids"], "mm_encoder_outputs": {"image": encoded}, "use_cache": False}
        torch.testing.assert_close(multi_head(**given).logits, logits, atol=1e-5, rtol=1e-5)


def test_features_find_their_own_image_when_another_was_encoded_since(multi_head, compress):
    compress(multi_head, budget=24)
    inputs, other = ask(PROMPT), ask(PROMPT, seeds=(7,))
    expected = multi_head(**inputs).logits
    encoded = multi_head.get_image_features(inputs["pixel_values"], return_dict=True)
    multi_head.get_image_features(other["pixel_values"], return_dict=True)
    found = multi_head(inputs["input_ids"], mm_encoder_outputs={"image": encoded}).logits
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_features_from_elsewhere_are_refused(multi_head, compress):
    inputs = ask(PROMPT)
    encoded = multi_head.get_image_features(inputs["pixel_values"], return_dict=True)
    compress(multi_head, budget=24)
    with pytest.raises(ValueError, match="did not come from this model's vision tower"):
        multi_head(inputs["input_ids"], mm_encoder_outputs={"image": encoded})


def test_features_encoded_beforehand(multi_head, strategy, compress):
    """One encoding may serve several prompts."""
    compress(multi_head, budget=24, strategy=strategy)
    inputs = ask(PROMPT)
    expected = greedy(multi_head, inputs, 2)
    encoded = multi_head.get_image_features(inputs["pixel_values"], return_dict=True)
    for _ in range(2):
        output = greedy(multi_head, {"input_ids": inputs["input_ids"]}, 2, mm_encoder_outputs={"image": encoded})
        assert_same(output, expected)
