"""`inferir run ART [PROMPT]`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from inferir.cli import arguments as a
from inferir.cli import sampling_options as o
from inferir.cli import streams

if TYPE_CHECKING:
    from inferir.api.llm import LLM


def run(
    artifact: a.Artifact,
    prompt: Annotated[
        str | None,
        typer.Argument(metavar="[PROMPT]", help="The prompt; without it, or with -, standard input is read."),
    ] = None,
    chat: Annotated[
        bool | None,
        typer.Option(
            "--chat/--raw",
            help="Put the prompt into the model's chat template, or complete it as it is. Default: the template, if "
            "there is one.",
        ),
    ] = None,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="System message for the chat template.")] = None,
    temperature: o.Temperature = None,
    seed: o.Seed = None,
    top_k: o.TopK = None,
    top_p: o.TopP = None,
    min_p: o.MinP = None,
    repetition_penalty: o.Penalty = None,
    presence_penalty: o.Penalty = None,
    frequency_penalty: o.Penalty = None,
    logit_bias: o.LogitBias = None,
    bad_word: o.BadWord = None,
    generation_config: o.GenerationConfig = "none",
    max_tokens: o.MaxTokens = None,
    stop: o.Stop = None,
    stop_token_id: o.StopTokenId = None,
    min_tokens: o.MinTokens = None,
    ignore_eos: o.IgnoreEos = False,
    json_schema: o.JsonSchema = None,
    json_object: o.JsonObject = False,
    regex: o.Regex = None,
    choice: o.Choice = None,
    grammar: o.GrammarFile = None,
    threads: a.Threads = None,
    kv_cache_memory: a.KvCacheMemory = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No statistics on standard error.")] = False,
) -> None:
    """Complete a prompt and stream the answer to standard output; statistics go to standard error."""
    from inferir.api.llm import LLM, SamplingParams
    from inferir.cli.streaming import answer, has_chat_template, write

    given: dict[str, Any] = {
        "max_tokens": max_tokens,
        "temperature": temperature,
        "seed": seed,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "presence_penalty": presence_penalty,
        "frequency_penalty": frequency_penalty,
        "logit_bias": o.biases(logit_bias),
        "bad_words": bad_word or None,
        "stop": stop or None,
        "stop_token_ids": stop_token_id or None,
        "min_tokens": min_tokens,
        "ignore_eos": ignore_eos,
        "structured": o.structure(json_schema, json_object, regex, choice, grammar),
    }
    given = {name: value for name, value in given.items() if value is not None}
    SamplingParams(**given)  # a value that is wrong is refused before anything is loaded
    text = _prompt(prompt)
    with LLM(
        artifact,
        max_num_seqs=1,
        threads=threads,
        kv_cache_memory=kv_cache_memory,
        generation_config=generation_config,
    ) as llm:
        params = llm.sampling_params(**(_unset(llm) | given))
        tokens = _tokens(llm, text, chat, has_chat_template(artifact), system)
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
    return llm.chat_token_ids(messages)
