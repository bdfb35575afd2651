"""Tiny Hugging Face models through the pipeline: chunked steps give eager logits, and patterns are found."""

from typing import Any

import pytest
import torch
import transformers
from small_limits import limits

from inferir.passes.context import PassOptions
from inferir.passes.manager import run_pipeline

COMMON = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
ALTERNATING = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 6}
MODELS = {
    "llama": ("LlamaConfig", COMMON),
    "gemma3": ("Gemma3TextConfig", {**COMMON, **ALTERNATING}),
    "gemma2": ("Gemma2Config", {**COMMON, **ALTERNATING}),
    "gpt_neox": ("GPTNeoXConfig", COMMON),
    "gpt2": ("GPT2Config", {"vocab_size": 96, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}),
}
KERNELS = {
    "llama": {"embedding_rms_norm", "linear", "rotary_kv_write", "attention", "linear_add", "rms_norm"},
    "gemma3": {"embedding_mul_rms_norm", "rms_norm_rotary_kv_write", "rms_norm_add", "linear_gated_act"},
    "gemma2": {"rotary_kv_write", "linear_gated_act", "linear_softcap"},
    "gpt_neox": {"embedding_layer_norm", "rotary_kv_write", "linear_add_gelu", "linear_add"},
    "gpt2": {"embedding_add_layer_norm", "linear_add_mul_tanh", "gather_layer_norm"},
}
SEQUENCES = {"a": [int(7 * i * i + 3) % 96 for i in range(15)], "b": [int(5 * i + 11) % 96 for i in range(9)]}
STEPS = ([("a", 0, 6)], [("b", 0, 5), ("a", 6, 7)], [("a", 7, 14), ("b", 5, 6)], [("a", 14, 15), ("b", 6, 9)])


def captured(kind: str, dtype: torch.dtype) -> tuple[Any, Any, dict[str, torch.Tensor]]:
    """An eager model with random weights, its captured graph, and all tensors the graph may read."""
    from inferir.frontend.capture import hooks
    from inferir.frontend.capture.export import export
    from inferir.frontend.capture.import_program import import_program
    from inferir.frontend.checkpoint import huggingface

    hooks.register()
    name, values = MODELS[kind]
    config = getattr(transformers, name)(**values)
    torch.manual_seed(0)
    eager = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in eager.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    skeleton = huggingface.skeleton(config, dtype)
    program = import_program(export(skeleton), huggingface.tied_names(skeleton))
    return eager, program.graph, {**eager.state_dict(), **program.constants}


HALF = [(kind, torch.bfloat16) for kind in ("llama", "gemma3")]


@pytest.mark.parametrize(("kind", "dtype"), [*((kind, torch.float32) for kind in MODELS), *HALF])
@torch.no_grad()
def test_chunked_steps_give_eager_logits(paged, with_weights, kind: str, dtype: torch.dtype) -> None:
    eager, graph, weights = captured(kind, dtype)
    whole = {name: eager(torch.tensor([tokens])).logits[0].float() for name, tokens in SEQUENCES.items()}
    tolerance = 1e-5 if dtype is torch.float32 else 0.04
    for level in (0, 1, 2, 3):
        sizes = limits(max_model_len=32, max_tokens=16, max_seqs=2, block_size=4)
        options = PassOptions(opt_level=level, limits=sizes)
        result = run_pipeline(graph, None, options)
        steps = paged(result.graph, with_weights(weights, result.transforms), 4)
        for chunks in STEPS:
            out = steps.step([(name, SEQUENCES[name][i:j]) for name, i, j in chunks])
            for row, (name, _, j) in zip(out["logits"], chunks, strict=True):
                want = whole[name][j - 1]
                assert (row - want).norm() < tolerance * want.norm()
        names = {op.region.attrs["name"] for op in result.plan.ops}
        if level in (1, 2):
            assert names >= KERNELS[kind]
            products = [op for op in result.plan.ops if op.region.attrs["anchor"] == "matmul"]
            assert len(products) == 2 * 4 + 1, "qkv, output, gate-up or up, and down per layer, and the logits"
