"""Python API: `LLM(artifact).generate(prompts, SamplingParams(...))`."""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from inferir.ir.errors import EngineError, RequestError
from inferir.runtime.build_engine import build_engine
from inferir.runtime.engine.engine import Engine
from inferir.runtime.engine.engine_grammars import EngineGrammars
from inferir.runtime.engine.engine_options import EngineOptions
from inferir.runtime.engine.stats import EngineStats
from inferir.runtime.loader import load_artifact
from inferir.runtime.probe import sequence_logits
from inferir.runtime.requests.request import Grammar, Request, Timing
from inferir.runtime.requests.update import Update
from inferir.runtime.sampling.sampling_defaults import SamplingDefaults
from inferir.runtime.sampling.sampling_params import SamplingParams
from inferir.runtime.sampling.token_logprobs import TokenLogprobs
from inferir.runtime.text.chat_template import Message
from inferir.runtime.text.chat_templates import ChatTemplates
from inferir.runtime.text.prompt_encoder import PromptEncoder
from inferir.runtime.text.text_check import check_text
from inferir.runtime.text.tokenizer import Tokenizer
from inferir.runtime.text.traced_text import plain

if TYPE_CHECKING:
    from inferir.runtime.structured import StructuredSpec

__all__ = ["LLM", "Completion", "RequestOutput", "SamplingParams"]

Prompt = str | Sequence[int]
GRAMMARS_AT_ONCE = 64
"""Grammars that one call may have waiting to be compiled."""

log = logging.getLogger("inferir.api.llm")


@dataclass(frozen=True)
class Completion:
    """One answer. `token_ids` are the generated tokens, a final end-of-sequence or stop token included; `text` leaves
    that token out.

    `finish_reason` is "stop" (`stop_reason` then names the stop string or stop token; None means end-of-sequence),
    "length", "abort" or "error" (`error` then says why). `logprobs` has an entry per token if asked for.
    """

    index: int
    text: str
    token_ids: list[int]
    finish_reason: str
    stop_reason: int | str | None = None
    logprobs: list[TokenLogprobs] | None = None
    error: str | None = None
    timing: Timing = field(default_factory=Timing, compare=False)


@dataclass(frozen=True)
class RequestOutput:
    """The answers to one prompt, `n` of them. The properties are those of the first.

    `prompt_logprobs` has an entry per prompt token, None for the first, if asked for. `cached_tokens` are those of the
    prompt that were found in the prefix cache.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[Completion]
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    cached_tokens: int = 0

    @property
    def text(self) -> str:
        return self.outputs[0].text

    @property
    def token_ids(self) -> list[int]:
        return self.outputs[0].token_ids

    @property
    def finish_reason(self) -> str:
        return self.outputs[0].finish_reason

    @property
    def stop_reason(self) -> int | str | None:
        return self.outputs[0].stop_reason

    @property
    def logprobs(self) -> list[TokenLogprobs] | None:
        return self.outputs[0].logprobs


@dataclass
class _Job:
    """A request and the updates that its caller has not taken yet."""

    request: Request
    prompt: str | None
    updates: list[Update] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)


class TextStream(Iterator[str]):
    """Pieces of one answer's text as they come. After the last piece, `output` is the whole answer."""

    def __init__(self, llm: LLM, job: _Job) -> None:
        self._llm = llm
        self._job = job
        self._updates = llm._updates(job)

    def __next__(self) -> str:
        for update in self._updates:
            if update.text:
                return update.text
        self.close()
        raise StopIteration

    @property
    def output(self) -> RequestOutput:
        """The answer. Raises `EngineError` while the request goes on."""
        if self._job.request.finish_reason is None:
            raise EngineError("the request is not finished")
        return _output([self._job])

    def close(self) -> None:
        """End the request if it still runs."""
        self._llm._drop([self._job])

    def __del__(self) -> None:
        # The collector may run this inside a step, so the request is only marked; the next step drops it.
        self._llm._abandoned.append(self._job)


