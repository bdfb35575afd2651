"""Every field of the requests, one table: its kind, and what becomes of it. `docs/server.md` shows it.

Fields of sampling go 1:1 to `SamplingParams`, which checks their ranges. All else is checked by the kinds here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from inferir.ir.contract.step_inputs import STEP_INPUTS
from inferir.runtime.sampling.sampling_params import INTEGERS, MAX_LOGPROBS, NUMBERS, SamplingParams
from inferir.server.http.http_errors import ApiError
from inferir.server.openai.kinds import (
    DEPENDS,
    FLAG,
    IDLE,
    OBEYED,
    OBJECT,
    REFUSED,
    Anything,
    Field,
    Integer,
    Kind,
    Off,
    Record,
    Tagged,
    Text,
    TokenIds,
    Walk,
)
from inferir.server.openai.message_fields import MESSAGES, TOOL_CHOICE, TOOLS

MAX_N = 128
MAX_ID = 128

# What the server reads itself: in other units, by other names, or for each route in its own way.
_OWN = ("max_tokens", "n", "logprobs", "structured", "kept_special_ids")
SAMPLING = tuple(f.name for f in dataclasses.fields(SamplingParams) if f.name not in _OWN)

_SAMPLING_KINDS: Mapping[str, Kind] = {
    **{name: Anything("number") for name, *_ in NUMBERS},
    **{name: Integer(low, high) for name, low, high in INTEGERS},
    **dict.fromkeys(("include_stop_str_in_output", "ignore_eos", "skip_special_tokens"), FLAG),
    **dict.fromkeys(("stop_token_ids", "allowed_token_ids", "bad_words"), Anything("array")),
    "logit_bias": Anything("object"),
    "stop": Anything(),
}
_SAMPLING_NOTES: Mapping[str, str] = {
    "temperature": "0 takes the most likely token each time",
    "top_p": "0 is the smallest share above it: the most likely token, and those exactly as likely",
    "top_k": "0 and -1 are no limit",
    "min_p": "share of the most likely token's probability",
    "seed": "64 bits; makes draws repeatable",
    "stop": "a string, or at most 64",
    "stop_token_ids": "at most 1,000",
    "logit_bias": "token ids to numbers from -100 to 100, at most 1,000",
    "bad_words": "at most 1,000",
    "allowed_token_ids": "only these are drawn",
    "min_tokens": "nothing ends an answer before",
    "ignore_eos": "an end-of-text token does not end an answer",
    "include_stop_str_in_output": "the text has what it ended with",
    "skip_special_tokens": "false leaves them in the text; tool calls are read in either case",
    "prompt_logprobs": "with the whole answer, or in the first chunk of a stream",
    "presence_penalty": "from -2 to 2",
    "frequency_penalty": "from -2 to 2",
    "repetition_penalty": "1 has no effect",
}


def _sampling(name: str) -> Field:
    """A field of sampling; what nothing is said of here means what the kernel's input of that name does."""
    note = _SAMPLING_NOTES.get(name) or STEP_INPUTS[name].meaning
    return Field(name, _SAMPLING_KINDS[name], OBEYED, note)


_SAMPLING_FIELDS = tuple(map(_sampling, SAMPLING))


class _Structure(Record):
    """Unknown keys are left out, so that the rest can be read; an object with nothing else is an error."""

    def read(self, value: Any, path: str, walk: Walk) -> Any:
        read = super().read(value, path, walk)
        kept = {key: given for key, given in read.items() if key in self.by_name}
        if read and not kept:
            wanted = ", ".join(f.name for f in self.fields if f.effect == OBEYED)
            raise ApiError.invalid(f"{path} has none of the keys {wanted}", path)
        return {key: given for key, given in kept.items() if self.by_name[key].effect == OBEYED}


