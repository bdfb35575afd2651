"""`inferir run` and `inferir chat`: streaming, prompts, templates, statistics, Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from inferir.api.llm import LLM, SamplingParams
from inferir.cli.chat_command import Conversation
from inferir.cli.streaming import Answer, answer
from inferir.ir.contract.artifact import file_records, read_manifest, write_manifest

INFERIR = [sys.executable, "-c", "from inferir.cli.main import main; main()"]
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def llm(tiny_artifact: Path) -> Iterator[LLM]:
    with LLM(tiny_artifact, max_num_seqs=1, threads=1) as llm:
        yield llm


def raw(llm: LLM, prompt: str, tokens: int = 12) -> str:
    return llm.generate(prompt, SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True))[0].text


def chatted(llm: LLM, *said: tuple[str, str], tokens: int = 12) -> str:
    messages = [{"role": role, "content": text} for role, text in said]
    return llm.chat(messages, SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True))[0].text


def test_the_answer_is_the_engines(cli: Callable[..., Any], llm: LLM, tiny_artifact: Path) -> None:
    result = cli("run", tiny_artifact, "hello", "--raw", "--max-tokens", 12, "--ignore-eos")
    assert result.status == 0
    assert result.out == raw(llm, "hello") + "\n"
    number = r"[\d.,]+"
    assert re.fullmatch(
        rf"5 prompt tokens, 12 tokens in {number} m?s, first after {number} m?s, then {number} tokens/s, "
        r"ended by the token limit\n",
        result.err,
    )


def test_the_chat_template_is_the_default(cli: Callable[..., Any], llm: LLM, tiny_artifact: Path) -> None:
    flags = ("--max-tokens", 12, "--ignore-eos", "--quiet")
    expected = chatted(llm, ("user", "hello")) + "\n"
    assert expected != raw(llm, "hello") + "\n"
    result = cli("run", tiny_artifact, "hello", *flags)
    assert (result.out, result.err) == (expected, "")
    assert cli("run", tiny_artifact, "hello", "--chat", *flags).out == expected
    with_system = cli("run", tiny_artifact, "hello", "--system", "be brief", *flags).out
    assert with_system == chatted(llm, ("system", "be brief"), ("user", "hello")) + "\n"


def test_a_system_message_needs_the_template(cli: Callable[..., Any], tiny_artifact: Path) -> None:
    result = cli("run", tiny_artifact, "hello", "--raw", "--system", "be brief")
    assert (result.status, "--system" in result.err) == (2, True)


@pytest.mark.parametrize("arguments", [(), ("-",)])
def test_a_prompt_from_standard_input(
    cli: Callable[..., Any], llm: LLM, tiny_artifact: Path, arguments: tuple[str, ...]
) -> None:
    result = cli("run", tiny_artifact, *arguments, "--raw", "--max-tokens", 12, "--ignore-eos", stdin="two\nlines")
    assert result.out == raw(llm, "two\nlines") + "\n"


def test_draws_are_repeatable_with_a_seed(cli: Callable[..., Any], tiny_artifact: Path) -> None:
    def draw(seed: int) -> str:
        flags = ("--raw", "--max-tokens", 12, "--ignore-eos", "--temperature", 5, "--seed", seed)
        return cli("run", tiny_artifact, "hello", *flags).out

    assert draw(1) == draw(1) != draw(2)


def test_a_stop_text_ends_the_answer(cli: Callable[..., Any], llm: LLM, tiny_artifact: Path) -> None:
    whole = raw(llm, "hello", 20)
    stop = next(c for c in whole[3:] if c not in whole[:3] and c.isprintable() and c != "\ufffd")
    result = cli("run", tiny_artifact, "hello", "--raw", "--max-tokens", 20, "--ignore-eos", "--stop", stop)
    assert result.out == whole[: whole.index(stop)] + "\n"
    assert "ended by" not in result.err


def test_sampling_options(cli: Callable[..., Any], llm: LLM, tiny_artifact: Path) -> None:
    """Every option reaches the sampler: the answer is that of the parameters that it means."""
    common = {"temperature": 2.0, "seed": 5, "max_tokens": 12, "ignore_eos": True}
    options: list[tuple[tuple[object, ...], dict[str, Any]]] = [
        (("--top-k", 3), {"top_k": 3}),
        (("--top-p", 0.2), {"top_p": 0.2}),
        (("--min-p", 0.4), {"min_p": 0.4}),
        (("--repetition-penalty", 9), {"repetition_penalty": 9.0}),
        (("--presence-penalty", 2, "--frequency-penalty", 2), {"presence_penalty": 2.0, "frequency_penalty": 2.0}),
        (("--logit-bias", "65=9", "--logit-bias", "66=8.5"), {"logit_bias": {65: 9.0, 66: 8.5}}),
        (("--bad-word", "e", "--bad-word", "a"), {"bad_words": ["e", "a"]}),
        (("--stop-token-id", 65, "--min-tokens", 3), {"stop_token_ids": [65], "min_tokens": 3}),
    ]
    flags = ("--raw", "--temperature", 2, "--seed", 5, "--max-tokens", 12, "--ignore-eos")
    for given, meant in options:
        expected = llm.generate("hello", SamplingParams(**{**common, **meant}))[0].text
        assert cli("run", tiny_artifact, "hello", *flags, *given).out == expected + (
            "" if expected[-1:] == "\n" else "\n"
        )


def test_structured_options(
    cli: Callable[..., Any], fails: Callable[..., str], tiny_artifact: Path, tmp_path: Path
) -> None:
    run = ("run", tiny_artifact, "hello", "--raw", "--quiet", "--max-tokens", 60)
    assert cli(*run, "--choice", "yes", "--choice", "no").out in ("yes\n", "no\n")
    assert re.fullmatch("[ab]{4}\n", cli(*run, "--regex", "[ab]{4}").out)
    schema = tmp_path / "s.json"
    schema.write_text('{"const": "x"}')
    assert cli(*run, "--json-schema", schema).out == '"x"\n'
    grammar = tmp_path / "g"
    grammar.write_text('root ::= "only this"')
    assert cli(*run, "--grammar", grammar).out == "only this\n"
    assert cli(*run, "--json-object").out.startswith("{")
    assert "structured.regex: " in fails(*run, "--regex", "(")
    grammar.write_bytes(b"\xff")
    assert "is not text" in fails(*run, "--grammar", grammar)
    assert "No such file" in fails(*run, "--json-schema", tmp_path / "none")
    for wrong in (("--regex", "a", "--json-object"), ("--logit-bias", "a"), ("--logit-bias", "1=x")):
        assert cli(*run, *wrong).status == 2
    assert "top_p must be from 0 to 1" in fails(*run, "--top-p", 7)
    assert "generation_config='always' must be one of" in fails(*run, "--generation-config", "always")


def test_recommendations_of_the_model(cli: Callable[..., Any], llm: LLM, tiny_artifact: Path, tmp_path: Path) -> None:
    art = shutil.copytree(tiny_artifact, tmp_path / "art")
    config = {"temperature": 3.0, "top_k": 5, "max_new_tokens": 7, "do_sample": True}
    (art / "tokenizer" / "generation_config.json").write_text(json.dumps(config))
    write_manifest(art, msgspec.structs.replace(read_manifest(art), files=file_records(art)))
    run = ("run", art, "hello", "--raw", "--quiet", "--seed", 3, "--ignore-eos")
    params = SamplingParams(temperature=3.0, top_k=5, seed=3, max_tokens=7, ignore_eos=True)
    assert cli(*run, "--generation-config", "auto").out.rstrip("\n") == llm.generate("hello", params)[0].text.rstrip(
        "\n"
    )
    assert cli(*run, "--max-tokens", 7).out == raw(llm, "hello", 7) + "\n"


def test_bad_requests_are_one_line(fails: Callable[..., str], tiny_artifact: Path) -> None:
    assert "the prompt has 300 tokens" in fails("run", tiny_artifact, "x" * 300, "--raw")
    assert "the prompt is empty" in fails("run", tiny_artifact, "", "--raw")
    assert "kv_cache_memory='much' is not a size" in fails("run", tiny_artifact, "x", "--kv-cache-memory", "much")
    assert "threads is 0" in fails("run", tiny_artifact, "x", "--threads", 0)


def test_pieces_come_one_by_one(llm: LLM) -> None:
    pieces: list[str] = []
    done = answer(llm, llm.tokenize("hello"), GREEDY, pieces.append)
    assert done.text == "".join(pieces) == raw(llm, "hello")
    assert len(pieces) > 4
    assert (done.prompt_tokens, done.tokens, done.finish_reason) == (5, 12, "length")
    assert 0 < done.first_token < done.total


def test_ctrl_c_stops_the_answer_only(llm: LLM) -> None:
    pieces: list[str] = []

    def write(text: str) -> None:
        pieces.append(text)
        if len(pieces) == 3:
            signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    done = answer(llm, llm.tokenize("hello"), SamplingParams(temperature=0.0, max_tokens=100, ignore_eos=True), write)
    assert done.interrupted
    assert 3 <= done.tokens < 20
    assert signal.getsignal(signal.SIGINT) is before
    assert not llm.engine.has_unfinished
    assert raw(llm, "hello").startswith(done.text.rstrip("\ufffd")[:2])


def test_a_failing_reader_frees_the_engine(llm: LLM) -> None:
    def write(text: str) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        answer(llm, llm.tokenize("hello"), GREEDY, write)
    assert not llm.engine.has_unfinished


def test_other_threads_can_answer_too(llm: LLM) -> None:
    found: list[Answer] = []
    worker = threading.Thread(target=lambda: found.append(answer(llm, llm.tokenize("hi"), GREEDY, lambda text: None)))
    worker.start()
    worker.join()
    assert found[0].text == raw(llm, "hi")


def test_rate() -> None:
    assert Answer("", 1, 11, 1.0, 3.0, "stop").rate == 5.0
    assert Answer("", 1, 1, 1.0, 1.0, "stop").rate is None
    assert (
        Answer("", 1, 2, 0.5, 1.0, "stop").stats()
        == "1 prompt token, 2 tokens in 1.00 s, first after 500 ms, then 2.0 tokens/s"
    )


def test_interrupting_run_ends_with_130(tiny_artifact: Path) -> None:
    """The signal comes while the answer is being streamed; what came so far stays."""
    command = [
        *INFERIR,
        "run",
        str(tiny_artifact),
        "hello",
        "--raw",
        "--ignore-eos",
        "--temperature",
        "3",
        "--seed",
        "1",
    ]
    slow = "import time, inferir.cli.streaming as s; w = s.write; s.write = lambda t: (w(t), time.sleep(0.2))\n"
    command[2] = slow + command[2]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.read(1)
    child.send_signal(signal.SIGINT)
    _, errors = child.communicate(timeout=60)
    assert child.returncode == 130
    assert errors.decode().strip().endswith("stopped by Ctrl-C")


def test_run_into_a_closed_pipe_is_quiet(tiny_artifact: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [*INFERIR, "run", str(tiny_artifact), "hello", "--raw", "--max-tokens", "5"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, timeout=60, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_conversation_remembers(llm: LLM) -> None:
    talk = Conversation(lambda said, write: answer(llm, llm.chat_token_ids(said), GREEDY, write), "be brief")
    first = talk.reply("hello", lambda text: None).text
    second = talk.reply("and?", lambda text: None).text
    said = [("system", "be brief"), ("user", "hello"), ("assistant", first), ("user", "and?")]
    assert second == chatted(llm, *said)
    talk.messages.clear()
    assert talk.reply("hello", lambda text: None).text == first


def test_chat_reads_lines_until_exit(cli: Callable[..., Any], llm: LLM, tiny_artifact: Path) -> None:
    lines = "hello\n\n/reset\nhello\n/nonsense\n/exit\nnever\n"
    flags = ("--max-tokens", 8, "--stats")
    result = cli("chat", tiny_artifact, *flags, stdin=lines)
    params = SamplingParams(temperature=0.0, max_tokens=8)
    text = llm.chat([{"role": "user", "content": "hello"}], params)[0].text
    assert result.status == 0
    assert result.out.startswith(f"{text}\n(forgotten)\n{text}\n/nonsense is no command\n/reset")
    assert result.out.count(text) == 2
    assert result.err.count("prompt tokens") == 2


def test_chat_ends_with_its_input_and_survives_a_full_context(cli: Callable[..., Any], tiny_artifact: Path) -> None:
    result = cli("chat", tiny_artifact, "--max-tokens", 4, stdin=f"{'x' * 200}\nhi\n")
    assert result.status == 0
    assert result.err.count("(/reset starts again)") == 1
    assert "leaves no room for an answer" in result.err
    assert len(result.out) > 1


def test_chat_needs_a_template(fails: Callable[..., str], tiny_artifact: Path, without_template: Path) -> None:
    line = fails("chat", without_template)
    assert "no chat template; use: inferir run" in line


def test_run_without_a_template_completes_the_prompt(
    cli: Callable[..., Any], fails: Callable[..., str], llm: LLM, without_template: Path
) -> None:
    assert cli("run", without_template, "hello", "--max-tokens", 12, "--ignore-eos").out == raw(llm, "hello") + "\n"
    assert "the model has no chat template" in fails("run", without_template, "hello", "--chat")
