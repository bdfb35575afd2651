"""Import rules of the marker ops: attention and masks."""

from __future__ import annotations

from typing import Any

from inferir.frontend.capture.hooks import MaskSpec, resolve_reads
from inferir.frontend.capture.importer import Importer, Imports, rule
from inferir.frontend.facts import LayerFacts
from inferir.ir.contract.kv_reads import FULL_ATTENTION
from inferir.ir.contract.kv_specs import parse_reads
from inferir.ir.graph.graph import Value


@rule("inferir.mask.default")
def _mask(imp: Importer, like: Imports, queries: Any, keys: Any, reads: str, causal: bool) -> Imports:
    return MaskSpec(causal, parse_reads(reads) or FULL_ATTENTION)


@rule("inferir.attention.default")
def _attention(
    imp: Importer,
    q: Imports,
    k: Imports,
    v: Imports,
    mask: Imports,
    scale: float,
    window: int,
    softcap: float,
    causal: bool,
) -> Imports:
    """q [1, H, T, D], k [1, Hk, T, D], v [1, Hk, T, Dv] -> [1, T, H, Dv]."""
    if mask is not None and not isinstance(mask, MaskSpec):
        raise imp.refuse("the attention mask is computed by the model itself, which is not supported")
    reads = resolve_reads(mask, window, causal, f"module {imp.loc.module!r}")

    def rows(x: Imports) -> Value:
        value = imp.value(x, imp.val.dtype)
        _, heads, tokens, size = value.type.shape
        return imp.op("tensor.permute", imp.view(value, (heads, tokens, size)), perm=(1, 0, 2))

    query, key, value = rows(q), rows(k), rows(v)
    if query.type.shape[0] != key.type.shape[0]:
        raise imp.refuse("queries and keys have different token counts (cross attention?)")
    layer = len(imp.attention)
    heads, head_dim = (int(d) for d in query.type.shape[1:])
    kv_heads, value_dim = (int(d) for d in value.type.shape[1:])
    imp.attention.append(
        LayerFacts(
            module=imp.loc.module,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            value_dim=value_dim,
            reads=str(reads),
            softcap=softcap,
        )
    )
    out = imp.op(
        "attn.attention", query, key, value, scale=scale, reads=reads, softcap=softcap, causal=True, layer=layer
    )
    return imp.view(out, (1, *out.type.shape))