_STREAM_OPTIONS = Record(
    Field("include_usage", FLAG, OBEYED, "a last chunk has the usage and no choices"),
    Field("continuous_usage_stats", FLAG, DEPENDS, "every chunk has the usage so far; refused without include_usage"),
    Field("include_obfuscation", Off((False,)), REFUSED, "chunks are not padded"),
)
_JSON_SCHEMA = Record(
    Field("schema", Anything(), OBEYED, "the answer follows it"),
    Field("name", Text(), IDLE, "the schema is no part of the prompt"),
    Field("description", Text(), IDLE, "the schema is no part of the prompt"),
    Field("strict", FLAG, OBEYED, "objects that name properties have no others unless the schema says so"),
)
_FORMAT_TYPE = Field("type", Text(), OBEYED, "`text`, `json_object` or `json_schema`")
_RESPONSE_FORMAT = Tagged(
    "type",
    {
        "text": Record(_FORMAT_TYPE),
        "json_object": Record(_FORMAT_TYPE),
        "json_schema": Record(_FORMAT_TYPE, Field("json_schema", _JSON_SCHEMA, OBEYED, "with type `json_schema`")),
    },
    refused={"structural_tag": "; use structured_outputs", "grammar": "; use structured_outputs"},
    exclusive=True,
)
_STRUCTURED_OUTPUTS = _Structure(
    Field("json", Anything(), OBEYED, "a schema, as an object or as text"),
    Field("json_object", Anything("boolean"), OBEYED, "any JSON object"),
    Field("regex", Anything("string"), OBEYED, "the whole text matches it"),
    Field("choice", Anything("array"), OBEYED, "one of these texts"),
    Field("grammar", Anything("string"), OBEYED, "GBNF text with a rule `root`"),
    Field("structural_tag", Off(), REFUSED, "use `grammar`"),
    Field("whitespace_pattern", Off(), REFUSED, "use `grammar`"),
    Field("disable_any_whitespace", Off((False,)), REFUSED, "use `grammar`"),
    Field("disable_additional_properties", FLAG, OBEYED, "as `strict` of `response_format`; beside `json` only"),
    Field("disable_fallback", FLAG, IDLE, "there is one engine for grammars"),
)

_MODEL = Field("model", Text(), OBEYED, "404 unless it is a served name; the first one if absent")
_COMMON = (
    _MODEL,
    Field("n", Integer(1, MAX_N), OBEYED, "answers per prompt, at most 128"),
    Field("stream", FLAG, OBEYED, "server-sent events"),
    Field("stream_options", _STREAM_OPTIONS, DEPENDS, "refused without `stream: true`"),
    Field("truncate_prompt_tokens", Integer(-1), OBEYED, "the last tokens of the prompt; -1: as many as fit"),
    Field("add_special_tokens", FLAG, OBEYED, "default true for a prompt, false for messages"),
    Field("return_token_ids", FLAG, OBEYED, "of the prompt and the answers"),
    Field("response_format", _RESPONSE_FORMAT, OBEYED, "see structured-output.md"),
    Field("structured_outputs", _STRUCTURED_OUTPUTS, OBEYED, "one of its keys; see structured-output.md"),
    Field(
        "priority", Integer(-(2**31), 2**31 - 1), DEPENDS, "lower goes first; other than 0 needs the priority policy"
    ),
    Field("cache_salt", Text(), OBEYED, "cached beginnings are shared only among requests of the same salt"),
    Field("request_id", Text(most=MAX_ID), OBEYED, "ends the answer's `id`"),
    *_SAMPLING_FIELDS,
)

# Nothing in an answer could differ by them.
_IDLE = (
    Field("user", Text(), IDLE, "nothing is kept of users"),
    Field("safety_identifier", Text(), IDLE, "nothing is kept of users"),
    Field("metadata", OBJECT, IDLE, "answers are not stored"),
    Field(
        "service_tier",
        Text(("auto", "default", "flex", "scale", "priority", "fast")),
        IDLE,
        "there is one tier; see `priority`",
    ),
    Field("prompt_cache_key", Text(), IDLE, "every prefix may be found in the cache; see `cache_salt`"),
    Field("spaces_between_special_tokens", FLAG, IDLE, "no blanks are ever put between tokens"),
)