class LLM:
    """A loaded artifact that answers prompts in this process. Several threads may use it; their requests run together.

    kv_cache_memory: bytes for the KV cache, a number or text like "2GiB" (default: what the artifact can use, at most
    half of the free memory). max_num_seqs: prompts that run at once. threads: compute threads (default: the processors
    this process may use). enable_prefix_caching: reuse what is computed of equal beginnings. scheduling_policy: "fcfs"
    or "priority". long_prefill_tokens: tokens that one prompt computes per step at most while there are others.
    max_waiting: requests that may queue beyond the free seats. generation_config: "auto" takes the sampling parameters
    that the model's authors recommend for requests without parameters, "none" does not.
    allow_special_tokens_in_messages: let text of messages that spells a control token become one. Raises
    `ArtifactError`, `TargetError` or `EngineError` if the artifact cannot be served here.
    """

    def __init__(
        self,
        artifact_path: str | os.PathLike[str],
        *,
        kv_cache_memory: int | str | None = None,
        max_num_seqs: int | None = None,
        max_num_batched_tokens: int | None = None,
        max_model_len: int | None = None,
        threads: int | None = None,
        enable_prefix_caching: bool = True,
        scheduling_policy: str = "fcfs",
        long_prefill_tokens: int | None = None,
        max_waiting: int | None = None,
        generation_config: str = "auto",
        allow_special_tokens_in_messages: bool = False,
    ) -> None:
        options = EngineOptions(
            kv_cache_memory=kv_cache_memory,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=max_model_len,
            threads=threads,
            enable_prefix_caching=enable_prefix_caching,
            scheduling_policy=scheduling_policy,
            long_prefill_tokens=long_prefill_tokens,
            max_waiting=max_waiting,
        )
        self._artifact = load_artifact(artifact_path)
        self.manifest = self._artifact.manifest
        self.sampling_defaults = SamplingDefaults.load(self._artifact.tokenizer_dir, generation_config)
        for problem in self.sampling_defaults.ignored:
            log.warning("%s", problem)
        self.engine: Engine = build_engine(self._artifact, options)
        self._grammars = EngineGrammars(self.engine)
        self._templates = ChatTemplates.load(self._artifact.tokenizer_dir)
        for problem in self._templates.problems.values() if self._templates else ():
            log.warning("a chat template cannot be used: %s", problem)
        self._data_may_control = allow_special_tokens_in_messages
        self._jobs: dict[str, _Job] = {}
        self._abandoned: deque[_Job] = deque()
        self._lock = threading.Lock()
        self._closed = False

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: int | Sequence[int] = 0,
        cache_salt: str | Sequence[str | None] | None = None,
        progress: bool = False,
    ) -> list[RequestOutput]:
        """Complete the prompts (text or token ids; one or several) and return the answers in order.

        `params` is used as it is; without it, that of `sampling_params()`. `params`, `priority` (lower numbers first,
        under the priority policy) and `cache_salt` (cached beginnings are shared only between prompts of one salt) are
        for all prompts, or lists with one per prompt. Raises `RequestError` for any invalid prompt or structure and
        `QueueFullError` for too many, before one is started.
        """
        listed = _prompt_list(prompts)
        count = len(listed)
        groups = self._start(
            listed,
            _per_prompt("params", params, count, SamplingParams, self.sampling_defaults.params()),
            _per_prompt("priority", priority, count, int, 0),
            _per_prompt("cache_salt", cache_salt, count, str, None),
        )
        jobs = [job for group in groups for job in group]
        try:
            for job in _progress(jobs) if progress else jobs:
                for _ in self._updates(job):
                    pass
        finally:
            self._drop(jobs)
        return [_output(group) for group in groups]

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> TextStream:
        """Complete one prompt and give the text piece by piece; closing the iterator ends the request."""
        params = params or self.sampling_defaults.params()
        if params.n != 1:
            raise RequestError(f"a stream gives one answer, not {params.n}; use generate", "n")
        (group,) = self._start([prompt], [params], [priority], [cache_salt])
        return TextStream(self, group[0])

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_variables: Mapping[str, Any] | None = None,
        priority: int | Sequence[int] = 0,
        cache_salt: str | Sequence[str | None] | None = None,
        progress: bool = False,
    ) -> list[RequestOutput]:
        """Answer one conversation, or several, through the model's chat template.

        With `tools`, a template named "tool_use" renders if there is one. What the template leaves out of the prompt is
        logged; if that is a whole message, it is a `RequestError`.
        """
        if not messages:
            raise RequestError("messages must not be empty", "messages")
        several = not isinstance(messages[0], Mapping)
        conversations: Sequence[Any] = messages if several else [messages]
        prompts = [
            self.chat_token_ids(
                c,
                tools=tools,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                template_variables=template_variables,
            )
            for c in conversations
        ]
        return self.generate(prompts, params, priority=priority, cache_salt=cache_salt, progress=progress)

    def chat_prompt(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The text that the chat template makes of a conversation. Raises `RequestError` if there is no template.

        It no longer tells what the template wrote from what the messages say; `chat_token_ids` does.
        """
        return plain(self._rendered(messages, tools, add_generation_prompt, continue_final_message, template_variables))

    def chat_token_ids(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_variables: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Token ids of a conversation. Control tokens come from the template alone, whatever the messages say."""
        text = self._rendered(messages, tools, add_generation_prompt, continue_final_message, template_variables)
        return self._encoder.encode(text)

    @cached_property
    def _encoder(self) -> PromptEncoder:
        sources = () if self._templates is None else self._templates.sources
        ends = self.manifest.model.eos_token_ids
        return PromptEncoder(self._tokenizer(), ends, sources, data_may_control=self._data_may_control)

    def _rendered(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        continue_final_message: bool,
        variables: Mapping[str, Any] | None,
    ) -> str:
        if self._templates is None:
            raise RequestError(
                "the model has no chat template; use generate with a text prompt, or put chat_template.jinja into the "
                "model's folder and compile it again",
                "messages",
            )
        prompt = self._templates.prompt(
            messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt and not continue_final_message,
            continue_final_message=continue_final_message,
            variables=variables,
        )
        for warning in prompt.warnings:
            log.warning("%s", warning)
        return prompt.text

    def sampling_params(self, **given: Any) -> SamplingParams:
        """Parameters with what the model's generation_config.json recommends for all that is not given."""
        return self.sampling_defaults.params(**given)

    def grammar(self, params: SamplingParams) -> Future[Grammar] | None:
        """The grammar of `params.structured`, which is being compiled; None for plain text. Raises `RequestError`."""
        return None if params.spec is None else self._grammars.compile(params.spec)

    def tokenize(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`. Raises `EngineError` if the artifact has no tokenizer."""
        return self._tokenizer().encode(text, add_special_tokens=add_special_tokens)

    def _tokenizer(self) -> Tokenizer:
        if self.engine.tokenizer is None:
            raise EngineError("the artifact has no tokenizer; give prompts as token ids")
        return self.engine.tokenizer

    def logits(self, sequences: Sequence[Sequence[int]], *, chunk: int | None = None) -> list[npt.NDArray[np.float32]]:
        """Logits [tokens, vocabulary] at every position of each token sequence.

        For checks of compiled numerics: `chunk` bounds the tokens of each sequence per step, so with 1 the step
        programs of decoding run, and without it those of prompts.
        """
        with self._lock:
            return sequence_logits(self.engine, sequences, chunk)

    def close(self) -> None:
        """Stop the worker threads. Unfinished requests end with "abort"."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._grammars.close()
                self.engine.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def stats(self) -> EngineStats:
        """A snapshot of the engine's gauges and counters."""
        with self._lock:
            return self.engine.stats()

    def reset_prefix_cache(self) -> None:
        """Forget all cached beginnings."""
        with self._lock:
            self.engine.reset_prefix_cache()

    def _start(
        self,
        prompts: list[Prompt],
        params: Sequence[SamplingParams],
        priorities: Sequence[int],
        salts: Sequence[str | None],
    ) -> list[list[_Job]]:
        """Queue all prompts, or none if one is refused; the jobs of each."""
        for salt in salts:
            if salt is not None:
                check_text(salt, "cache_salt")
        ids = [self.tokenize(p) if isinstance(p, str) else p for p in prompts]
        grammars = self._compiled(params)
        with self._lock:
            if self._closed:
                raise EngineError("the LLM is closed")
            groups = [
                [
                    _Job(request, prompt if isinstance(prompt, str) else None)
                    for request in self.engine.make_requests(
                        tokens,
                        param,
                        priority=priority,
                        cache_salt=salt,
                        grammar=None if param.spec is None else grammars[param.spec],
                    )
                ]
                for prompt, tokens, param, priority, salt in zip(prompts, ids, params, priorities, salts, strict=True)
            ]
            self.engine.queue([[job.request for job in group] for group in groups])
            for job in (job for group in groups for job in group):
                self._jobs[job.request.id] = job
        return groups

    def _compiled(self, params: Sequence[SamplingParams]) -> dict[StructuredSpec, Future[Grammar]]:
        """The compiled grammars that `params` want. Raises `RequestError` if one cannot be compiled."""
        found: dict[StructuredSpec, Future[Grammar]] = {}
        waiting: deque[Future[Grammar]] = deque()
        for param in params:
            if param.spec is not None and param.spec not in found:
                with self._lock:
                    if self._closed:
                        raise EngineError("the LLM is closed")
                    found[param.spec] = self._grammars.compile(param.spec)
                waiting.append(found[param.spec])
                if len(waiting) > GRAMMARS_AT_ONCE:
                    waiting.popleft().result()
        for future in waiting:
            future.result()
        return found

    def _updates(self, job: _Job) -> Iterator[Update]:
        """The job's updates until it ends. Whoever waits for an update runs the engine, for all requests."""
        finished = False
        while not finished:
            with self._lock:
                if not job.updates and job.request.finish_reason is None:
                    self._drop_abandoned()
                    for update in self.engine.step():
                        self._jobs[update.request.id].updates.append(update)
                updates, job.updates = job.updates, []
                finished = job.request.finish_reason is not None
            for update in updates:
                job.text.append(update.text)
                if update.logprobs is not None:
                    job.logprobs.append(update.logprobs)
                yield update

    def _drop(self, jobs: list[_Job]) -> None:
        """Forget jobs; those that still run are aborted."""
        with self._lock:
            for job in jobs:
                self._forget(job)

    def _drop_abandoned(self) -> None:
        while self._abandoned:
            self._forget(self._abandoned.popleft())

    def _forget(self, job: _Job) -> None:
        self._jobs.pop(job.request.id, None)
        if job.request.finish_reason is None:
            self.engine.abort(job.request.id)


def _output(group: list[_Job]) -> RequestOutput:
    first = group[0].request
    return RequestOutput(
        request_id=first.id if len(group) == 1 else first.id.removesuffix("-0"),
        prompt=group[0].prompt,
        prompt_token_ids=list(first.prompt),
        outputs=[_completion(index, job) for index, job in enumerate(group)],
        prompt_logprobs=first.prompt_logprobs,
        cached_tokens=first.cached_tokens,
    )


def _completion(index: int, job: _Job) -> Completion:
    request = job.request
    assert request.finish_reason is not None
    return Completion(
        index=index,
        text="".join(job.text),
        token_ids=list(request.outputs),
        finish_reason=request.finish_reason,
        stop_reason=request.stop_reason,
        logprobs=None if request.params.logprobs is None else job.logprobs,
        error=request.error,
        timing=request.timing,
    )


def _prompt_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt is text or a flat list of ids; anything else is a list of prompts."""
    if isinstance(prompts, str):
        return [prompts]
    if len(prompts) and isinstance(prompts[0], int | np.integer):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]


def _per_prompt(name: str, value: Any, count: int, kind: type, default: Any) -> list[Any]:
    """`value` for each of `count` prompts: one for all (None: `default`), or a list with one each."""
    if value is None or isinstance(value, kind):
        return [default if value is None else value] * count
    if not isinstance(value, list | tuple):
        raise RequestError(f"{name} must be one {kind.__name__} or a list of them, not {value!r}", name)
    if len(value) != count:
        shown = "sampling parameters" if name == "params" else f"values of {name}"
        raise RequestError(f"{len(value)} {shown} were given for {count} prompts", name)
    return list(value)


def _progress(jobs: list[_Job]) -> Iterable[_Job]:
    from rich.progress import track

    return track(jobs, description="Generating")
