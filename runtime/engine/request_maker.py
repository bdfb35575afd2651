"""Making requests: a prompt and parameters, checked against what the engine can serve."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypedDict, Unpack

import numpy as np

from inferir.ir.errors import RequestError
from inferir.runtime.engine.engine_options import ModelLimits
from inferir.runtime.executor.base import Executor
from inferir.runtime.kv.kv_cache import KVCache
from inferir.runtime.kv.prefix_cache import PrefixKey
from inferir.runtime.requests.request import Request
from inferir.runtime.sampling.logit_rules import compile_rules
from inferir.runtime.sampling.sampling_params import SamplingParams, seed_i32
from inferir.runtime.text.detokenizer import Detokenizer, make_detokenizer
from inferir.runtime.text.request_values import check_text
from inferir.runtime.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from inferir.runtime.structured import Grammar

MAX_SALT_CHARS = 1024


class RequestOptions(TypedDict, total=False):
    """priority: lower numbers go first under the priority policy. cache_salt: share cached beginnings only with
    requests of the same salt. grammar: the request waits for it and then keeps to it.
    """

    priority: int
    cache_salt: str | None
    grammar: Future[Grammar] | None


class RequestMaker:
    """Makes the requests of one engine. capacity: tokens of a request at most, by context length and cache."""

    def __init__(
        self, executor: Executor, kv: KVCache, limits: ModelLimits, tokenizer: Tokenizer | None, capacity: int
    ) -> None:
        self._executor = executor
        self._kv = kv
        self._limits = limits
        self._tokenizer = tokenizer
        self._capacity = capacity
        self._ids = itertools.count()

    def make(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        request_id: str | None = None,
        **options: Unpack[RequestOptions],
    ) -> list[Request]:
        """`params.n` independent requests for a prompt of token ids, checked but not queued.

        Their ids are `request_id` itself if n is 1, else with "-0", "-1", … after it; their seeds are derived from
        that of `params`. With the prefix cache, the first computes the prompt and the others wait for it. Raises
        `RequestError` naming the field of what can never be served.
        """
        ids = self._check_prompt(prompt)
        priority, cache_salt = options.get("priority", 0), options.get("cache_salt")
        _check_options(priority, cache_salt)
        grammar = options.get("grammar")
        if params.stop_strings and self._tokenizer is None:
            raise RequestError("stop strings need a tokenizer, and this engine has none; use stop_token_ids", "stop")
        if params.structured is not None and grammar is None:
            raise RequestError("structured needs a compiled grammar", "structured")
        name = request_id if request_id is not None else f"request-{next(self._ids)}"
        limits = self._limits
        wanted = self._capacity if params.max_tokens is None else len(ids) + params.max_tokens
        rules = compile_rules(params, limits.vocab_size, limits.eos_token_ids, self._tokenizer)
        stop_ids = params.stop_ids if params.ignore_eos else params.stop_ids | limits.eos_token_ids
        by_length = "lengths" in self._executor.inputs  # what is cached of a prompt then depends on its length
        key = PrefixKey(salt=cache_salt, prompt_length=len(ids) if by_length else None)
        group: list[Request] = []
        for index in range(params.n):
            request = Request(
                id=name if params.n == 1 else f"{name}-{index}",
                prompt=ids,
                params=params,
                max_total=min(wanted, self._capacity),
                seed=_seed(params.seed, index),
                blocks=self._kv.new_sequence(),
                detokenizer=self._detokenizer(ids, params),
                priority=priority,
                cache_salt=cache_salt,
                stop_ids=stop_ids,
                rules=rules,
                hashes=self._kv.hashes(key),
                grammar=grammar,
                leader=group[0] if group and self._kv.prefix is not None else None,
                prompt_logprobs=None if params.prompt_logprobs is None else [None],
            )
            group.append(request)
        return group

    def _detokenizer(self, ids: list[int], params: SamplingParams) -> Detokenizer | None:
        if self._tokenizer is None:
            return None
        return make_detokenizer(
            self._tokenizer,
            prompt=ids,
            stop=params.stop_strings,
            include_stop=params.include_stop_str_in_output,
            skip_special=params.skip_special_tokens,
            kept=params.kept_ids,
        )

    def _check_prompt(self, prompt: Sequence[int]) -> list[int]:
        try:
            ids = np.asarray(prompt)
        except (ValueError, OverflowError):
            raise RequestError("the prompt must be a flat list of token ids", "prompt") from None
        if ids.size == 0:
            raise RequestError(
                "the prompt is empty; give at least one token, such as the beginning-of-text token", "prompt"
            )
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            raise RequestError("the prompt must be a flat list of token ids", "prompt")
        low, high, vocabulary = int(ids.min()), int(ids.max()), self._limits.vocab_size
        if low < 0 or high >= vocabulary:
            raise RequestError(
                f"token id {low if low < 0 else high} is outside the vocabulary of {vocabulary}", "prompt"
            )
        if len(ids) >= self._capacity:
            limit = f"the context length is {self._limits.max_model_len}"
            if self._capacity < self._limits.max_model_len:
                limit = f"the KV cache holds {self._capacity} per request; give it more memory (kv_cache_memory)"
            raise RequestError(
                f"the prompt has {len(ids)} tokens, which leaves no room for an answer: {limit}", "prompt"
            )
        out: list[int] = ids.tolist()
        return out


def _check_options(priority: int, cache_salt: str | None) -> None:
    if isinstance(priority, bool) or not isinstance(priority, int) or not -(2**63) <= priority < 2**63:
        raise RequestError(f"priority must be an integer, not {priority!r}", "priority")
    if cache_salt is not None:
        if not isinstance(cache_salt, str) or not 1 <= len(cache_salt) <= MAX_SALT_CHARS:
            raise RequestError(f"cache_salt must be a string of 1 to {MAX_SALT_CHARS} characters", "cache_salt")
        check_text(cache_salt, "cache_salt")


def _seed(seed: int | None, index: int) -> int:
    """The seed of answer `index`: that of the request for the first, numbers derived from it for the others."""
    if seed is not None and index:
        digest = hashlib.blake2b(f"{seed}/{index}".encode(), digest_size=4).digest()
        return int.from_bytes(digest, "little", signed=True)
    return seed_i32(seed)
