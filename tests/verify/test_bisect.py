"""`inferir verify --bisect`: planted faults are found and named, and each reproducer shows its fault alone."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import families
import msgspec
import numpy as np
import planted_faults
import pytest
from plugin_distributions import Plugged

from inferir.compile.compile_types import CompileOptions, DebugOptions
from inferir.compile.compiler import compile_model
from inferir.ir.contract.artifact import file_records, read_manifest, write_manifest
from inferir.ir.errors import InferirError
from inferir.passes.plugin_passes import PASSES
from inferir.runtime.executor.executors import check_target
from inferir.runtime.loader import load_artifact
from inferir.verify.bisect_artifact import artifact_layers, bisect_artifact
from inferir.verify.bisect_runtime import runtime_finding
from inferir.verify.findings import Bisection, Finding
from inferir.verify.reproducer import ReproducerFolder

SMALL: dict[str, Any] = {
    "max_num_batched_tokens": 8,
    "max_num_seqs": 2,
    "max_model_len": 64,
    "buckets": "1-8",
    "block_size": 16,
    "jobs": 1,
}
WINDOW = 12


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A layer with biases, rotary position encoding and a window."""
    config = families.qwen2(num_hidden_layers=1, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=0)
    return families.write(config, tmp_path_factory.mktemp("model") / "qwen2")


