"""Exported tokenizers give the ids, special ids and texts of `AutoTokenizer`, whichever files describe them."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_tokenizers import CALL, byte_level, pieces

from inferir.frontend.checkpoint.huggingface import api, quiet
from inferir.frontend.source.export_tokenizer import TokenizerFacts, export_tokenizer
from inferir.frontend.source.model_source import load_source
from inferir.frontend.tokenizer.tokenizers_library import TokenizerWarning
from inferir.ir.errors import FrontendError
from inferir.runtime.text.tokenizer import Tokenizer as Served

SaveTiny = Callable[..., Path]
Edited = Callable[..., Path]

BEGIN = "<|begin|>"
ENCODED = [
    "a<tool_call>b<|begin|>",
    "plain text",
    " <|begin|> x  <tool_call>\n",
    "a<|begin|>b</s><s>",
    "word<|begin|>word",
    "<|BEGIN|> Tool <TOOL_CALL>",
    "héllo, wörld 日本語 🙂",
    "  two  blanks\t\n\n 12 345",
    "",
]


NEXT = 264
"""The first id that `byte_level` leaves free."""


@pytest.fixture
def folder(save_tiny: SaveTiny, edited: Edited) -> Path:
    out = edited(save_tiny("llama", vocab_size=512))
    byte_level().save(str(out / "tokenizer.json"))
    write(out, "tokenizer_config.json", bos_token="<s>", eos_token="</s>", pad_token="<pad>")
    return out


def write(folder: Path, name: str, **values: Any) -> None:
    (folder / name).write_text(json.dumps(values))


def write_raw(folder: Path, name: str, values: Any) -> None:
    (folder / name).write_text(json.dumps(values))


def auto(folder: Path) -> Any:
    with quiet():
        return api().auto_tokenizer.from_pretrained(str(folder))


def export(folder: Path, dest: Path) -> TokenizerFacts:
    return export_tokenizer(load_source(str(folder)), dest)


def assert_same(folder: Path, dest: Path) -> TokenizerFacts:
    """Compare the exported tokenizer, as serving reads it, with transformers' own."""
    facts, theirs = export(folder, dest), auto(folder)
    ours = Served.load(dest)
    for text in ENCODED:
        for special in (True, False):
            ids = theirs.encode(text, add_special_tokens=special)
            assert ours.encode(text, add_special_tokens=special) == ids, text
            for skip in (True, False):
                want = theirs.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
                assert ours.decode(ids, skip_special_tokens=skip) == want
    added = theirs.added_tokens_decoder
    assert ours.special_ids == {number for number, token in added.items() if token.special}
    assert facts.added == {token.content: number for number, token in added.items()}
    stated = json.loads((dest / "special_tokens_map.json").read_text())
    assert stated == theirs.special_tokens_map
    return facts


def token(content: str, **flags: bool) -> dict[str, Any]:
    plain = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False, "special": True}
    return {"content": content, **plain, **flags}


def begin(folder: Path, **more: Any) -> None:
    """added_tokens_decoder of a tokenizer_config.json that names one token more than tokenizer.json."""
    write(folder, "tokenizer_config.json", eos_token="</s>", added_tokens_decoder={str(NEXT): token(BEGIN)}, **more)


def test_a_token_of_added_tokens_decoder(folder: Path, tmp_path: Path) -> None:
    begin(folder)
    facts = assert_same(folder, tmp_path / "out")
    assert Served.load(tmp_path / "out").encode(ENCODED[0])[1:4:2] == [263, NEXT]
    assert facts.added[BEGIN] == NEXT
    assert BEGIN in facts.control
    (made,) = [d for d in facts.decisions if d.subject == "tokenizer"]
    assert made.value.startswith("added tokens as ")
    assert made.source == "tokenizer.json, tokenizer_config.json"


