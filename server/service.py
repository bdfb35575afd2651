"""What all routes share: the model's facts, its tokenizer and template, and the engine."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

from inferir.ir.contract.artifact import read_manifest
from inferir.ir.contract.manifest import Manifest
from inferir.ir.errors import RequestError
from inferir.ir.system.error_report import printable
from inferir.runtime.sampling.sampling_defaults import SamplingDefaults
from inferir.runtime.text.chat_templates import ChatPrompt, ChatTemplates
from inferir.runtime.text.prompt_encoder import PromptEncoder
from inferir.runtime.text.tokenizer import Tokenizer
from inferir.runtime.text.tool_style import Style, detect_style, style
from inferir.server.engine.engine_client import EngineClient
from inferir.server.engine.prometheus_metrics import Metrics
from inferir.server.http.http_errors import ApiError, draining, not_ready
from inferir.server.http.responses import warn
from inferir.server.server_options import ServerOptions

log = logging.getLogger("inferir.server")

P = ParamSpec("P")
R = TypeVar("R")

# Names with which template variables could replace what the server itself gives to the template.
_RESERVED = ("messages", "tools", "chat_template", "tokenize", "add_generation_prompt", "continue_final_message")


class Service:
    """One served artifact. Raises `ArtifactError` if its manifest or tokenizer cannot be read, or the template that the
    options name; the artifact's own template may be unusable, for completions need none.
    """

    def __init__(self, options: ServerOptions, client: EngineClient) -> None:
        self.options = options
        self.client = client
        self.manifest: Manifest = read_manifest(options.artifact)
        folder = options.artifact / "tokenizer"
        self.tokenizer = Tokenizer.load(folder) if (folder / "tokenizer.json").exists() else None
        chosen = options.chat_template
        self.template = (
            ChatTemplates.load(folder) if chosen is None else ChatTemplates.from_file(chosen, folder, "--chat-template")
        )
        for problem in self.template.problems.values() if self.template else ():
            log.warning("a chat template cannot be used: %s", problem)
        if self.tokenizer is not None:
            sources = () if self.template is None else self.template.sources
            allowed, ends = options.special_tokens_in_messages, self.manifest.model.eos_token_ids
            self._encoder = PromptEncoder(self.tokenizer, ends, sources, data_may_control=allowed)
        self.sampling = SamplingDefaults.load(folder, options.generation_config)
        self.names = options.served_names or (printable(self.manifest.model.name),)
        self.metrics = Metrics(options.metrics_prefix, self.names[0])
        client.observer = self.metrics
        self.draining = False
        self._threads = ThreadPoolExecutor(2, "inferir-text")

    @property
    def phase(self) -> str:
        """ "ready", or what the server waits for."""
        if self.draining:
            return "draining"
        if self.client.phase == "ready" and not self.client.responsive:
            return "not responding"
        return self.client.phase

    @property
    def tool_style(self) -> Style:
        """How the model writes tool calls: as the options say, else as its template does, else the most usual one."""
        found = self.options.tool_style
        template = None if self.template is None else self.template.source(tools=True)
        named = self.template is not None and self.template.has_tool_use
        if found is None and template is not None and (named or self.options.chat_template is not None):
            found = detect_style(template)
        elif found is None:
            found = style(self.manifest.model.tool_style)
        return found or "hermes"

    @property
    def max_model_len(self) -> int:
        """Tokens of a request at most, prompt included."""
        limit = int(self.options.engine.get("max_model_len") or self.manifest.limits.max_model_len)
        return min(limit, self.client.capacity or limit)

    def check_ready(self) -> None:
        """Raise `ApiError` 503 unless requests can be served now."""
        if self.draining:
            raise draining()
        if self.client.phase != "ready":
            raise not_ready(self.client.phase)

    def check_model(self, body: Mapping[str, Any]) -> None:
        """Raise `ApiError` 404 for a model with another name; none means the served one."""
        name = body.get("model")
        if name is not None and name not in self.names:
            raise ApiError(
                404, f"the model {name[:200]!r} does not exist; {self.names[0]!r} is served", "model", "model_not_found"
            )

    async def in_thread(self, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run work on text beside the event loop; a `RequestError` becomes an `ApiError`."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, lambda: call(*args, **kwargs))
        except RequestError as error:
            raise ApiError.from_request_error(error) from None

    def need_tokenizer(self, field: str) -> Tokenizer:
        if self.tokenizer is None:
            raise ApiError.invalid("the artifact has no tokenizer; give the prompt as token ids", field)
        return self.tokenizer

    def encode(self, text: str, *, add_special_tokens: bool, must_fit: str | None = None) -> list[int]:
        """Token ids of a text. With `must_fit`, its field, one that is surely too long is refused before any work."""
        tokenizer = self.need_tokenizer("prompt")
        self._check_length(tokenizer, text, must_fit)
        return tokenizer.encode(text, add_special_tokens=add_special_tokens)

    def _check_length(self, tokenizer: Tokenizer, text: str, must_fit: str | None) -> None:
        if must_fit is not None and (fewest := tokenizer.fewest_tokens(text)) >= self.max_model_len:
            raise self._too_long(f"at least {fewest}", must_fit)

    async def chat_tokens(
        self, body: Mapping[str, Any], headers: dict[str, str], must_fit: str | None = None
    ) -> list[int]:
        """Token ids of a conversation, as the chat template writes it, with one beginning-of-text token at most.

        What the template leaves out is told in `headers` and in the log.
        """
        if self.template is None:
            raise ApiError.invalid(
                "the model has no chat template; use /v1/completions, or start the server with --chat-template FILE",
                "messages",
            )
        variables = body.get("chat_template_kwargs") or {}
        for name in variables:
            if name in _RESERVED:
                raise ApiError.invalid(f"chat_template_kwargs may not set {name}", "chat_template_kwargs")
        if body.get("messages") is None:
            raise ApiError.invalid("messages is required", "messages")
        continued = bool(body.get("continue_final_message"))
        generation = body.get("add_generation_prompt")
        self.need_tokenizer("messages")
        prompt = await self.in_thread(
            self.template.prompt,
            body["messages"],
            tools=body.get("tools") or None,
            add_generation_prompt=not continued if generation is None else generation,
            continue_final_message=continued,
            variables=variables,
        )
        if prompt.warnings:
            warn(headers, "; ".join(prompt.warnings[:10]))
        special = bool(body.get("add_special_tokens"))
        ids = await self.in_thread(self._encode_chat, prompt, special, must_fit)
        bos = self._bos() if special else None
        return ids[1:] if bos is not None and ids[:2] == [bos, bos] else ids

    def _encode_chat(self, prompt: ChatPrompt, special: bool, must_fit: str | None) -> list[int]:
        """Token ids of a rendered conversation, control tokens only where the template wrote them."""
        self._check_length(self.need_tokenizer("messages"), prompt.text, must_fit)
        return self._encoder.encode(prompt.text, add_special_tokens=special)

    def check_prompt(self, ids: list[int], field: str) -> None:
        """Raise `ApiError` for a prompt that the engine could never serve.

        The engine checks prompts for the Python API as well. Here it is done before anything is sent, and the error has
        this API's field and code, and names the server's option.
        """
        vocabulary = self.manifest.model.vocab_size
        if not ids:
            raise ApiError.invalid(f"{field} is empty; give at least one token", field)
        bad = next((i for i in ids if not 0 <= i < vocabulary), None)
        if bad is not None:
            raise ApiError.invalid(f"token id {bad} is outside the vocabulary of {vocabulary}", field)
        if len(ids) >= self.max_model_len:
            raise self._too_long(str(len(ids)), field)

    def _too_long(self, tokens: str, field: str) -> ApiError:
        limit = self.max_model_len
        if limit == self.client.capacity < self.manifest.limits.max_model_len:
            reason = f"the KV cache holds {limit} tokens per request; start the server with more --kv-cache-memory"
        else:
            reason = f"the context length is {limit}"
        text = f"the prompt has {tokens} tokens, which leaves no room for an answer: {reason}"
        return ApiError(400, text, field, "context_length_exceeded")

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _bos(self) -> int | None:
        assert self.tokenizer is not None
        token = self.tokenizer.config.get("bos_token")
        token = token.get("content") if isinstance(token, dict) else token
        return self.tokenizer.id(token) if isinstance(token, str) else None
