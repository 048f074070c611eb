"""Answers that must be JSON: only tokens that continue a valid document can be drawn.

llguidance compiles schemas and says which tokens may follow. It bounds its own work, but a hostile schema can still
overflow the stack of its native code or keep it busy for minutes. So a schema is first compiled in a process of its
own, which has little stack, memory and time, and only then in this one.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections import OrderedDict
from collections.abc import Collection
from typing import Any

import numpy as np
import torch
from torch import Tensor

from covist.errors import CovistError
from covist.extras import require_extra
from covist.serve.errors import Refusal

LONGEST_SCHEMA = 65_536
"""Characters of a schema as JSON. The time of a step grows with the length of constants."""
COMPILED = 32
"""Schemas that are remembered: clients ask with the same ones again and again."""
TRIALS = 2
"""Schemas that are tried at once."""
TRIED = 100
"""Bytes of an answer that are tried."""
LIMITS: dict[str, Any] = {"max_lexer_states": 20_000, "verbose_errors": False}
"""Limits of llguidance below its defaults: a state takes up to 2 kB, and errors would quote the answer."""
WRITTEN = {
    # As most JSON that models have read. A model that may write any white space can write nothing else.
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    "coerce_one_of": True,  # "one of" becomes "any of"
}
_TRIAL = f"""
import sys, threading
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
try:
    import resource
    resource.setrlimit(resource.RLIMIT_CPU, (5, 5))
    resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))
except (ImportError, OSError, ValueError):
    pass  # where there is no such limit, the deadline of the request remains
grammar = sys.stdin.buffer.read().decode()
def try_it():
    tokenizer, limits = LLTokenizer("byte"), LLParserLimits(**{LIMITS!r})
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
    for _ in range({TRIED}):
        if matcher.is_stopped():
            break
        bits = matcher.compute_bitmask()
        allowed = [one for one in range(8 * len(bits)) if bits[one // 8] >> one % 8 & 1]
        if allowed:
            matcher.consume_token(allowed[0])
    print(matcher.get_error())
threading.stack_size(384 * 1024)  # less than any thread of the server has
trial = threading.Thread(target=try_it)
trial.start()
trial.join()
"""
_FIELD = "response_format"
_MAPS = ("properties", "$defs", "definitions")
_SCHEMAS = ("items", "prefixItems", "anyOf", "oneOf", "additionalProperties")
"""Keywords that hold schemas, by name or as such."""


class Constraint:
    """What one answer may still become."""

    def __init__(self, matcher: Any):
        self._matcher = matcher

    @property
    def is_complete(self) -> bool:
        """Whether nothing may follow."""
        return self._matcher.is_stopped()

    def allowed(self, scores: Tensor) -> Tensor:
        """Scores [vocabulary] in which tokens that may not follow have no chance."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        may = torch.from_numpy(np.unpackbits(bits, bitorder="little", count=len(scores)).astype(bool))
        if self._matcher.is_error() or not may.any():
            raise _refusal("the model cannot write what the schema asks for, or it is too complex to follow")
        return scores.masked_fill(~may, -torch.inf)

    def add(self, token: int) -> None:
        """Go on after a token."""
        self._matcher.consume_token(token)


class Constraints:
    """The constraints that one model can follow.

    vocabulary: the length of the model's logits
    ends: tokens with which it ends an answer
    """

    def __init__(self, tokenizer: Any, vocabulary: int, ends: Collection[int]):
        self._tokenizer, self._vocabulary, self._ends = tokenizer, vocabulary, ends
        self._lock = threading.Lock()
        self._native: Any = None
        self._compiled: OrderedDict[str, Any] = OrderedDict()
        self._trials = asyncio.Semaphore(TRIALS)

    async def compile(self, schema: dict[str, Any], is_strict: bool) -> Any:
        """Make a schema ready for `start`; keywords that cannot be enforced are refused if it `is_strict`."""
        grammar = await asyncio.to_thread(self._grammar, schema, is_strict)
        with self._lock:
            known = self._compiled.get(grammar)
        if known is None:
            async with self._trials:
                await _try(grammar)
            known = await asyncio.to_thread(self._remember, grammar)
        return known

    def start(self, compiled: Any) -> Constraint:
        """A constraint for one answer."""
        return Constraint(compiled.deep_copy())

    def _grammar(self, schema: dict[str, Any], is_strict: bool) -> str:
        try:
            require_extra(_FIELD, "structured")
        except CovistError as error:
            raise Refusal(400, "unsupported", str(error), param=_FIELD) from None
        from llguidance import LLMatcher

        own = {name: value for name, value in schema.items() if name != "x-guidance"}  # llguidance's own options
        written = json.dumps(own if "allOf" in json.dumps(own) else closed(own))
        if len(written) > LONGEST_SCHEMA:
            raise _refusal(f"the schema has more than {LONGEST_SCHEMA:,} characters")
        how: Any = {**WRITTEN, "lenient": not is_strict}
        try:
            return LLMatcher.grammar_from_json_schema(written, overrides=how)
        except ValueError as error:
            raise _refusal(f"the schema cannot be used ({error})") from None

    def _remember(self, grammar: str) -> Any:
        from llguidance import LLMatcher, LLParserLimits

        with self._lock:
            if self._native is None:
                self._native = self._native_tokenizer()
        compiled = LLMatcher(self._native, grammar, log_level=0, limits=LLParserLimits(**LIMITS))
        Constraint(compiled.deep_copy()).allowed(torch.zeros(self._vocabulary))  # refuses what cannot even begin
        with self._lock:
            self._compiled[grammar] = compiled
            while len(self._compiled) > COMPILED:
                self._compiled.popitem(last=False)
        return compiled

    def _native_tokenizer(self) -> Any:
        from llguidance.hf import from_tokenizer

        ends = sorted(self._ends) or [self._tokenizer.eos_token_id or 0]
        try:
            return from_tokenizer(self._tokenizer, n_vocab=max(self._vocabulary, len(self._tokenizer)), eos_token=ends)
        except ValueError:
            raise _refusal("the tokenizer of this model cannot be held to a format; ask for text") from None


def closed(schema: Any) -> Any:
    """A schema whose objects have no properties but those that it lists, unless it says otherwise.

    Other schemas let a model add whatever it likes, for as long as it likes. Parts of an `allOf` cannot be closed.
    """
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {
        name: {key: closed(one) for key, one in value.items()}
        if name in _MAPS and isinstance(value, dict)
        # Values of other keywords are plain data.
        else closed(value)
        if name in _SCHEMAS
        else value
        for name, value in schema.items()
    }
    return {"additionalProperties": False, **inner} if "properties" in schema else inner


async def _try(grammar: str) -> None:
    """Compile a grammar where it can do no harm."""
    pipe = asyncio.subprocess.PIPE
    trial = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _TRIAL, stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        said = (await trial.communicate(grammar.encode()))[0].decode(errors="replace").strip()
    finally:
        if trial.returncode is None:  # the client has left, or its time is over
            trial.kill()
            await trial.wait()
    if trial.returncode:
        raise _refusal("the schema is too complex")
    if said:
        raise _refusal(f"the schema cannot be used ({said.splitlines()[0]})")


def _refusal(problem: str) -> Refusal:
    return Refusal(400, "bad_schema", f"{_FIELD}: {problem}", param=_FIELD)