def test_a_token_of_added_tokens_json(folder: Path, tmp_path: Path) -> None:
    write_raw(folder, "added_tokens.json", {BEGIN: NEXT})
    facts = assert_same(folder, tmp_path / "out")
    assert facts.added[BEGIN] == NEXT
    assert BEGIN not in facts.control


@pytest.mark.parametrize("key", ["additional_special_tokens", "extra_special_tokens"])
@pytest.mark.parametrize("place", ["tokenizer_config.json", "special_tokens_map.json"])
@pytest.mark.parametrize("spelling", [BEGIN, token(BEGIN), token(BEGIN, lstrip=True, rstrip=True)])
def test_a_token_of_the_special_tokens(key: str, place: str, spelling: Any, folder: Path, tmp_path: Path) -> None:
    write_raw(folder, place, {"eos_token": "</s>", key: [spelling]})
    try:
        auto(folder)
    except Exception:
        with pytest.raises(FrontendError, match="its tokenizer cannot be loaded by transformers"):
            export(folder, tmp_path / "out")
        return
    assert_same(folder, tmp_path / "out")


@pytest.mark.parametrize("key", ["eos_token", "bos_token", "unk_token", "image_token"])
@pytest.mark.parametrize("place", ["tokenizer_config.json", "special_tokens_map.json"])
@pytest.mark.parametrize("known", [True, False])
def test_a_named_token(key: str, place: str, known: bool, folder: Path, tmp_path: Path) -> None:
    write_raw(folder, place, {key: CALL if known else BEGIN})
    assert_same(folder, tmp_path / "out")


@pytest.mark.parametrize("flags", [{"lstrip": True}, {"rstrip": True}, {"single_word": True}, {"normalized": True}])
@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("place", ["new", "known", "other id", "other token"])
def test_flags_of_added_tokens(flags: dict[str, bool], special: bool, place: str, folder: Path, tmp_path: Path) -> None:
    content, number = {
        "new": (BEGIN, NEXT),
        "known": (CALL, 263),
        "other id": (CALL, 300),
        "other token": (BEGIN, 263),
    }[place]
    stated = {str(number): token(content, **{**flags, "special": special})}
    write(folder, "tokenizer_config.json", eos_token="</s>", added_tokens_decoder=stated)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert_same(folder, tmp_path / "out")


def test_several_tokens_out_of_order(folder: Path, tmp_path: Path) -> None:
    stated = {"266": token("<c>"), str(NEXT): token("<a>", special=False), "265": token("<b>", rstrip=True)}
    write(folder, "tokenizer_config.json", added_tokens_decoder=stated)
    facts = assert_same(folder, tmp_path / "out")
    assert [facts.added[t] for t in ("<a>", "<b>", "<c>")] == [264, 265, 266]


@pytest.mark.parametrize("place", ["tokenizer_config.json", "added_tokens.json"])
def test_an_id_that_the_token_cannot_have_is_warned_about(place: str, folder: Path, tmp_path: Path) -> None:
    if place == "added_tokens.json":
        write_raw(folder, place, {BEGIN: 400})
    else:
        write(folder, place, added_tokens_decoder={"400": token(BEGIN)})
    with pytest.warns(TokenizerWarning, match=rf"{place}.* gives '<\|begin\|>' the id 400, but it has {NEXT}"):
        assert_same(folder, tmp_path / "out")


@pytest.mark.parametrize("flags", [{"add_bos_token": True}, {"add_eos_token": True}, {"add_prefix_space": True}])
def test_settings_of_the_config(flags: dict[str, bool], folder: Path, tmp_path: Path) -> None:
    write(folder, "tokenizer_config.json", bos_token="<s>", eos_token="</s>", **flags)
    assert_same(folder, tmp_path / "out")


@pytest.mark.parametrize("legacy", [True, False, None])
@pytest.mark.parametrize("kind", ["LlamaTokenizer", "LlamaTokenizerFast", "PreTrainedTokenizerFast", None])
@pytest.mark.parametrize("bos", [True, False])
def test_classes_that_build_parts_anew(
    legacy: bool | None, kind: str | None, bos: bool, save_tiny: SaveTiny, edited: Edited, tmp_path: Path
) -> None:
    folder = edited(save_tiny("llama", vocab_size=512))
    pieces().save(str(folder / "tokenizer.json"))
    config = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "add_bos_token": bos, "legacy": legacy}
    write(folder, "tokenizer_config.json", **config, **({"tokenizer_class": kind} if kind else {}))
    assert_same(folder, tmp_path / "out")


@pytest.mark.parametrize("kind", ["Qwen2Tokenizer", "GPT2Tokenizer", "LlamaTokenizer", "NoSuchClass"])
def test_declared_classes_over_bytes(kind: str, folder: Path, tmp_path: Path) -> None:
    write(folder, "tokenizer_config.json", tokenizer_class=kind, eos_token="</s>")
    assert_same(folder, tmp_path / "out")


def test_a_class_that_cannot_encode_is_refused(folder: Path, tmp_path: Path) -> None:
    write(folder, "tokenizer_config.json", tokenizer_class="GemmaTokenizer")
    with pytest.raises(FrontendError, match=r"as GemmaTokenizer .*is tokenizer_class.* cannot encode text: Unk token"):
        export(folder, tmp_path / "out")


def test_nothing_to_merge_is_copied_byte_for_byte(folder: Path, tmp_path: Path) -> None:
    facts = assert_same(folder, tmp_path / "out")
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()
    assert [d.value for d in facts.decisions if d.subject == "tokenizer"] == ["as it stands"]


def test_a_bare_object_as_token_is_understood(folder: Path, tmp_path: Path) -> None:
    """transformers reads it in special_tokens_map.json only, but many a tokenizer_config.json has it."""
    write(folder, "tokenizer_config.json", eos_token=token(BEGIN, lstrip=True))
    facts = export(folder, tmp_path / "out")
    assert facts.added[BEGIN] == NEXT
    assert json.loads((tmp_path / "out" / "special_tokens_map.json").read_text()) == {"eos_token": BEGIN}


def test_sources_of_the_end(folder: Path, tmp_path: Path) -> None:
    write(folder, "tokenizer_config.json", eos_token="</s>", eot_token=CALL)
    claims = {c.source: c.ids for c in export(folder, tmp_path / "a").claims if c.source.startswith("tokenizer")}
    assert claims == {"tokenizer_config.json: eos_token": (261,), "tokenizer_config.json: eot_token": (263,)}
    write(folder, "special_tokens_map.json", eos_token=token("<pad>"))
    claims = {c.source: c.ids for c in export(folder, tmp_path / "b").claims if "token:" not in c.source}
    assert claims["special_tokens_map.json: eos_token"] == (262,)


def test_split_special_tokens_is_warned_about(folder: Path, tmp_path: Path) -> None:
    write(folder, "tokenizer_config.json", split_special_tokens=True)
    with pytest.warns(TokenizerWarning, match="split_special_tokens is not applied"):
        export(folder, tmp_path / "out")


def test_code_of_its_own_needs_trust(folder: Path, tmp_path: Path) -> None:
    write(folder, "tokenizer_config.json", auto_map={"AutoTokenizer": ["tokens.Own", None]}, tokenizer_class="Own")
    with pytest.raises(FrontendError, match="code of its own, which is not run unless trust_remote_code is set"):
        export(folder, tmp_path / "out")


@pytest.mark.parametrize("name", ["tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"])
@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff\xfe{\x00}\x00", b"[" * 100_000, b"\xef\xbb\xbf{}"])
def test_damaged_files_are_named(name: str, content: bytes, folder: Path, tmp_path: Path) -> None:
    (folder / name).write_bytes(content)
    with pytest.raises(FrontendError, match=name) as error:
        export(folder, tmp_path / "out")
    assert "\n" not in str(error.value)
