"""`inferir chat ART` and `inferir chat --url URL`: a conversation in the terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from inferir.cli import arguments as a
from inferir.cli import streams
from inferir.cli.streaming import Answer, Message, answer, write
from inferir.ir.errors import InferirError, RequestError

if TYPE_CHECKING:
    from inferir.cli.http_client import Client

_HELP = """/reset      forget the conversation
/exit       leave; so does Ctrl-D
/help       show this
Ctrl-C      stop the answer"""


def chat(
    artifact: Annotated[
        Path | None,
        typer.Argument(metavar="[ART]", help="An artifact folder made by `inferir compile`; or give --url."),
    ] = None,
    url: Annotated[str | None, a.option("URL", "Talk with a running server of the OpenAI API instead.")] = None,
    uds: Annotated[str | None, a.option("PATH", "The same, at a Unix socket.")] = None,
    model: Annotated[str | None, a.option("NAME", "The server's model. Default: the server's first.")] = None,
    api_key: Annotated[str | None, a.option("KEY", "Key that the server wants.")] = None,
    system: Annotated[str | None, a.option("TEXT", "System message.")] = None,
    max_tokens: a.MaxTokens = None,
    temperature: a.Temperature = 0.0,
    seed: a.Seed = None,
    threads: a.Threads = None,
    kv_cache_memory: a.KvCacheMemory = None,
    stats: Annotated[bool, a.flag("Statistics after each answer, on standard error.", "--stats")] = False,
) -> None:
    """Talk with a model: /reset forgets the conversation, /exit leaves, Ctrl-C stops the answer only."""
    remote = url is not None or uds is not None
    if remote == (artifact is not None):
        raise typer.BadParameter("give either an artifact or --url", param_hint="ART")
    local = {"--threads": threads, "--kv-cache-memory": kv_cache_memory}
    served = {"--model": model, "--api-key": api_key}
    for name, value in (local if remote else served).items():
        if value is not None:
            raise typer.BadParameter("only for " + ("artifacts" if remote else "servers"), param_hint=name)
    given = {"max_tokens": max_tokens, "temperature": temperature, "seed": seed}
    if artifact is None:
        from inferir.cli.http_client import Client

        _remote(Client(url or "http://localhost", api_key, uds), model, given, system, stats)
        return
    from inferir.api.llm import LLM, SamplingParams

    params = SamplingParams.parse(given)
    with LLM(artifact, max_num_seqs=1, threads=threads, kv_cache_memory=kv_cache_memory) as llm:
        if not llm.has_chat_template:
            raise InferirError(f"{artifact}: the model has no chat template; use: inferir run {artifact} PROMPT")
        _greet(llm.manifest.model.name, llm.manifest.limits.max_model_len)

        def complete(messages: list[Message], write: Callable[[str], None]) -> Answer:
            return answer(llm, llm.chat_token_ids(messages), params, write)

        talk(Conversation(complete, system), stats)


def _remote(client: Client, model: str | None, given: dict[str, Any], system: str | None, stats: bool) -> None:
    from inferir.cli.remote_chat import find_model, remote_answer

    name, context = find_model(client, model)
    _greet(f"{name} at {client.place}", context)
    fields = {"model": name, **{k: v for k, v in given.items() if v is not None}}
    talk(Conversation(partial(remote_answer, client, fields), system), stats)


def _greet(name: str, context: int | None) -> None:
    if sys.stdin.isatty():
        size = "" if context is None else f", {context:,} tokens of context"
        print(f"{name}{size}. /help for commands.")


@dataclass
class Conversation:
    """The messages so far. An answer that was stopped stays in it as far as it came.

    complete: answers messages, and passes the text on as it comes.
    """

    complete: Callable[[list[Message], Callable[[str], None]], Answer]
    system: str | None = None
    messages: list[Message] = field(default_factory=list)

    def reply(self, text: str, write: Callable[[str], None]) -> Answer:
        """Answer `text`. Raises `RequestError`, with the conversation as it was, if it does not fit the context."""
        said = [*self.messages, {"role": "user", "content": text}]
        first = [] if self.system is None else [{"role": "system", "content": self.system}]
        done = self.complete(first + said, write)
        self.messages = [*said, {"role": "assistant", "content": done.text}]
        return done


def talk(conversation: Conversation, stats: bool) -> None:
    """Read lines and answer them until their end or /exit."""
    terminal = sys.stdin.isatty()
    if terminal:
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401 - gives input() its line editing
    while True:
        try:
            line = _terminal_line() if terminal else streams.read_text("the message", line=True) or None
        except KeyboardInterrupt:
            print("\n(/exit or Ctrl-D leaves)")
            continue
        except InferirError as error:
            if not terminal:
                raise
            print(error, file=sys.stderr)
            continue
        if line is None or line.strip() in ("/exit", "/quit"):
            return
        text = line.strip()
        if text == "/reset":
            conversation.messages.clear()
            print("(forgotten)")
        elif text.startswith("/"):
            print(_HELP if text == "/help" else f"{text.split()[0]} is no command\n{_HELP}")
        elif text:
            _answer(conversation, text, stats)


def _answer(conversation: Conversation, text: str, stats: bool) -> None:
    try:
        done = conversation.reply(text, write)
    except RequestError as error:
        print(f"{error}\n(/reset starts again)", file=sys.stderr)
        return
    except InferirError as error:
        if not sys.stdin.isatty():
            raise
        print(error, file=sys.stderr)
        return
    print(" …(stopped)" if done.interrupted else "")
    if stats:
        print(done.stats(), file=sys.stderr)


def _terminal_line() -> str | None:
    """A line from the user, with editing and history; None at the end of input."""
    try:
        return input("> ")
    except EOFError:
        print()
        return None
    except UnicodeError:
        raise InferirError(f"the message is not {sys.stdin.encoding.upper()}") from None
