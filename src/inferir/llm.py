"""Python API: `LLM(artifact).generate(prompts, SamplingParams(...))`."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from inferir.ir.errors import EngineError, RequestError
from inferir.runtime.build import build_engine
from inferir.runtime.chat import ChatTemplate, Message
from inferir.runtime.engine import Engine, Update
from inferir.runtime.loader import load_artifact
from inferir.runtime.options import EngineOptions
from inferir.runtime.probe import sequence_logits
from inferir.runtime.request import Request
from inferir.runtime.sampling import SamplingParams

__all__ = ["LLM", "RequestOutput", "SamplingParams"]

Prompt = str | Sequence[int]


@dataclass(frozen=True)
class RequestOutput:
    """The answer to one prompt.

    `token_ids` are the generated tokens, a final end-of-sequence or stop token included; `text` leaves that token out.
    `finish_reason` is "stop" (`stop_reason` then names the stop string or stop token; None means end-of-sequence),
    "length" or "abort".
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    text: str
    token_ids: list[int]
    finish_reason: str
    stop_reason: int | str | None = None


@dataclass
class _Job:
    """A request and the updates that its caller has not taken yet."""

    request: Request
    prompt: str | None
    updates: list[Update] = field(default_factory=list)
    text: list[str] = field(default_factory=list)


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
        return _output(self._job)

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
    this process may use). Raises `ArtifactError`, `TargetError` or `EngineError` if the artifact cannot be served
    here.
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
    ) -> None:
        options = EngineOptions(
            kv_cache_memory=kv_cache_memory,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=max_model_len,
            threads=threads,
        )
        self._artifact = load_artifact(artifact_path)
        self.manifest = self._artifact.manifest
        self.engine: Engine = build_engine(self._artifact, options)
        self._template = ChatTemplate.load(self._artifact.tokenizer_dir)
        self._jobs: dict[str, _Job] = {}
        self._abandoned: deque[_Job] = deque()
        self._lock = threading.Lock()
        self._closed = False

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool = False,
    ) -> list[RequestOutput]:
        """Complete the prompts (text or token ids; one or several) and return the answers in order.

        `params` is for all prompts, or one per prompt. Raises `RequestError` for any invalid prompt before one is
        started.
        """
        listed = _prompt_list(prompts)
        jobs = self._start(listed, _params_list(params, len(listed)))
        try:
            for job in _progress(jobs) if progress else jobs:
                for _ in self._updates(job):
                    pass
        finally:
            self._drop(jobs)
        return [_output(job) for job in jobs]

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> TextStream:
        """Complete one prompt and give the text piece by piece; closing the iterator ends the request."""
        (job,) = self._start([prompt], [params or SamplingParams()])
        return TextStream(self, job)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_variables: Mapping[str, Any] | None = None,
        progress: bool = False,
    ) -> list[RequestOutput]:
        """Answer one conversation, or several, through the model's chat template."""
        if not messages:
            raise RequestError("messages must not be empty", "messages")
        several = not isinstance(messages[0], Mapping)
        conversations: Sequence[Any] = messages if several else [messages]
        prompts = [
            self.chat_prompt(
                c,
                tools=tools,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                template_variables=template_variables,
            )
            for c in conversations
        ]
        return self.generate([self.tokenize(p, add_special_tokens=False) for p in prompts], params, progress=progress)

    def chat_prompt(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The text that the chat template makes of a conversation. Raises `RequestError` if there is no template."""
        if self._template is None:
            raise RequestError(
                "the model has no chat template; use generate with a text prompt, or put chat_template.jinja into the "
                "model's folder and compile it again",
                "messages",
            )
        return self._template.render(
            messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt and not continue_final_message,
            continue_final_message=continue_final_message,
            variables=template_variables,
        )

    def tokenize(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`. Raises `EngineError` if the artifact has no tokenizer."""
        if self.engine.tokenizer is None:
            raise EngineError("the artifact has no tokenizer; give prompts as token ids")
        return self.engine.tokenizer.encode(text, add_special_tokens=add_special_tokens)

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
                self.engine.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _start(self, prompts: list[Prompt], params: list[SamplingParams]) -> list[_Job]:
        """Queue all prompts, or none if one is refused."""
        jobs = []
        ids = [self.tokenize(p) if isinstance(p, str) else p for p in prompts]
        with self._lock:
            if self._closed:
                raise EngineError("the LLM is closed")
            for prompt, tokens, param in zip(prompts, ids, params, strict=True):
                request = self.engine.make_request(tokens, param)
                jobs.append(_Job(request, prompt if isinstance(prompt, str) else None))
            for job in jobs:
                self.engine.scheduler.add(job.request)
                self._jobs[job.request.id] = job
        return jobs

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


def _output(job: _Job) -> RequestOutput:
    request = job.request
    assert request.finish_reason is not None
    return RequestOutput(
        request_id=request.id,
        prompt=job.prompt,
        prompt_token_ids=list(request.prompt),
        text="".join(job.text),
        token_ids=list(request.outputs),
        finish_reason=request.finish_reason,
        stop_reason=request.stop_reason,
    )


def _prompt_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt is text or a flat list of ids; anything else is a list of prompts."""
    if isinstance(prompts, str):
        return [prompts]
    if len(prompts) and isinstance(prompts[0], int | np.integer):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]


def _params_list(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    if len(params) != count:
        raise RequestError(f"{len(params)} sampling parameters were given for {count} prompts", "params")
    return list(params)


def _progress(jobs: list[_Job]) -> Iterable[_Job]:
    from rich.progress import track

    return track(jobs, description="Generating")