@pytest.fixture(scope="module")
def good(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model compiled in float32; its stages are beside it, in `stages`."""
    root = tmp_path_factory.mktemp("good")
    compile_model(str(model), root / "art", CompileOptions(**SMALL), debug=DebugOptions(dump_dir=root / "stages"))
    return root / "art"


def search(artifact: Path, model: Path, place: Path) -> Bisection:
    return bisect_artifact(artifact, str(model), place=place / "found", threads=1)


def only(bisection: Bisection) -> Finding:
    assert [f.title for f in bisection.findings][1:] == [], bisection
    return bisection.findings[0]


def run(finding: Finding, fault: str = "", *options: str) -> subprocess.CompletedProcess[str]:
    """Run a reproducer by itself, in an installation that has the fault of a pass, or none."""
    assert finding.reproducer is not None
    script = Path(finding.reproducer) / "reproduce.py"
    command = [str(script), *options]
    if fault:
        start = f"import planted_faults, runpy; planted_faults.plant({fault!r}); "
        command = ["-c", f"{start}runpy.run_path({str(script)!r}, run_name='__main__')"]
    paths = [str(Path(planted_faults.__file__).parent), *sys.path]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, env=environment, check=False)


def shows(finding: Finding, fault: str = "") -> bool:
    done = run(finding, fault)
    assert done.stderr == "", done.stderr
    assert done.stdout.splitlines()[-1] == ("FAULT" if done.returncode else "fixed")
    return done.returncode == 1


def test_nothing_diverges_in_a_good_artifact(good: Path, model: Path, tmp_path: Path) -> None:
    found = search(good, model, tmp_path)
    assert found.passed, found.findings
    assert [line.stage for line in found.looked] == ["passes, f32", "recorded graph", "weights", "kernels", "runtime"]
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_eps_is_the_pass_that_made_the_norm(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted_faults.plant("wrong eps", monkeypatch.setattr)
    compile_model(str(model), tmp_path / "art", CompileOptions(**SMALL))
    found = search(tmp_path / "art", model, tmp_path)
    finding = only(found)
    assert (finding.kind, finding.name) == ("pass", "recognise-rms-norm")
    assert "tensor.rsqrt" in finding.before
    assert "nn.rms_norm" in finding.after
    assert "eps=0.001" in finding.after
    assert "input_layernorm" in finding.where
    assert finding.worst is not None
    assert shows(finding, "wrong eps")
    assert not shows(finding)


@pytest.mark.parametrize(
    ("fault", "name", "text"),
    [
        ("dropped bias", "merge-qkv", "tensor.linear"),
        ("swapped rotary half", "recognise-rotary", "nn.rotary"),
        ("off-by-one window", "insert-kv", f"sliding_window({WINDOW + 1})"),
    ],
)
def test_a_pass_that_goes_wrong_today_is_named(
    fault: str, name: str, text: str, good: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted_faults.plant(fault, monkeypatch.setattr)
    found = search(good, model, tmp_path)
    finding = only(found)
    assert (finding.kind, finding.name) == ("pass", name)
    assert text in finding.after
    assert any("another kernel graph today" in note for note in found.notes)
    assert shows(finding, fault)
    assert not shows(finding)


def edited(stages: Path, place: Path, **edits: tuple[str, str]) -> Path:
    """A folder of stages with the first occurrence of a text replaced, by kernel."""
    for name, (old, new) in edits.items():
        (file,) = (stages / "t1-8").glob(f"{name}.py")
        text = file.read_text()
        assert old in text
        (place / "t1-8").mkdir(parents=True, exist_ok=True)
        (place / "t1-8" / file.name).write_text(text.replace(old, new, 1))
    return place


def test_kernels_that_were_overridden_are_named(good: Path, model: Path, tmp_path: Path) -> None:
    override = edited(
        good.parent / "stages",
        tmp_path / "override",
        k3_attention=("height, group, position, base", "height, group, position + 1, base"),
        k6_rms_norm=("for j in range(4)", "for j in range(3)"),
    )
    compile_model(str(model), tmp_path / "art", CompileOptions(**SMALL, override=override))
    found = search(tmp_path / "art", model, tmp_path)
    tail, reduction = found.findings
    assert (tail.kind, tail.name) == ("kernel", "k3_attention and k3_attention_merge")
    assert (reduction.kind, reduction.name) == ("kernel", "k6_rms_norm")
    assert "attn.paged" in tail.before
    assert "k3_attention.py of bucket t1-8 was replaced by --override" in tail.notes
    assert [f.name for f in reduction.inputs][1] == "model.layers.0.post_attention_layernorm.weight"
    for finding in (tail, reduction):
        assert shows(finding)
    rebuilt = run(reduction, "", "--rebuild")
    assert (rebuilt.returncode, rebuilt.stderr) == (0, "")


def with_changed_weight(artifact: Path, place: Path, name: str, change: Callable[[np.ndarray], None]) -> Path:
    """A copy of an f32 artifact with a stored weight changed, and checksums that fit."""
    copy = shutil.copytree(artifact, place)
    manifest = read_manifest(copy)
    record = manifest.weights[name]
    with open(copy / record.file, "r+b") as file:
        file.seek(record.offset)
        values = np.frombuffer(file.read(record.nbytes), np.float32).reshape(record.shape).copy()
        change(values)
        file.seek(record.offset)
        file.write(values.tobytes())
    write_manifest(copy, msgspec.structs.replace(manifest, files=file_records(copy)))
    return copy


def test_a_mis_packed_block_is_the_weight(good: Path, model: Path, tmp_path: Path) -> None:
    name = "model.layers.0.mlp.down_proj.weight.panels"

    def swap(values: np.ndarray) -> None:
        values[0, [4, 5]] = values[0, [5, 4]]

    art = with_changed_weight(good, tmp_path / "art", name, swap)
    finding = only(search(art, model, tmp_path))
    assert (finding.kind, finding.name) == ("weight", name)
    assert finding.worst is not None
    assert finding.worst.index[:2] == (0, 4)
    assert "layout.panels" in finding.before or "pack" in finding.before
    assert shows(finding)


def test_a_stale_slot_is_the_step_input(
    good: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted_faults.plant("stale KV slot", monkeypatch.setattr)
    finding = only(search(good, model, tmp_path))
    assert (finding.kind, finding.name) == ("runtime", "slots")
    assert finding.worst is not None
    assert int(finding.worst.found) % SMALL["block_size"] == 0
    assert shows(finding, "stale KV slot")
    assert not shows(finding)


def test_a_block_that_is_given_back_too_early_is_the_managers(
    good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted_faults.plant("block given back too early", monkeypatch.setattr)
    pool = [[(i * 7 + j * 3) % 250 for j in range(60)] for i in range(4)]
    loaded = load_artifact(good, check_target)
    finding, _ = runtime_finding(loaded, pool, 1, ReproducerFolder(tmp_path / "found", good), lambda done, total: None)
    assert finding is not None
    assert finding.name == "KV blocks"
    assert " reads position " in finding.measured


PLUGIN = """
from inferir.ir.graph.graph import Builder
from inferir.ir.graph.rewrite import transform
from inferir.passes.context import Pass
from inferir.passes.plugin_passes import AddedPass


class SwapGate(Pass):
    name = "swap-gate"
    why = "a test"

    def run(self, graph):
        def visit(node, operands):
            if node.op != "nn.gated_act":
                return None
            return Builder(node.loc).op(node.op, *reversed(operands), **node.attrs)

        return transform(graph, visit)


ADDED = AddedPass("recognise", 1, lambda options, context: SwapGate())
"""


def test_a_plug_ins_pass_is_named(plugged: Plugged, good: Path, model: Path, tmp_path: Path) -> None:
    plugged([PASSES], "acme", PLUGIN, passes={"swap-gate": "ADDED"})
    finding = only(search(good, model, tmp_path))
    assert (finding.kind, finding.name) == ("pass", "swap-gate")
    assert shows(finding)


def test_nothing_diverges_in_a_good_bf16_artifact(tiny_artifact_bf16: Path, tiny_model: Path, tmp_path: Path) -> None:
    found = search(tiny_artifact_bf16, tiny_model, tmp_path)
    assert found.passed, found.findings
    assert artifact_layers(tiny_artifact_bf16, str(tiny_model), threads=1).passed


class Flip:
    """An activation with a comparison."""

    def __new__(cls) -> Any:
        import torch

        class Module(torch.nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return torch.where(x <= 0.1, x, -x)

        return Module()


def test_kernels_that_the_generator_gets_wrong_in_bf16(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    import transformers

    monkeypatch.setitem(transformers.activations.ACT2FN, "flip", Flip)
    monkeypatch.setenv("INFERIR_CACHE", str(tmp_path / "cache"))
    config = families.gpt_neox(num_hidden_layers=1, hidden_act="flip")
    model = families.write(config, tmp_path / "model")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(model)
    with torch.no_grad():  # two of the activations are 0.1, as near as bfloat16 is
        loaded.gpt_neox.layers[0].mlp.dense_h_to_4h.weight[5:7] = 0
        loaded.gpt_neox.layers[0].mlp.dense_h_to_4h.bias[5:7] = 0.1
    loaded.save_pretrained(model)
    for fault in ("wrong scale", "mis-rounded comparison"):
        planted_faults.plant(fault, monkeypatch.setattr)
    compile_model(str(model), tmp_path / "art", CompileOptions(**SMALL, dtype="bf16", opt_level=1))
    comparison, scale = search(tmp_path / "art", model, tmp_path).findings
    assert (scale.kind, scale.name) == ("kernel", "k4_attention and k4_attention_merge")
    assert (comparison.kind, comparison.name) == ("kernel", "k1_linear_add_le_neg_where")
    assert comparison.worst is not None
    assert comparison.worst.found == -comparison.worst.expected
    assert comparison.worst.index[-1] in (5, 6)
    assert shows(scale)
    assert shows(comparison)


def test_a_fault_of_the_capture_is_a_module(
    good: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from inferir.ir.graph.graph import Builder, Node, Value
    from inferir.ir.graph.rewrite import transform
    from inferir.verify import bisect_artifact as searched

    own = searched._capture

    def capture(source: Any) -> Any:
        def scaled(node: Node, operands: tuple[Value, ...]) -> Value | None:
            if node.op != "tensor.linear" or not node.loc.module.endswith("o_proj"):
                return None
            b = Builder(node.loc)
            return b.op("tensor.mul", b.op(node.op, *operands, **node.attrs), b.scalar(1.01))

        captured = own(source)
        return dataclasses.replace(captured, graph=transform(captured.graph, scaled))

    monkeypatch.setattr(searched, "_capture", capture)
    finding = only(search(good, model, tmp_path))
    assert (finding.kind, finding.name) == ("capture", "model.layers.0.self_attn.o_proj")
    assert "tensor.linear" in finding.before
    assert shows(finding)


def test_layers_name_the_first_module_out_of_bound(good: Path, model: Path, tmp_path: Path) -> None:
    layers = artifact_layers(good, str(model), threads=1)
    assert layers.passed, layers.first
    assert {row.step for row in layers.rows} == {"prompt", "decode"}
    measured = {row.module for row in layers.rows if row.artifact is not None}
    assert measured >= {"model.layers.0", "model.layers.0.post_attention_layernorm", "model.norm", "lm_head"}
    assert all(row.captured is not None and row.captured.share < 1e-6 for row in layers.rows)
    assert {op.kernel for op in layers.ops} >= {"attention", "linear_gated_act"}

    def change(values: np.ndarray) -> None:
        values *= 1.01

    name = "model.layers.0.post_attention_layernorm.weight"
    layers = artifact_layers(with_changed_weight(good, tmp_path / "art", name, change), str(model), threads=1)
    assert layers.first is not None
    assert (layers.first.module, layers.first.step) == (name.removesuffix(".weight"), "prompt")
    assert layers.as_json()["first"] == layers.first.module


def test_the_command_reports_a_finding(
    cli: Callable[..., Any], fails: Callable[..., str], good: Path, model: Path, tmp_path: Path
) -> None:
    name = "model.norm.weight"

    def change(values: np.ndarray) -> None:
        values[3] += 1

    art = with_changed_weight(good, tmp_path / "art", name, change)
    place = tmp_path / "place"
    result = cli(
        "verify",
        art,
        "--model",
        model,
        "--quick",
        "--bisect",
        "--bisect-dir",
        place,
        "--json",
        "--layers",
        "--html",
        tmp_path / "page.html",
    )
    report = json.loads(result.out)
    assert result.status == 1
    assert [(f["kind"], f["name"]) for f in report["bisection"]["findings"]] == [("weight", name)]
    assert report["layers"]["first"] == "model.norm"
    page = (tmp_path / "page.html").read_text()
    assert all(text in page for text in ("The first out of bound is model.norm", "weight model.norm.weight"))
    assert [p.name for p in place.iterdir()] == ["1-weight-model.norm.weight"]
    assert "not an empty folder" in fails("verify", art, "--model", model, "--bisect", "--bisect-dir", place)
    assert "give both" in fails("verify", art, "--model", model, "--bisect-dir", tmp_path / "other")
    with pytest.raises(InferirError, match="not an empty folder"):
        bisect_artifact(art, str(model), place=place)
