"""Tokenizers of GGUF files, compared with llama.cpp's ids of the same files (`tests/make_gguf_rules.py` asked for them)
and, where llama.cpp departs from a model's published rule, with that rule in another regular-expression engine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import regex
from gguf_models import tiny as tiny_model
from gguf_models import vocabulary
from tiny_gguf import (
    CONTROL,
    NORMAL,
    PROBES,
    TEXT_LEVEL,
    UNUSED,
    USER_DEFINED,
    Tiny,
    byte_level,
    sentence_piece,
    text_level,
    tiny_case,
    write,
)
from tokenizers import Tokenizer

from inferir.frontend.gguf import gguf_pretokenizers
from inferir.frontend.gguf.gguf_tokenizer import decisions, export
from inferir.frontend.gguf.gguf_vocabulary import TOKENIZER_KEYS, unaccounted
from inferir.frontend.source.export_tokenizer import export_tokenizer
from inferir.frontend.source.model_source import load_source
from inferir.frontend.tokenizer.tokenizers_library import TokenizerWarning
from inferir.ir.errors import FrontendError

STORED: dict[str, Any] = json.loads((Path(__file__).parent / "data" / "gguf_rules.json").read_text())
KEY = "tokenizer.ggml."

Make = Callable[[Tiny], Tokenizer]

quietly = pytest.mark.filterwarnings("ignore::inferir.frontend.tokenizer.tokenizers_library.TokenizerWarning")


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """The exported tokenizer of a file that is written for it."""

    def make(tiny: Tiny) -> Tokenizer:
        export(write(tmp_path / "tiny.gguf", tiny), tmp_path)
        return Tokenizer.from_file(str(tmp_path / "tokenizer.json"))

    return make


def plain(tokenizer: Tokenizer, text: str) -> list[str]:
    """Tokens of a text in which nothing is read as a control token."""
    tokenizer.encode_special_tokens = True
    tokens: list[str] = tokenizer.encode(text, add_special_tokens=False).tokens
    return tokens


# Published rules from which llama.cpp departs, and the probes where it does.
SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"


def cased(digits: str, suffix: str, tail: str, without: str = "") -> str:
    upper = rf"[[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}]{without}]"
    lower = rf"[[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}]{without}]"
    before = r"[^\r\n\p{L}\p{N}]?"
    words = f"{before}{upper}*{lower}+{suffix}|{before}{upper}+{lower}*{suffix}"
    return rf"{words}|{digits}| ?[^\s\p{{L}}\p{{N}}]+{tail}|{SPACES}"


GPT_4O = cased(r"\p{N}{1,3}", SUFFIX, r"[\r\n/]*")
TINY_AYA = (r"\d{1,3}(?=(?:\d{3})*\b)", GPT_4O)
MARKS_OF_LETTERS = ("नमस्ते दुनिया १२३", "שָׁלוֹם", "မြန်မာ ខ្មែរ ລາວ", "e\u0301a\u0308 Z\u0351\u036bx")
BLANKS_BEFORE_DIGITS = ("a  12", "def f():\n    1", "- item\n  2. x\n   10) y", "   7")
CAMEL_CASE = ("HelloWorld XMLHttpRequest iPhone",)
DIGITS_IN_WORDS = ("我想在apple工作1314天，好吗？“是”",)
PUBLISHED: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("gpt-4o", "kanana2", "llama4", "minimax-m2", "talkie"), (GPT_4O,)),
    **dict.fromkeys(("cohere2moe", "tiny_aya"), TINY_AYA),
    "tekken": (cased(r"\p{N}", "", r"[\r\n/]*"),),
    "kimi-k2": (r"[\p{Han}]+|" + cased(r"\p{N}{1,3}", SUFFIX, r"[\r\n]*", r"--\p{Han}"),),
}
DEPARTURES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("gpt-4o", "kanana2", "llama4", "minimax-m2", "talkie", "tekken"), MARKS_OF_LETTERS),
    **dict.fromkeys(("cohere2moe", "tiny_aya"), (*BLANKS_BEFORE_DIGITS, *CAMEL_CASE, *DIGITS_IN_WORDS)),
    "kimi-k2": (*CAMEL_CASE, *MARKS_OF_LETTERS),
    "youtu": CAMEL_CASE,
    "afmoe": BLANKS_BEFORE_DIGITS,
    **dict.fromkeys(("command-r", "mpt", "olmo", "qwen2", "qwen35"), MARKS_OF_LETTERS[-1:]),  # composed first
}


@pytest.mark.parametrize("name", sorted(STORED["names"]))
@quietly
def test_ids_are_those_of_llama_cpp(name: str, make: Make) -> None:
    tokenizer = make(tiny_case(name))
    want = STORED["ids"][STORED["names"][name]]
    got = [tokenizer.encode(text).ids for text in PROBES]
    wrong = [text for text, a, b in zip(PROBES, got, want, strict=True) if a != b]
    expected = DEPARTURES.get(name.removeprefix("gpt2/"), ())
    assert wrong == [text for text in PROBES if text in expected]


def test_every_supported_name_was_asked_for() -> None:
    asked = {name.removeprefix("gpt2/") for name in STORED["names"] if name.startswith("gpt2/")} - {""}
    assert asked == set(gguf_pretokenizers.names())
    assert {name for name in asked if gguf_pretokenizers.rule(name).plain} == set(TEXT_LEVEL)


def test_documentation_lists_every_name() -> None:
    page = (Path(__file__).parents[3] / "docs" / "frontend.md").read_text(encoding="utf-8")
    assert [name for name in gguf_pretokenizers.names() if f"`{name}`" not in page] == []


def split(text: str, patterns: tuple[str, ...]) -> list[str]:
    """Matches and what is between them, pattern by pattern."""
    parts = [text]
    for pattern in patterns:
        found = []
        for part in parts:
            at = 0
            for match in regex.finditer(pattern, part, flags=regex.V1):
                found += [part[at : match.start()], match[0]]
                at = match.end()
            found.append(part[at:])
        parts = [part for part in found if part]
    return parts


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_published_rules_hold_in_another_engine(name: str, make: Make) -> None:
    tokenizer = make(byte_level(name))
    for text in PROBES:
        pieces = [text[a:b] for _, (a, b) in tokenizer.pre_tokenizer.pre_tokenize_str(text)]
        assert pieces == split(text, PUBLISHED[name]), text


@pytest.mark.parametrize(
    ("name", "text", "want"),
    [
        ("smollm", "a  12", "a ĠĠ 1 2"),
        ("smollm", "   7", "ĠĠĠ 7"),
        ("afmoe", "   7", "ĠĠĠ 7"),
        ("afmoe", "1234567", "1 234 567"),
        ("superbpe", "1234567", "1 234 567"),
    ],
)
def test_blanks_and_digits(name: str, text: str, want: str, make: Make) -> None:
    tokenizer = make(byte_level(name))
    pieces = [text[a:b] for _, (a, b) in tokenizer.pre_tokenizer.pre_tokenize_str(text)]
    assert [piece.replace(" ", "Ġ") for piece in pieces] == want.split()


@pytest.mark.parametrize("name", ["command-r", "mpt", "olmo", "qwen2", "qwen35"])
def test_text_is_composed_where_the_model_was_trained_so(name: str, make: Make) -> None:
    tokenizer = make(byte_level(name))
    assert tokenizer.encode("e\u0301").ids == tokenizer.encode("é").ids
    assert make(byte_level("gpt-2")).encode("e\u0301").ids != tokenizer.encode("é").ids


@pytest.mark.parametrize("name", ["gpt2/smollm", "gpt2/gemma4", "llama/false", "gpt2/llama-bpe"])
@quietly
def test_texts_survive(name: str, make: Make) -> None:
    tokenizer = make(tiny_case(name))
    for text in PROBES:
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_unknown_and_refused_names(make: Make) -> None:
    for name in ("no-such-rule", "whitespace"):
        with pytest.raises(FrontendError, match=rf"tiny\.gguf: tokenizer\.ggml\.pre: .*'{name}' is not supported"):
            make(byte_level(name))


def test_a_missing_name_is_said(make: Make) -> None:
    with pytest.warns(TokenizerWarning, match=r"tokenizer\.ggml\.pre is missing"):
        make(byte_level(None))


@pytest.mark.parametrize(
    "model", ["bert", "t5", "rwkv", "plamo2", "hybriddna", "whitespace", "none", "no_vocab", "newest"]
)
def test_other_tokenizer_models_are_refused(model: str, make: Make) -> None:
    with pytest.raises(FrontendError, match=rf"tokenizer\.ggml\.model: the tokenizer model '{model}' is not supp"):
        make(replace(sentence_piece(), model=model))


def test_control_and_user_defined_tokens(make: Make) -> None:
    """Control tokens are cut out of a text only where they are read as such, user-defined ones always."""
    for tiny in (byte_level("smollm"), sentence_piece()):
        tokenizer = make(tiny)
        mark = "<|im_end|>" if tiny.model == "gpt2" else "</s>"
        assert mark in tokenizer.encode(f"a{mark}b", add_special_tokens=False).tokens
        assert mark not in plain(tokenizer, f"a{mark}b")
        assert "<<tag>>" in plain(tokenizer, "a<<tag>>b")
        added = {token.content: token.special for token in tokenizer.get_added_tokens_decoder().values()}
        assert (added[mark], added["<<tag>>"]) == (True, False)


def test_a_text_never_becomes_a_control_token_by_merging(make: Make) -> None:
    tiny = sentence_piece()
    more = [*tiny.tokens, "<", "/", "</", "s>", ">", "s"]
    tokens = list(dict.fromkeys(more))
    grown = len(tokens) - len(tiny.tokens)
    tokenizer = make(
        replace(tiny, tokens=tokens, types=[*tiny.types, *[NORMAL] * grown], scores=[*tiny.scores, *[-1.0] * grown])
    )
    assert plain(tokenizer, "</s>") == ["▁</", "s>"] or "</s>" not in plain(tokenizer, "</s>")


def test_markers_of_the_wrong_type_are_control_tokens(make: Make) -> None:
    tiny = byte_level("smollm")
    types = [NORMAL if token == "<|im_end|>" else kind for token, kind in zip(tiny.tokens, tiny.types, strict=True)]
    with pytest.warns(TokenizerWarning, match=r"token '<\|im_end\|>' is not of type control"):
        tokenizer = make(replace(tiny, types=types))
    assert "<|im_end|>" in tokenizer.encode("a<|im_end|>").tokens
    assert "<|im_end|>" not in plain(tokenizer, "a<|im_end|>")


def test_white_space_behind_markers(make: Make) -> None:
    tiny = byte_level("smollm")
    mark, x = tiny.tokens.index("<|im_end|>"), tiny.tokens.index("x")
    assert make(tiny).encode("<|im_end|> \n x").ids != [mark, x]
    named = replace(tiny, keys={**tiny.keys, "general.name": "Phi-3 mini"})
    assert make(named).encode("<|im_end|> \n x").ids == [mark, x]


@pytest.mark.parametrize(
    ("name", "keys", "want"),
    [
        ("gpt2/smollm", {}, (False, False)),
        ("gpt2/llama-bpe", {}, (True, False)),
        ("gpt2/tekken", {}, (True, False)),
        ("gpt2/chameleon", {}, (True, False)),
        ("gpt2/llama-bpe", {"add_bos_token": False}, (False, False)),
        ("gpt2/smollm", {"add_bos_token": True, "add_eos_token": True}, (True, True)),
        ("llama/", {}, (True, False)),
        ("llama/", {"add_bos_token": False, "add_eos_token": True}, (False, True)),
        ("gpt2/gemma4", {"add_bos_token": False}, (True, False)),
    ],
)
@quietly
def test_start_and_end_tokens(
    name: str, keys: dict[str, bool], want: tuple[bool, bool], make: Make, tmp_path: Path
) -> None:
    tiny = tiny_case(name)
    tokenizer = make(replace(tiny, keys={**tiny.keys, **{KEY + key: value for key, value in keys.items()}}))
    bos, eos = tiny.keys[KEY + "bos_token_id"], tiny.keys[KEY + "eos_token_id"]
    assert tokenizer.encode("").ids == [bos] * want[0] + [eos] * want[1]
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert (config["add_bos_token"], config["add_eos_token"]) == want
    assert config["bos_token"] == tiny.tokens[bos]
    assert json.loads((tmp_path / "special_tokens_map.json").read_text())["eos_token"] == tiny.tokens[eos]


def test_a_start_token_must_be_known(make: Make) -> None:
    tiny = byte_level("llama-bpe")
    with pytest.raises(FrontendError, match=r"tokenizer\.ggml\.bos_token_id: the file lacks this key"):
        make(replace(tiny, keys={}))
    assert make(replace(sentence_piece(), keys={})).encode("").tokens == ["<s>"]  # the ids that all such files have


def broken() -> dict[str, tuple[Tiny, str]]:
    """Files by what is wrong with them, and the key that the error must name."""
    tiny, spm = byte_level("smollm"), sentence_piece()
    tokens, types, merges = list(tiny.tokens), list(tiny.types or ()), list(tiny.merges or ())
    scores = list(spm.scores or ())
    over_text = text_level("gemma4", None)
    spm_without_41 = replace(spm, tokens=["<0xzz>" if t == "<0x41>" else t for t in spm.tokens])

    def key(name: str, value: Any) -> Tiny:
        return replace(tiny, keys={**tiny.keys, KEY + name: value})

    out: dict[str, tuple[Tiny, str]] = {
        "no tokens": (replace(tiny, tokens=()), "tokens"),
        "tokens are numbers": (replace(key("tokens", [1, 2]), tokens=()), "tokens"),
        "a token twice": (replace(tiny, tokens=[*tokens[:-1], tokens[-2]]), "tokens"),
        "no model": (replace(tiny, model=None), "model"),
        "model is a number": (replace(key("model", 3), model=None), "model"),
        "pre is a number": (replace(key("pre", 3), pre=None), "pre"),
        "fewer types": (replace(tiny, types=types[:-1]), "token_type"),
        "more types": (replace(tiny, types=[*types, NORMAL]), "token_type"),
        "unknown type": (replace(tiny, types=[*types[:-1], 9]), "token_type"),
        "types are texts": (replace(key("token_type", ["a"]), types=None), "token_type"),
        "no merges": (replace(tiny, merges=None), "merges"),
        "merges are numbers": (replace(key("merges", [1]), merges=None), "merges"),
        "a merge of one part": (replace(tiny, merges=[*merges, "ab"]), "merges"),
        "a merge without right part": (replace(tiny, merges=[*merges, "a "]), "merges"),
        "a merge of unknown parts": (replace(tiny, merges=[*merges, "zzz q"]), "merges"),
        "a merge into no token": (replace(tiny, merges=[*merges, "Z Z"]), "merges"),
        "no scores": (replace(spm, scores=None), "scores"),
        "fewer scores": (replace(spm, scores=scores[:-1]), "scores"),
        "scores are texts": (replace(spm, scores=None, keys={**spm.keys, KEY + "scores": ["a"]}), "scores"),
        "a score is no number": (replace(spm, scores=[*scores[:-1], float("nan")]), "scores"),
        "a score is infinite": (replace(spm, scores=[*scores[:-1], float("inf")]), "scores"),
        "a byte is missing": (replace(spm_without_41, types=[CONTROL, *(spm.types or ())[1:]]), "tokens"),
        "a byte of text is missing": (
            replace(over_text, tokens=["<0xzz>" if t == "<0x41>" else t for t in over_text.tokens]),
            "tokens",
        ),
        "a map of characters": (replace(spm, keys={**spm.keys, KEY + "precompiled_charsmap": [1, 2]}), "precompiled"),
        "flag is a number": (key("add_bos_token", 1), "add_bos_token"),
        "prefix is a text": (replace(spm, keys={**spm.keys, KEY + "add_space_prefix": "yes"}), "add_space_prefix"),
        "template is a number": (replace(tiny, keys={**tiny.keys, "tokenizer.chat_template": 1}), "chat_template"),
        "names of no templates": (replace(tiny, keys={**tiny.keys, "tokenizer.chat_templates": ["x"]}), "chat_templ"),
    }
    for name in ("bos", "eos", "eot", "eom", "unknown", "padding", "seperator", "mask", "fim_pre", "middle"):
        out[f"{name} out of range"] = (key(f"{name}_token_id", len(tokens)), f"{name}_token_id")
        out[f"{name} is a text"] = (key(f"{name}_token_id", "<s>"), f"{name}_token_id")
        out[f"{name} is a flag"] = (key(f"{name}_token_id", True), f"{name}_token_id")
    return out


BROKEN = broken()
SMOLLM = byte_level("smollm")
WITHOUT_A = replace(
    SMOLLM,
    tokens=["@@" if token == "A" else token for token in SMOLLM.tokens],
    merges=[merge for merge in SMOLLM.merges or () if "A" not in merge],
)


@pytest.mark.parametrize("case", sorted(BROKEN))
def test_broken_metadata_is_one_line_that_names_the_key(case: str, make: Make) -> None:
    tiny, key = BROKEN[case]
    with pytest.raises(FrontendError) as error:
        make(tiny)
    assert str(error.value).startswith("tiny.gguf: tokenizer."), error.value
    assert key in str(error.value).split(": ")[1]
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("tiny", "message"),
    [
        (replace(SMOLLM, merges=[*(SMOLLM.merges or ()), "Ġ Ġ"]), "1 entries are listed again"),
        (byte_level("smollm", **{KEY + "brand_new": 3}), r"the key tokenizer\.ggml\.brand_new is not known"),
        (byte_level("smollm", **{KEY + "suppress_tokens": [3]}), r"suppress_tokens: not obeyed"),
        (sentence_piece(**{KEY + "remove_extra_whitespaces": True}), r"remove_extra_whitespaces is true"),
        (text_level("gemma4", None, **{KEY + "add_bos_token": False}), r"add_bos_token is not true"),
        (WITHOUT_A, "1 bytes, 0x41 first, have no token"),
    ],
)
def test_oddities_are_said(tiny: Tiny, message: str, make: Make) -> None:
    with pytest.warns(TokenizerWarning, match=message):
        make(tiny)


@pytest.mark.parametrize("none", [-1, 2**32 - 1])
def test_an_id_may_say_that_there_is_no_such_token(none: int, tmp_path: Path) -> None:
    kind = "i32" if none < 0 else "u32"
    gguf = vocabulary(tiny_model("llama"), count=256).set(f"{KEY}padding_token_id", kind, none)
    gguf = gguf.set(f"{KEY}eot_token_id", kind, none)
    facts = export_tokenizer(load_source(str(gguf.write(tmp_path / "m.gguf")), "f32"), tmp_path / "out")
    special = json.loads((tmp_path / "out" / "special_tokens_map.json").read_text())
    assert "pad_token" not in special
    assert "eos_token" in special
    assert [claim.ids for claim in facts.claims] == [(2,)]


def test_characters_without_bytes_become_the_unknown_token(make: Make) -> None:
    spm = sentence_piece(**{KEY + "add_space_prefix": False, KEY + "add_bos_token": False})
    tiny = replace(spm, tokens=["<0xzz>" if token == "<0xC9>" else token for token in spm.tokens])
    with pytest.warns(TokenizerWarning, match="1 bytes have no token"):
        tokenizer = make(tiny)
    assert tokenizer.encode("aɣɣb").ids == [tiny.tokens.index("a"), 0, tiny.tokens.index("b")]
    assert make(spm).encode("ɣ").tokens == ["<0xC9>", "<0xA3>"]


@quietly
def test_neighbours_of_a_byte_without_token_do_not_merge(make: Make) -> None:
    tokenizer = make(replace(WITHOUT_A, pre="gpt-2"))
    assert tokenizer.encode("eA").tokens == ["e"]
    assert tokenizer.encode("it").tokens == ["it"]
    assert tokenizer.encode("iAt").tokens == ["i", "t"]


def test_chat_templates(tmp_path: Path) -> None:
    keys = {
        "tokenizer.chat_template": "main",
        "tokenizer.chat_template.tool_use": "tools",
        "tokenizer.chat_template.default": "not this one",
        "tokenizer.chat_templates": ["default", "tool_use"],
    }
    path = write(tmp_path / "tiny.gguf", byte_level("smollm", **keys))
    assert {name: t.text for name, t in export(path, tmp_path).items()} == {"default": "main", "tool_use": "tools"}


def test_every_key_has_a_fate() -> None:
    assert unaccounted({"tokenizer.ggml.tokens": 1, "tokenizer.chat_template.x": 1, "general.name": 1}) == []
    assert unaccounted({"tokenizer.ggml.newest": 1, "tokenizer.other": 1}) == [
        "tokenizer.ggml.newest",
        "tokenizer.other",
    ]
    import gguf

    known = [v for k, v in vars(gguf.Keys.Tokenizer).items() if not k.startswith("_") and "{" not in v]
    assert unaccounted(dict.fromkeys(known)) == []
    assert all(TOKENIZER_KEYS.values())


def test_decisions_name_their_keys(tmp_path: Path) -> None:
    path = write(tmp_path / "tiny.gguf", byte_level("smollm"))
    found = {d.subject: (d.value, d.source) for d in decisions(path)}
    assert found["pre-tokenizer"] == ("smollm", "tiny.gguf: tokenizer.ggml.pre")
    assert found["start token"] == ("0 (<|bos|>)", "tiny.gguf: tokenizer.ggml.bos_token_id")


def test_empty_and_unused_tokens(make: Make) -> None:
    tiny = byte_level("smollm")
    types = list(tiny.types or ())
    tokens = [*tiny.tokens, "", "[PAD1]", "also"]
    tokenizer = make(replace(tiny, tokens=tokens, types=[*types, CONTROL, UNUSED, USER_DEFINED]))
    assert tokenizer.get_vocab_size() == len(tokens)
    assert "[PAD1]" not in tokenizer.encode("a [PAD1]").tokens
    assert tokenizer.encode("x also").tokens[-1] == "also"
    assert re.fullmatch(r"x also", tokenizer.decode(tokenizer.encode("x also").ids))
