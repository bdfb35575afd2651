"""A model that writes given texts: each token is followed by one other, whatever came before.

Attention adds hardly anything and the MLPs nothing, so the last token alone decides; the head's row for the token that
follows `t` is the embedding of `t`.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path

from artifacts import SPECIAL, VOCAB, write_model

TEMPLATE = (
    "{% for t in tools or [] %}{{ t.function.name }} {% endfor %}{# <tool_call> #}"
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}</s>{% endfor %}<|assistant|>{{ start }}"
)


def write_chain_model(folder: Path, chains: Sequence[Sequence[str]], special: Sequence[str]) -> Path:
    """A tiny Llama in which the tokens of each chain follow each other.

    What is no token yet is added, the ones in `special` as special tokens. A token can be followed by one other only.
    The variable `start` of the chat template ends the prompt.
    """
    import tokenizers
    import torch
    import transformers

    new = list(dict.fromkeys(token for chain in chains for token in chain if token not in SPECIAL))
    write_model(folder, vocab_size=VOCAB + len(new))
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    for token in new:
        tokenizer.add_tokens([tokenizers.AddedToken(token, special=token in special, normalized=False)])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": TEMPLATE}))

    model = transformers.LlamaForCausalLM.from_pretrained(folder)
    torch.manual_seed(0)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.mul_(1e-3)
            layer.mlp.down_proj.weight.zero_()
        embeddings = torch.sign(torch.randn_like(model.model.embed_tokens.weight))
        model.model.embed_tokens.weight.copy_(embeddings)
        model.lm_head.weight.zero_()
        for chain in chains:
            for token, after in itertools.pairwise(chain):
                model.lm_head.weight[tokenizer.token_to_id(after)] += embeddings[tokenizer.token_to_id(token)]
    model.save_pretrained(folder)
    return folder
