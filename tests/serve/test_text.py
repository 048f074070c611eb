"""Text that arrives token by token is the text that arrives at once."""

from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from covist.serve.text import Detokenizer, StopStrings
from covist.tiny.text import build_tokenizer

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token per byte: most characters beyond English come in halves."""
    made = Tokenizer(models.BPE({letter: place for place, letter in enumerate(ALPHABET)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made, clean_up_tokenization_spaces=False)


BYTES, WORDS = byte_tokenizer(), build_tokenizer()


@given(st.text(max_size=12))
def test_pieces_of_bytes_join_to_the_text_and_hold_no_half_characters(text):
    detokenizer = Detokenizer(BYTES)
    pieces = [detokenizer.add(token) for token in BYTES(text).input_ids]
    assert "".join(pieces) + detokenizer.rest() == text
    assert all(piece == "" or "\ufffd" not in piece or "\ufffd" in text for piece in pieces)


@given(st.lists(st.integers(5, len(WORDS) - 1), max_size=12))
def test_pieces_of_words_join_to_the_decoded_whole(tokens):
    detokenizer = Detokenizer(WORDS)
    pieces = [detokenizer.add(token) for token in tokens]
    assert "".join(pieces) + detokenizer.rest() == WORDS.decode(tokens, skip_special_tokens=True)


def test_a_character_cut_in_half_becomes_a_replacement_character():
    detokenizer = Detokenizer(BYTES)
    assert [detokenizer.add(token) for token in BYTES("a€").input_ids[:-1]] == ["a", "", ""]
    assert detokenizer.rest() == "\ufffd"


LETTERS = st.text(alphabet="ab", max_size=8)


def cut_at_once(pieces: list[str], stops: list[str]) -> tuple[str, bool]:
    """Literal: the text up to the first stop string, as soon as the pieces so far hold one."""
    text = ""
    for piece in pieces:
        text += piece
        if places := [text.find(stop) for stop in stops if stop in text]:
            return text[: min(places)], True
    return text, False


@given(st.lists(LETTERS, max_size=8), st.lists(st.text(alphabet="ab", min_size=1, max_size=4), max_size=3))
def test_a_stream_ends_before_the_first_stop_string_and_shows_nothing_of_it(pieces, stops):
    expected, found = cut_at_once(pieces, stops)
    machine, shown = StopStrings(stops), ""
    for piece in pieces:
        if not machine.found:
            shown += machine.add(piece)
            assert expected.startswith(shown)
    assert (shown + machine.rest(), machine.found) == (expected, found)