# Known, but only at a value that asks for nothing.
_CACHE_OPTIONS = Record(
    Field("mode", Off(("implicit",)), REFUSED, "every prefix may be found in the cache"),
    Field("ttl", Off(), REFUSED, "the cache promises no lifetime"),
)
_REFUSED = (
    Field("suffix", Off(("",)), REFUSED, "no model here fills gaps"),
    Field("prompt_embeds", Off(), REFUSED, "prompts are text or token ids"),
    Field("store", Off((False,)), REFUSED, "answers are not stored"),
    Field("prompt_cache_retention", Off(("in_memory", "in-memory")), REFUSED, "the cache is in memory"),
    Field("moderation", Off(), REFUSED, "there is no moderation"),
    Field("reasoning_effort", Off(hint="; use chat_template_kwargs"), REFUSED, "use `chat_template_kwargs`"),
    Field("include_reasoning", Off((True,)), REFUSED, "reasoning is part of the text"),
    Field("use_beam_search", Off((False,)), REFUSED, "there is no beam search"),
    Field("length_penalty", Off((1.0,)), REFUSED, "there is no beam search"),
    Field("early_stopping", Off((False,)), REFUSED, "there is no beam search"),
    Field("logits_processors", Off(([],)), REFUSED, "requests bring no code"),
    Field("return_tokens_as_token_ids", Off((False,)), REFUSED, "use `return_token_ids`"),
    *(
        Field(name, Off(hint="; use structured_outputs"), REFUSED, "use `structured_outputs`")
        for name in ("guided_json", "guided_regex", "guided_choice", "guided_grammar", "guided_decoding_backend")
    ),
    Field("structural_tag", Off(hint="; use structured_outputs"), REFUSED, "use `structured_outputs`"),
    Field("kv_transfer_params", Off(({},)), REFUSED, "prompts are computed here"),
    Field("lora_request", Off(), REFUSED, "there are no adapters"),
    Field("vllm_xargs", Off(({},)), REFUSED, "there are no plugins"),
    Field(
        "chat_template",
        Off(hint="; templates come from the artifact or from --chat-template"),
        REFUSED,
        "templates come from the artifact or from `--chat-template`",
    ),
    Field("prompt_cache_options", _CACHE_OPTIONS, DEPENDS, "only what is so in any case"),
    Field("audio", Off(), REFUSED, "text only"),
    Field("modalities", Off((["text"],)), REFUSED, "text only"),
    Field("prediction", Off(), REFUSED, "nothing is predicted"),
    Field("functions", Off(([],), "; use tools"), REFUSED, "use `tools`"),
    Field("function_call", Off(("none",), "; use tool_choice"), REFUSED, "use `tool_choice`"),
    Field("web_search_options", Off(), REFUSED, "the server calls nobody"),
    Field("verbosity", Off(("medium",)), REFUSED, "say it in the prompt"),
    Field("documents", Off(([],)), REFUSED, "put them into messages"),
    Field("mm_processor_kwargs", Off(({},)), REFUSED, "text only"),
    Field("media_io_kwargs", Off(({},)), REFUSED, "text only"),
)
_TEMPLATED = (
    Field("messages", MESSAGES, OBEYED, "at most 4,096"),
    Field("tools", TOOLS, OBEYED, "given to the template; at most 128"),
    Field("add_generation_prompt", FLAG, OBEYED, "default true, but not beside `continue_final_message`"),
    Field("continue_final_message", FLAG, OBEYED, "the answer goes on with the last message"),
    Field("chat_template_kwargs", OBJECT, OBEYED, "variables of the template, which may use them"),
)

COMPLETIONS = Record(
    Field("prompt", Anything(), OBEYED, "a string, token ids, or a list of either"),
    Field("max_tokens", Integer(0), OBEYED, "default 16; 0 needs `echo`"),
    Field("echo", FLAG, OBEYED, "the text begins with the prompt"),
    Field("logprobs", Integer(0, MAX_LOGPROBS), OBEYED, "of the chosen and of so many of the likeliest tokens"),
    Field("best_of", Integer(1), DEPENDS, "refused unless equal to `n`"),
    Field("tools", Off(([],), "; use /v1/chat/completions"), REFUSED, "use chats"),
    Field("tool_choice", Off(("none",), "; use /v1/chat/completions"), REFUSED, "use chats"),
    *_COMMON,
    *_IDLE,
    *_REFUSED,
)
CHAT = Record(
    *_TEMPLATED,
    Field("max_completion_tokens", Integer(1), OBEYED, "default: as many as fit"),
    Field("max_tokens", Integer(1), OBEYED, "the older name; refused beside another number of the newer"),
    Field("logprobs", FLAG, OBEYED, "of the chosen tokens"),
    Field(
        "top_logprobs", Integer(0, MAX_LOGPROBS), DEPENDS, "of the likeliest tokens; refused without `logprobs: true`"
    ),
    Field("tool_choice", TOOL_CHOICE, OBEYED, "`none`, `auto`, `required` or an object"),
    Field("parallel_tool_calls", FLAG, OBEYED, "false: calls after the first are left out"),
    Field("echo", Off((False,)), REFUSED, "use /v1/completions"),
    Field("best_of", Integer(1), DEPENDS, "refused unless equal to `n`"),
    *_COMMON,
    *_IDLE,
    *_REFUSED,
)
TOKENIZE = Record(
    _MODEL,
    Field("prompt", Text(), OBEYED, "either this or `messages`"),
    *_TEMPLATED,
    Field("add_special_tokens", FLAG, OBEYED, "default true for a prompt, false for messages"),
    Field("return_token_strs", FLAG, OBEYED, "the tokens in the vocabulary's spelling"),
    *(f for f in _REFUSED if f.name in ("chat_template", "documents", "mm_processor_kwargs")),
)
DETOKENIZE = Record(_MODEL, Field("tokens", TokenIds(1 << 20), OBEYED, "special tokens are written out"))
