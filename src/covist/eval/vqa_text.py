"""How VQA's evaluation normalises an answer before comparing it: punctuation, articles, numbers, contractions.

It follows the published rules (vqaEval.py of the VQA challenge), with their peculiarities: a comma between two digits
anywhere removes all punctuation, and a contraction is completed if one apostrophe is missing, not two.
"""

from __future__ import annotations

import re

PUNCTUATION = ';/[]"{}()=+\\_-><@`,?!'
ARTICLES = frozenset({"a", "an", "the"})
_NUMERALS = "zero one two three four five six seven eight nine ten"
NUMBERS = {"none": "0", **{word: str(value) for value, word in enumerate(_NUMERALS.split())}}
_CONTRACTIONS = """
ain't aren't can't could've couldn't couldn't've didn't doesn't don't hadn't hadn't've hasn't haven't he'd he'd've he's
how'd how'll how's isn't it'd it'd've it'll ma'am mightn't mightn't've might've mustn't must've needn't not've o'clock
oughtn't 'ow's'at shan't she'd've should've shouldn't shouldn't've somebody'd've somebody'll somebody's someone'd
someone'd've someone'll someone's something'd something'd've something'll that's there'd there'd've there're there's
they'd they'd've they'll they're they've 'twas wasn't we'd've we've weren't what'll what're what's what've when's
where'd where's where've who'd who'd've who'll who's who've why'll why're why's won't would've wouldn't wouldn't've
y'all y'all'll y'all'd've you'd you'd've you'll you're you've
"""
_GROUPED_DIGITS = re.compile(r"\d,\d")
_FULL_STOP = re.compile(r"\.(?!\d)")


def _one_apostrophe_missing(form: str) -> list[str]:
    return [form[:place] + form[place + 1 :] for place, letter in enumerate(form) if letter == "'"]


_COMPLETED = {written: form for form in _CONTRACTIONS.split() for written in _one_apostrophe_missing(form)}
_COMPLETED["somebody'd"] = "somebodyd"  # as published


def vqa_normalise(answer: str) -> str:
    """An answer as VQA compares it.

    >>> vqa_normalise("The two dogs, isnt it?")
    "2 dogs isn't it"
    """
    text = re.sub(r"[\n\t]", " ", answer).strip()
    words = _without_punctuation(text).lower().split()
    kept = [NUMBERS.get(word, word) for word in words]
    return " ".join(_COMPLETED.get(word, word) for word in kept if word not in ARTICLES)


def _without_punctuation(text: str) -> str:
    """Remove a mark next to a space; replace one between letters by a space."""
    grouped = _GROUPED_DIGITS.search(text) is not None
    cleaned = text
    for mark in PUNCTUATION:
        beside_space = f"{mark} " in text or f" {mark}" in text
        cleaned = cleaned.replace(mark, "" if beside_space or grouped else " ")
    return _FULL_STOP.sub("", cleaned)
