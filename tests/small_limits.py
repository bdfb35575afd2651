"""Limits for tests: small ones, of which a test names what it is about."""

from inferir.ir.contract.symbols import Limits

SMALL = {"max_model_len": 64, "max_tokens": 2048, "max_seqs": 8, "max_rows": 8, "block_size": 16}


def limits(**given: int) -> Limits:
    """Sequences of 64 tokens in blocks of 16, steps of 2048 tokens, 8 sequences and as many logit rows as those."""
    return Limits(**{**SMALL, "max_rows": given.get("max_seqs", SMALL["max_seqs"]), **given})
