"""Python API: `LLM(artifact).generate(prompts, SamplingParams(...))`."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, TypedDict, Unpack

import numpy as np
import numpy.typing as npt

from inferir.api.local_engine import LocalEngine, TextStream
from inferir.api.outputs import Completion, Job, RequestOutput, request_output
from inferir.api.prompts import Prompt, per_prompt, prompt_list
from inferir.ir.errors import EngineError, RequestError
from inferir.runtime.build_engine import build_engine
from inferir.runtime.engine.engine import Engine, EngineStats
from inferir.runtime.engine.engine_options import EngineOptions
from inferir.runtime.engine.request_maker import RequestOptions
from inferir.runtime.executor.executors import check_target
from inferir.runtime.loader import load_artifact
from inferir.runtime.probe import sequence_logits
from inferir.runtime.sampling.sampling_defaults import SamplingDefaults
from inferir.runtime.sampling.sampling_params import SamplingParams
from inferir.runtime.text.chat_template import Message
from inferir.runtime.text.chat_templates import ChatTemplates
from inferir.runtime.text.prompt_encoder import PromptEncoder
from inferir.runtime.text.tokenizer import Tokenizer
from inferir.runtime.text.traced_text import plain

__all__ = ["LLM", "Completion", "RequestOutput", "SamplingParams"]

log = logging.getLogger("inferir.api.llm")


class TemplateOptions(TypedDict, total=False):
    """What a chat template gets beside the messages. add_generation_prompt: begin an answer (the default, but not
    beside the next). continue_final_message: have the answer go on with the last message.
    """

    tools: Sequence[Mapping[str, Any]] | None
    add_generation_prompt: bool
    continue_final_message: bool
    template_variables: Mapping[str, Any] | None


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
        self._artifact = load_artifact(artifact_path, check_target)
        self.manifest = self._artifact.manifest
        self.sampling_defaults = SamplingDefaults.load(self._artifact.tokenizer_dir, generation_config)
        for problem in self.sampling_defaults.ignored:
            log.warning("%s", problem)
        self.engine: Engine = build_engine(self._artifact, options)
        self._local = LocalEngine(self.engine)
        self._templates = ChatTemplates.load(self._artifact.tokenizer_dir)
        for problem in self._templates.problems.values() if self._templates else ():
            log.warning("a chat template cannot be used: %s", problem)
        self._data_may_control = allow_special_tokens_in_messages

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
        listed = prompt_list(prompts)
        count = len(listed)
        groups = self._start(
            listed,
            per_prompt("params", params, count, SamplingParams, self.sampling_defaults.params()),
            per_prompt("priority", priority, count, int, 0),
            per_prompt("cache_salt", cache_salt, count, str, None),
        )
        jobs = [job for group in groups for job in group]
        try:
            for job in _progress(jobs) if progress else jobs:
                for _ in self._local.run(job):
                    pass
        finally:
            self._local.drop(jobs)
        return [request_output(group) for group in groups]

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
        return TextStream(self._local, group[0])

    @property
    def has_chat_template(self) -> bool:
        """Whether the artifact can turn messages into a prompt."""
        return self._templates is not None

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: int | Sequence[int] = 0,
        cache_salt: str | Sequence[str | None] | None = None,
        progress: bool = False,
        **template: Unpack[TemplateOptions],
    ) -> list[RequestOutput]:
        """Answer one conversation, or several, through the model's chat template.

        With `tools`, a template named "tool_use" renders if there is one. What the template leaves out of the prompt is
        logged; if that is a whole message, it is a `RequestError`.
        """
        if not messages:
            raise RequestError("messages must not be empty", "messages")
        several = not isinstance(messages[0], Mapping)
        conversations: Sequence[Any] = messages if several else [messages]
        prompts = [self.chat_token_ids(c, **template) for c in conversations]
        return self.generate(prompts, params, priority=priority, cache_salt=cache_salt, progress=progress)

    def chat_prompt(self, messages: Sequence[Message], **template: Unpack[TemplateOptions]) -> str:
        """The text that the chat template makes of a conversation. Raises `RequestError` if there is no template.

        It no longer tells what the template wrote from what the messages say; `chat_token_ids` does.
        """
        return plain(self._rendered(messages, template))

    def chat_token_ids(self, messages: Sequence[Message], **template: Unpack[TemplateOptions]) -> list[int]:
        """Token ids of a conversation. Control tokens come from the template alone, whatever the messages say."""
        text = self._rendered(messages, template)  # first: without a template there may be no tokenizer either
        return self._encoder.encode(text)

    @cached_property
    def _encoder(self) -> PromptEncoder:
        sources = () if self._templates is None else self._templates.sources
        ends = self.manifest.model.eos_token_ids
        return PromptEncoder(self._tokenizer(), ends, sources, data_may_control=self._data_may_control)

    def _rendered(self, messages: Sequence[Message], template: TemplateOptions) -> str:
        if self._templates is None:
            raise RequestError(
                "the model has no chat template; use generate with a text prompt, or put chat_template.jinja into the "
                "model's folder and compile it again",
                "messages",
            )
        continued = template.get("continue_final_message", False)
        prompt = self._templates.prompt(
            messages,
            tools=template.get("tools"),
            add_generation_prompt=template.get("add_generation_prompt", True) and not continued,
            continue_final_message=continued,
            variables=template.get("template_variables"),
        )
        for warning in prompt.warnings:
            log.warning("%s", warning)
        return prompt.text

    def sampling_params(self, **given: Any) -> SamplingParams:
        """Parameters with what the model's generation_config.json recommends for all that is not given."""
        return self.sampling_defaults.params(**given)

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
        with self._local.lock:
            return sequence_logits(self.engine, sequences, chunk)

    def close(self) -> None:
        """Stop the worker threads. Unfinished requests end with "abort"."""
        self._local.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def stats(self) -> EngineStats:
        """A snapshot of the engine's gauges and counters."""
        with self._local.lock:
            return self.engine.stats()

    def reset_prefix_cache(self) -> None:
        """Forget all cached beginnings."""
        with self._local.lock:
            self.engine.reset_prefix_cache()

    def _start(
        self,
        prompts: Sequence[Prompt],
        params: Sequence[SamplingParams],
        priorities: Sequence[int],
        salts: Sequence[str | None],
    ) -> list[list[Job]]:
        """Queue all prompts, or none if one is refused; the jobs of each."""
        given = [(p, self.tokenize(p)) if isinstance(p, str) else (None, p) for p in prompts]
        options: list[RequestOptions] = [
            {"priority": priority, "cache_salt": salt} for priority, salt in zip(priorities, salts, strict=True)
        ]
        return self._local.start(given, params, options)


def _progress(jobs: list[Job]) -> Iterable[Job]:
    from rich.progress import track

    return track(jobs, description="Generating")
