"""`inferir run ART [PROMPT]`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from inferir.cli import arguments as a
from inferir.cli import streams
from inferir.cli.sampling_options import GenerationConfig, sampling_fields
from inferir.cli.shared_options import Fields, expanded

if TYPE_CHECKING:
    from inferir.api.llm import LLM


@expanded(sampling=sampling_fields)
def run(
    artifact: a.Artifact,
    prompt: Annotated[
        str | None,
        typer.Argument(metavar="[PROMPT]", help="The prompt; without it, or with -, standard input is read."),
    ] = None,
    chat: Annotated[
        bool | None,
        a.flag(
            "Put the prompt into the model's chat template, or complete it as it is. Default: the template, if "
            "there is one.",
            "--chat/--raw",
        ),
    ] = None,
    system: Annotated[str | None, a.option("TEXT", "System message for the chat template.")] = None,
    *,
    sampling: Fields,
    generation_config: GenerationConfig = "none",
    threads: a.Threads = None,
    kv_cache_memory: a.KvCacheMemory = None,
    quiet: Annotated[bool, a.flag("No statistics on standard error.", "--quiet", "-q")] = False,
) -> None:
    """Complete a prompt and stream the answer to standard output; statistics go to standard error."""
    from inferir.api.llm import LLM, SamplingParams
    from inferir.cli.streaming import answer, write

    SamplingParams(**sampling)  # a value that is wrong is refused before anything is loaded
    text = _prompt(prompt)
    with LLM(
        artifact,
        max_num_seqs=1,
        threads=threads,
        kv_cache_memory=kv_cache_memory,
        generation_config=generation_config,
    ) as llm:
        params = llm.sampling_params(**(_unset(llm) | sampling))
        tokens = _tokens(llm, text, llm.has_chat_template if chat is None else chat, system)
        done = answer(llm, tokens, params, write)
    write("" if done.text.endswith("\n") else "\n")
    if not quiet:
        print(done.stats(), file=sys.stderr)
    if done.interrupted:
        raise KeyboardInterrupt


def _unset(llm: LLM) -> dict[str, Any]:
    """What options mean that are not given, where the model does not recommend anything either."""
    return {k: v for k, v in (("max_tokens", None), ("temperature", 0.0)) if k not in llm.sampling_defaults.values}


def _prompt(prompt: str | None) -> str:
    """The prompt, from standard input if it is not given."""
    if prompt not in (None, "-"):
        assert prompt is not None
        return prompt
    if prompt is None and sys.stdin.isatty():
        raise typer.BadParameter("give a prompt, or pipe one into standard input", param_hint="PROMPT")
    return streams.read_text("the prompt on standard input")


def _tokens(llm: LLM, text: str, chat: bool, system: str | None) -> list[int]:
    """Token ids of the prompt, through the chat template where that is wanted (it adds its own special tokens)."""
    if not chat:
        if system is not None:
            raise typer.BadParameter("only a chat template has a place for it", param_hint="--system")
        return llm.tokenize(text)
    messages = [{"role": "user", "content": text}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    return llm.chat_token_ids(messages)
