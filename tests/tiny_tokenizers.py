"""Tokenizers small enough to be written by a test, in the two common styles."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

CALL = "<tool_call>"


def byte_level() -> Tokenizer:
    """One token per byte (0-255), a few merges, then `<s>`, `</s>`, `<pad>` and `<tool_call>`."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("l", "l"), ("w", "o"), ("wo", "r"), ("Ġ", "x")]
    vocab = {token: i for i, token in enumerate([*alphabet, *(a + b for a, b in merges)])}
    out = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    out.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    out.decoder = decoders.ByteLevel()
    out.add_special_tokens(["<s>", "</s>", "<pad>"])
    out.add_tokens([AddedToken(CALL, special=False, normalized=False)])
    return out


def pieces() -> Tokenizer:
    """As of SentencePiece: metaspace, byte fallback, `<unk>`, `<s>`, `</s>` first, BOS added."""
    bytes_ = [f"<0x{i:02X}>" for i in range(256)]
    letters = ["▁", *map(chr, range(33, 127))]
    merges = [("▁", "w"), ("▁w", "o"), ("l", "l"), ("▁", "▁")]
    tokens = ["<unk>", "<s>", "</s>", *bytes_, *letters, *(a + b for a, b in merges)]
    vocab = {token: i for i, token in enumerate(tokens)}
    out = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    out.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    out.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    out.add_special_tokens(["<unk>", "<s>", "</s>"])
    out.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    return out
