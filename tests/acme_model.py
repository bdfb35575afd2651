"""A tiny model with code of its own that calls an operator of `plugins/acme/`."""

from __future__ import annotations

import json
from pathlib import Path

from artifacts import write_model

MODELING = """
import acme.torch_ops
import torch
from transformers import LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaMLP


class ClippedMLP(LlamaMLP):
    def forward(self, x):
        return self.down_proj(torch.ops.acme.soft_clip(self.gate_proj(x), 2.0) * self.up_proj(x))


class ClippedForCausalLM(LlamaForCausalLM):
    def __init__(self, config):
        super().__init__(config)
        for layer in self.model.layers:
            layer.mlp = ClippedMLP(config)
        self.post_init()
"""


def write_clipped_model(folder: Path) -> Path:
    write_model(folder, num_hidden_layers=1)
    (folder / "modeling_clipped.py").write_text(MODELING)
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "auto_map": {"AutoModelForCausalLM": "modeling_clipped.ClippedForCausalLM"},
        "architectures": ["ClippedForCausalLM"],
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder
