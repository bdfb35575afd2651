"""Text in, text out: prompts, streams, stop strings and chat over a compiled artifact with a tokenizer."""

from __future__ import annotations

import json
import shutil
import string
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from inferir.api.llm import LLM, SamplingParams
from inferir.ir.contract.artifact import file_records, read_manifest, write_manifest
from inferir.ir.errors import EngineError, RequestError

LETTERS = string.ascii_letters[:48]
GREEDY = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True)
TEMPLATE = "<s>{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}Q{% endif %}"


@pytest.fixture(scope="module")
def llm(compiled_artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    """The artifact with a tokenizer of one token per letter, `<s>` (48) and no text for 49."""
    root = tmp_path_factory.mktemp("text") / "artifact"
    shutil.copytree(compiled_artifact, root)
    folder = root / "tokenizer"
    folder.mkdir()
    backend = tokenizers.Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(LETTERS)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<s>"])
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    write_manifest(root, msgspec.structs.replace(read_manifest(root), files=file_records(root)))
    with LLM(root, threads=2) as llm:
        yield llm


def whole(llm: LLM, prompt: str = "Hello") -> str:
    return llm.generate(prompt, GREEDY)[0].text


def test_text_is_the_tokens_text(llm: LLM) -> None:
    (output,) = llm.generate("Hello", GREEDY)
    assert (output.prompt, output.prompt_token_ids) == ("Hello", [LETTERS.index(c) for c in "Hello"])
    assert output.text == "".join(LETTERS[t] for t in output.token_ids if t < 48)
    assert len(output.token_ids) == 30


def test_stream_equals_generate(llm: LLM) -> None:
    stream = llm.stream("Hello", GREEDY)
    with pytest.raises(EngineError, match="not finished"):
        _ = stream.output
    pieces = list(stream)
    assert "".join(pieces) == whole(llm)
    assert len(pieces) > 20
    assert stream.output.text == whole(llm)
    assert stream.output.finish_reason == "length"


def test_interleaved_streams(llm: LLM) -> None:
    streams = {p: llm.stream(p, GREEDY) for p in ("Hello", "abc")}
    texts = dict.fromkeys(streams, "")
    for _ in range(40):
        for prompt, stream in streams.items():
            texts[prompt] += next(stream, "")
    assert texts == {p: whole(llm, p) for p in streams}


def test_stop_strings(llm: LLM) -> None:
    text = whole(llm)
    stop = text[8:11]
    cut = text[: text.index(stop)]
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True, stop=["zzzz", stop])
    (output,) = llm.generate("Hello", params)
    assert (output.text, output.finish_reason, output.stop_reason) == (cut, "stop", stop)
    assert "".join(llm.stream("Hello", params)) == cut
    kept = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True, stop=stop, include_stop_str_in_output=True)
    assert llm.generate("Hello", kept)[0].text == cut + stop


def test_text_of_a_stop_token_is_left_out(llm: LLM) -> None:
    (output,) = llm.generate("Hello", GREEDY)
    end = next(t for t in output.token_ids[3:] if t < 48)
    at = output.token_ids.index(end)
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True, stop_token_ids=[end])
    (stopped,) = llm.generate("Hello", params)
    assert stopped.token_ids == output.token_ids[: at + 1]
    assert stopped.text == "".join(LETTERS[t] for t in output.token_ids[:at] if t < 48)
    assert stopped.stop_reason == end


def test_closing_a_stream_ends_its_request(llm: LLM) -> None:
    stream = llm.stream("Hello", GREEDY)
    next(stream)
    stream.close()
    assert not llm.engine.has_unfinished
    assert llm.engine.kv.pool.num_used == 0
    assert stream.output.finish_reason == "abort"


def test_a_stopped_stream_gives_out_what_is_there_and_ends(llm: LLM) -> None:
    stream = llm.stream("Hello", GREEDY)
    text = next(stream)
    stream.stop()
    assert llm.engine.has_unfinished
    text += "".join(stream)
    assert not llm.engine.has_unfinished
    output = stream.output
    assert (output.finish_reason, output.text) == ("abort", text)
    assert whole(llm).startswith(text)
    assert len(output.token_ids) < 5


