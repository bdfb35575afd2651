"""How the text is split before byte-level BPE, by the name that a GGUF file gives it (`tokenizer.ggml.pre`).

A rule is a list of regular expressions in the dialect of the `tokenizers` library (Oniguruma). Each is applied to every
piece that the one before it left; a match and the text between matches are pieces of their own. Sources: the published
tokenizers of the models, and the table of names in llama.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass

from inferir.ir.errors import FrontendError

PRE = "tokenizer.ggml.pre"


@dataclass(frozen=True, kw_only=True)
class Rule:
    """splits: regular expressions, in order. nfc: the text is composed (NFC) first. ignore_merges: a piece that is a
    token needs no merges. add_bos: whether a start token is added where the file says nothing. force_bos: whatever the
    file says. plain: pieces are merged as text with U+2581 for a space, not as bytes.
    """

    splits: tuple[str, ...]
    nfc: bool = False
    ignore_merges: bool = False
    add_bos: bool = False
    force_bos: bool = False
    plain: bool = False


# Letters with case, Latin to Adlam, as code points.
_CASED = """
41-5a 61-7a b5 c0-d6 d8-f6 f8-1ba 1bc-1bf 1c4-293 295-2af 370-373 376 377 37b-37d 37f 386 388-38a 38c
38e-3a1 3a3-3f5 3f7-481 48a-52f 531-556 10a0-10c5 13a0-13f5 13f8-13fd 1c90-1cba 1cbd-1cbf 1d00-1d2b
1d6b-1d77 1d79-1d9a 1e00-1f15 1f18-1f1d 1f20-1f45 1f48-1f4d 1f50-1f57 1f59 1f5b 1f5d 1f5f-1f7d 1f80-1fb4
1fb6-1fbc 1fbe 1fc2-1fc4 1fc6-1fcc 1fd0-1fd3 1fd6-1fdb 1fe0-1fec 1ff2-1ff4 1ff6-1ffc 2102 2107 210a-2113
2115 2119-211d 2124 2126 2128 212a-212d 212f-2134 2139 213c-213f 2145-2149 214e 2183 2184 2c00-2c7b
2c7e-2ce4 2ceb-2cee 2cf2 2cf3 a640-a66d a680-a69b a722-a76f a771-a787 a78b-a78e ab70-abbf fb00-fb06
fb13-fb17 ff21-ff3a ff41-ff5a 10400-1044f 104b0-104d3 104d8-104fb 10c80-10cb2 10cc0-10cf2 118a0-118df
1e900-1e943
"""


def _letters(ranges: str) -> str:
    """The inside of a character class from hexadecimal code points and ranges."""
    return "".join("-".join(f"\\x{{{end}}}" for end in part.split("-")) for part in ranges.split())


_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_IDEOGRAPHS = "[" + _letters("4e00-9fa5 800-4e00 ac00-d7ff") + "]+"
_CJK = "[" + _letters("4e00-9fa5 3040-309f 30a0-30ff") + "]+"
_ASCII_MARK = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"
_MARKED_WORDS = (
    _ASCII_MARK + r"[A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|" + _SPACES
)  # a mark sticks to the ASCII word behind it
_BLOOM = " ?[^(\\s|.,!?" + _letters("2026 3002 ff0c 3001 964 6d4 60c") + ")]+"
_LINES = r"[^\n]+|\n+"
_SOUTH_EAST_ASIA = (
    "4e00-9fff 3400-4dbf f900-faff 3040-309f 30a0-30ff ff65-ff9f 2f00-2fdf e40-e7f e80-eff 1780-17ff 1000-109f "
    "aa60-aa7f a9e0-a9ff ac00-d7af 1100-11ff"
)


def _words(digits: str, marks: str = r" ?[^\s\p{L}\p{N}]+[\r\n]*", spaces: str = _SPACES) -> str:
    """Contractions, words with one mark before them, digits, runs of marks, and white space."""
    return rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}|{marks}|{spaces}"


def _cased(digits: str, suffix: str, tail: str, without: str = "") -> str:
    """Words that end where lower case turns to upper; `suffix` may follow a word, `without` limits its letters."""
    upper, lower = (
        rf"[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}{without}]",
        rf"[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}{without}]",
    )
    before = r"[^\r\n\p{L}\p{N}]?"
    words = f"{before}{upper}*{lower}+{suffix}|{before}{upper}+{lower}*{suffix}"
    return rf"{words}|{digits}| ?[^\s\p{{L}}\p{{N}}]+{tail}|{_SPACES}"


_LLAMA3 = _words(r"\p{N}{1,3}")
_QWEN2 = _words(r"\p{N}")
_QWEN35 = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + _SPACES
_GPT4O = _cased(r"\p{N}{1,3}", f"{_CONTRACTION}?", r"[\r\n/]*")
_TEKKEN = _cased(r"\p{N}", "", r"[\r\n/]*")
_KIMI = r"\p{Han}+|" + _cased(r"\p{N}{1,3}", f"{_CONTRACTION}?", r"[\r\n]*", r"&&[^\p{Han}]")
_HALVED_BLANKS = "|".join(rf"\s{{{n}}}(?!\S)" for n in (512, 256, 128, 64, 32, 16, 8, 4))

_BY_NAME: dict[str, Rule] = {}


def _define(names: str, *splits: str, **flags: bool) -> None:
    for name in names.split():
        _BY_NAME[name] = Rule(splits=splits, **flags)


_define("default", r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")
_define("gpt-2 phi-2 jina-es jina-de jina-v2-es jina-v2-de jina-v1-en jina-v2-code roberta-bpe", _GPT2)
_define("gigachat a.x-4.0 mellum modern-bert exaone4 jais trillion granite-docling", _GPT2)
_define("mpt olmo", _GPT2, nfc=True)
_define("starcoder refact smollm codeshell exaone minerva-7b mellum2", r"\p{N}", _GPT2)
_define("command-r", r"\p{N}", _GPT2, nfc=True)
_define("falcon", r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")
_define("llama3 llama-v3 llama-bpe falcon3 falcon-h1", _LLAMA3, ignore_merges=True, add_bos=True)
_define("pixtral midm-2.0 lfm2 jina-v5-nano", _LLAMA3, ignore_merges=True, add_bos=True)
_define("dbrx smaug-bpe glm4 chatglm-bpe", _LLAMA3)
_define("jais-2", _words(r"\p{N}{1,3}", spaces=rf"\s*[\r\n]+|{_HALVED_BLANKS}|\s{{1,2}}(?!\S)|\s{{1}}"))
_define("minicpm5", r"\p{N}{1,3}", _words(r"\p{N}+"), ignore_merges=True)
_define("stablelm2 deepseek-r1-qwen kormo f2llmv2 megrez hunyuan solar-open grok-2", _QWEN2)
_define("qwen2", _QWEN2, nfc=True)
_define("qwen35", _QWEN35, nfc=True)
_define("laguna", _LINES, _QWEN2)
_define("seed-coder", _words(r"\p{N}", r" ?[^\s\p{L}\p{N}\r\n]+"))
_define(
    "bailingmoe bailingmoe2 llada-moe",
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
)
_define(
    "exaone-moe",
    _CONTRACTION
    + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
)
_define("gpt-4o llama4 kanana2 talkie minimax-m2", _GPT4O)
_define("granite-embed-multi-97m", _GPT4O, ignore_merges=True)
_define("tiny_aya cohere2moe", r"\d{1,3}(?=(?:\d{3})*\b)", _GPT4O)
_define("tekken", _TEKKEN, ignore_merges=True, add_bos=True)
_define("kimi-k2", _KIMI)
_define("poro-chat bloom gpt3-finnish", _BLOOM)
_define("viking", _BLOOM, r"\p{N}")
_define("superbpe", r"\p{N}+", r"(?=(\d{3})+(?!\d))")
_define("deepseek-v3 hunyuan-dense joyai-llm", r"\p{N}{1,3}", _CJK, _MARKED_WORDS)
_define("deepseek-coder", r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _IDEOGRAPHS, r"\p{N}")
_define(
    "deepseek-llm",
    r"[\r\n]",
    rf"\s?[{_letters(_CASED)}]+",
    r"\s?[!-/:-~" + _letters("ff01-ff0f ff1a-ff5e 2018-201f 3000-3002") + "]+",
    r"\s+$",
    _IDEOGRAPHS,
    r"\p{N}+",
)
_define(
    "youtu",
    "|".join(
        f"[{_letters(ranges)}]+"
        for ranges in (
            "ac00-d7a3 3131-318e",
            "ff01 2026 201c 201d 2018 2019 2014 ff1a ff1b ff0c 3001-303f fe30-fe4f",
            "3105-312f",
            "4e00-9fa5 3040-309f 30a0-30ff",
        )
    ),
    _cased(r"\p{N}", f"{_CONTRACTION}?", r"[\r\n/]*"),
    ignore_merges=True,
)
_define(
    "afmoe",
    r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))",  # groups of three, counted from the end of the number
    f"[{_letters(_SOUTH_EAST_ASIA)}]+",
    _MARKED_WORDS,
)
_define(
    "chameleon",
    "<sentinel:[0-9]+>",
    "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
    "([\\t\\n]|    |  )",
    r"\p{N}",
    r"[\p{P}!-/:-@\[-`{-~]",
    _GPT2,
    add_bos=True,
)
_define("gemma4 granite-embed-multi-311m", _LINES, force_bos=True, plain=True)
_define("sarvam-moe", _LINES, plain=True)


def names() -> tuple[str, ...]:
    """All names that have a rule."""
    return tuple(sorted(_BY_NAME))


def rule(name: str) -> Rule:
    """The rule called `name`. Raises `FrontendError` naming a name that has none."""
    found = _BY_NAME.get(name)
    if found is None:
        encoder, unknown = "it belongs to an embedding model", "the rule by which it splits a text is not known"
        reason = encoder if name == "whitespace" else unknown
        raise FrontendError(
            f"{PRE}: pre-tokenizer {name!r} is not supported: {reason}; convert the model from its safetensors folder"
        )
    return found
