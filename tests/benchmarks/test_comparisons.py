"""What the comparisons with other engines share: the peers file, the protocol, pausing processes, the tables."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from benchmarks import offline, peers, processes, report, serving
from benchmarks.engines import protocol

FAMILY = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(child.pid, flush=True)
time.sleep(60)
"""


def state(pid: int) -> str:
    """The letter that the kernel has for a process; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return ""


def reaches(pid: int, wanted: str) -> bool:
    end = time.monotonic() + 10
    while state(pid) not in wanted.split("|") and time.monotonic() < end:
        time.sleep(0.01)
    return state(pid) in wanted.split("|")


def test_a_tree_is_paused_resumed_and_ended() -> None:
    parent = subprocess.Popen([sys.executable, "-c", FAMILY], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    try:
        assert processes.tree(parent.pid) == [parent.pid, child]
        processes.pause(parent.pid)
        assert reaches(parent.pid, "T")
        assert reaches(child, "T")
        processes.resume(parent.pid)
        assert reaches(parent.pid, "S|R")
        assert reaches(child, "S|R")
        processes.pause(parent.pid)
    finally:
        processes.end(parent)
        parent.stdout.close()
    assert parent.returncode != 0
    assert reaches(child, "|Z")  # gone, or dead until someone adopts it


def test_peers_file(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "python").symlink_to(sys.executable)
    file = tmp_path / "peers.toml"
    file.write_text('[hf]\nmodel = "m"\n[fast]\nengine = "vllm"\npython = "python"\nmodel = "m"\n')
    hf, fast = peers.read(file)
    assert (hf.name, hf.kind, hf.model, hf.python) == ("hf", "hf", str(tmp_path / "m"), sys.executable)
    assert (fast.name, fast.kind, fast.python) == ("fast", "vllm", str(tmp_path / "python"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[hf]", "lacks model"),
        ("[other]\nmodel = '.'", "'other' is no engine"),
        ("[llama_cpp]\nmodel = '.'", "lacks bin"),
        ("[hf]\nmodel = '.'\nmodle = '.'", "unknown modle"),
        ("[hf]\nmodel = 'absent'", "model does not exist"),
        ("hf = 1", "is not a table"),
        ("[hf", "peers.toml"),
    ],
)
def test_mistakes_in_a_peers_file_are_named(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "peers.toml"
    file.write_text(text)
    with pytest.raises(SystemExit, match=said):
        peers.read(file)


def test_decode_time_leaves_out_prefill_and_first_token(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, calls = [0.0], []

    def run(prompts: list[list[int]], tokens: int) -> None:
        calls.append((prompts, tokens))
        clock[0] += 5 + tokens * len(prompts)

    measure = protocol.timed(run)
    monkeypatch.setattr(protocol.time, "perf_counter", lambda: clock[0])
    work: dict[str, Any] = {"kind": "decode", "sequences": 2, "prompt": [7, 8], "tokens": 9}
    assert measure(work) == {"seconds": 16, "tokens": 16}
    assert calls[-1] == ([[7, 8], [7, 9]], 9)
    assert measure({"kind": "prefill", "prompt": [7, 8, 9]}) == {"seconds": 6, "tokens": 3}


def test_a_decode_time_below_zero_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, pauses = [0.0], [0.0, 9.0, 1.0, 2.0, 5.0]

    def run(prompts: list[list[int]], tokens: int) -> None:
        clock[0] += pauses.pop(0) if pauses else 1.0

    measure = protocol.timed(run)
    monkeypatch.setattr(protocol.time, "perf_counter", lambda: clock[0])
    work: dict[str, Any] = {"kind": "decode", "sequences": 1, "prompt": [7], "tokens": 4}
    assert measure(work) == {"seconds": 3, "tokens": 3}
    with pytest.raises(SystemExit, match="too busy"):
        measure(work)


def test_workloads_fit_in_what_engines_are_told() -> None:
    work = offline.workloads([1, 70], [100, 4096], 8)
    assert list(work) == ["decode 1", "decode 70", "prefill 100", "prefill 4096"]
    assert [len(work[n]["prompt"]) for n in work] == [16, 16, 100, 4096]
    options = offline.engine_options([1, 70], [100, 4096], 8, "float32")
    assert options["max_tokens"] >= 4097
    assert options["max_sequences"] == 70


def test_comparison_gives_medians_and_ratios() -> None:
    samples = {"a": {"x": [1.0, 30.0, 20.0], "y": [10.0]}, "b": {"x": [3.0], "y": []}}
    lines = report.comparison("t", samples, ["x", "y"])
    assert lines == [["t", "x", "y", "x / y"], ["a", "20", "10", "2.00"], ["b", "3", "-", "-"]]
    assert report.aligned(lines).splitlines()[1] == "a  20  10  2.00"


class Recorder:
    """A load generator that keeps what it was asked."""

    version = "recorder"

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(question)
        return {"throughput": 1.0, "ttft": None, "tpot": 2.0, "failed": 1}


class Still:
    """A server that only counts how often it was resumed and paused."""

    def __init__(self, name: str) -> None:
        self.name = self.url = name
        self.turns: list[str] = []

    def resume(self) -> None:
        self.turns.append("resume")

    def pause(self) -> None:
        self.turns.append("pause")


def test_every_server_gets_the_same_prompts_and_no_round_repeats_them() -> None:
    servers: Any = [Still("x"), Still("y")]
    generator = Recorder()
    work = {"one": serving.Load(concurrency=1, prompts=2), "two": serving.Load(concurrency=4, prompts=5)}
    results, failed = serving.run(servers, work, generator, rounds=3)
    seeds = {n: [q["seed"] for q in generator.asked if q["url"] == n][1:] for n in "xy"}
    assert seeds["x"] == seeds["y"]
    assert len(set(seeds["x"])) == 6
    assert results["throughput"]["two"] == {"x": [1.0] * 3, "y": [1.0] * 3}
    assert results["ttft"]["one"] == {"x": [], "y": []}
    assert failed["one"] == {"x": 3, "y": 3}
    assert servers[0].turns == ["resume", "pause"] * 7
