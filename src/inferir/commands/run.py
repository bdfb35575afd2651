"""`inferir run ART [PROMPT]`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from inferir.commands import arguments as a

if TYPE_CHECKING:
    from inferir.llm import LLM


def run(
    artifact: a.Artifact,
    prompt: Annotated[
        str | None,
        typer.Argument(metavar="[PROMPT]", help="The prompt; without it, or with -, standard input is read."),
    ] = None,
    max_tokens: a.MaxTokens = None,
    temperature: a.Temperature = 0.0,
    seed: a.Seed = None,
    chat: Annotated[
        bool | None,
        typer.Option(
            "--chat/--raw",
            help="Put the prompt into the model's chat template, or complete it as it is. Default: the template, if "
            "there is one.",
        ),
    ] = None,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="System message for the chat template.")] = None,
    stop: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="End before this text. May be repeated.")
    ] = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on after an end-of-text token.")] = False,
    threads: a.Threads = None,
    kv_cache_memory: a.KvCacheMemory = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No statistics on standard error.")] = False,
) -> None:
    """Complete a prompt and stream the answer to standard output; statistics go to standard error."""
    from inferir.commands.streaming import answer, has_chat_template, write
    from inferir.llm import LLM, SamplingParams

    params = SamplingParams(
        max_tokens=max_tokens, temperature=temperature, seed=seed, stop=tuple(stop or ()), ignore_eos=ignore_eos
    )
    text = _prompt(prompt)
    with LLM(artifact, max_num_seqs=1, threads=threads, kv_cache_memory=kv_cache_memory) as llm:
        tokens = _tokens(llm, text, chat, has_chat_template(artifact), system)
        done = answer(llm, tokens, params, write)
    write("" if done.text.endswith("\n") else "\n")
    if not quiet:
        print(done.stats(), file=sys.stderr)
    if done.interrupted:
        raise KeyboardInterrupt


def _prompt(prompt: str | None) -> str:
    """The prompt, from standard input if it is not given."""
    if prompt not in (None, "-"):
        assert prompt is not None
        return prompt
    if prompt is None and sys.stdin.isatty():
        raise typer.BadParameter("give a prompt, or pipe one into standard input", param_hint="PROMPT")
    return sys.stdin.read()


def _tokens(llm: LLM, text: str, chat: bool | None, has_template: bool, system: str | None) -> list[int]:
    """Token ids of the prompt, through the chat template where that is wanted (it adds its own special tokens)."""
    use_template = has_template if chat is None else chat
    if not use_template:
        if system is not None:
            raise typer.BadParameter("only a chat template has a place for it", param_hint="--system")
        return llm.tokenize(text)
    messages = [{"role": "user", "content": text}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    return llm.tokenize(llm.chat_prompt(messages), add_special_tokens=False)