def test_text_that_was_held_back_is_given_out_when_a_stream_is_stopped(llm: LLM) -> None:
    text = whole(llm)
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True, stop=text[1:5] + "?")
    stream = llm.stream("Hello", params)
    first = next(stream)
    llm.generate(
        "abc", SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
    )  # whose steps are the stream's too
    stream.stop()
    rest = "".join(stream)
    output = stream.output
    assert output.text == first + rest == "".join(LETTERS[t] for t in output.token_ids if t < 48)
    assert rest
    assert text.startswith(first + rest)


def test_chat(llm: LLM) -> None:
    message = [{"role": "user", "content": "Hello"}]
    assert llm.chat_prompt(message) == "<s>HelloQ"
    (output,) = llm.chat(message, GREEDY)
    assert output.prompt_token_ids == [48, *(LETTERS.index(c) for c in "HelloQ")]
    both = llm.chat([message, [{"role": "user", "content": "abc"}]], GREEDY)
    assert both[0].token_ids == output.token_ids
    assert len(both) == 2
    prefill = [*message, {"role": "assistant", "content": "abc"}]
    assert llm.chat_prompt(prefill, continue_final_message=True) == "<s>Helloabc"
    with pytest.raises(RequestError, match="must not be empty"):
        llm.chat([])


def test_progress(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    outputs = llm.generate(["Hello", "abc"], GREEDY, progress=True)
    assert outputs[0].text == whole(llm)
    assert "Generating" in capsys.readouterr().out


HALF = "a\udcffb"


def test_half_a_surrogate_pair_is_no_text(llm: LLM) -> None:
    """As Python makes of bytes that are not UTF-8; the error names the field, and nothing is left running."""
    message = [{"role": "user", "content": HALF}]
    calls = {
        "prompt": [lambda: llm.generate(HALF), lambda: llm.generate(["a", HALF]), lambda: llm.tokenize(HALF)],
        "messages": [lambda: llm.chat(message), lambda: llm.chat_prompt(message)],
        "tools": [lambda: llm.chat([{"role": "user", "content": "a"}], tools=[{HALF: 1}])],
        "cache_salt": [lambda: llm.generate("a", cache_salt=HALF), lambda: llm.stream("a", cache_salt=HALF)],
        "bad_words": [lambda: SamplingParams(bad_words=["a", HALF])],
        "stop": [lambda: SamplingParams(stop=HALF), lambda: SamplingParams(stop=["a", HALF])],
    }
    calls["prompt"].append(lambda: llm.stream(HALF))
    for field, doors in calls.items():
        for door in doors:
            with pytest.raises(RequestError, match="half of a surrogate pair") as e:
                door()
            assert e.value.field == field
    for form in ("json", "regex", "grammar"):
        with pytest.raises(RequestError):
            SamplingParams(structured={form: HALF})
    with pytest.raises(RequestError):
        SamplingParams(structured={"choice": ["a", HALF]})
    with pytest.raises(RequestError):
        SamplingParams(structured={"json": {"const": HALF}})
    assert llm.stats().running == 0


def test_messages_give_no_control_tokens(llm: LLM) -> None:
    message = [{"role": "user", "content": "He<s>llo"}]
    ids = llm.chat_token_ids(message)
    assert ids.count(48) == 1
    assert llm.chat(message, GREEDY)[0].prompt_token_ids == ids
    assert llm.tokenize(llm.chat_prompt(message)).count(48) == 2


def test_tools_that_the_template_ignores_are_logged(llm: LLM, caplog: pytest.LogCaptureFixture) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    llm.chat([{"role": "user", "content": "a"}], SamplingParams(max_tokens=1), tools=tools)
    assert "does not tell the model of the tools" in caplog.text
