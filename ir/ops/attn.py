"""attn: attention, as captured (`attn.attention`) and over the paged cache (`attn.paged`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from inferir.ir.contract.kv_reads import FULL_ATTENTION, Reads
from inferir.ir.contract.kv_specs import kpack
from inferir.ir.contract.split_kv import ITEM_WIDTH
from inferir.ir.graph.attrs import Attrs
from inferir.ir.graph.registry import define
from inferir.ir.graph.types import TensorType
from inferir.ir.ops.common import need

if TYPE_CHECKING:
    import torch


def _attention_type(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    q, k, v = types
    need(q.rank == k.rank == v.rank == 3, f"attention of {q}, {k}, {v}")
    need(q.shape[2] == k.shape[2], f"head sizes {q.shape[2]} and {k.shape[2]} differ")
    need(k.shape[:2] == v.shape[:2] and q.shape[0] == k.shape[0], f"attention of {q}, {k}, {v}")
    need(q.shape[1] % k.shape[1] == 0, f"{q.shape[1]} query heads are not a multiple of {k.shape[1]} key-value heads")
    need(bool(attrs["causal"]), "only causal attention is supported")
    return TensorType((q.shape[0], q.shape[1], v.shape[2]), q.dtype)


def _softmax_rows(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, start: int, first: int, attrs: Attrs
) -> torch.Tensor:
    """q [n, H, D] at positions from `start` on against k, v [m, Hk, D] at positions from `first`; float32 inside."""
    import torch

    group = q.shape[1] // k.shape[1]
    k = k.repeat_interleave(group, 1).float()
    v = v.repeat_interleave(group, 1).float()
    scores = torch.einsum("nhd,mhd->hnm", q.float(), k) * attrs["scale"]
    if attrs["softcap"]:
        scores = torch.tanh(scores / attrs["softcap"]) * attrs["softcap"]
    position, j = start + torch.arange(q.shape[0])[:, None], first + torch.arange(k.shape[0])[None]
    keep = (j <= position) & (j >= attrs["reads"].first(position))
    scores = scores.masked_fill(~keep, -math.inf)
    return torch.einsum("hnm,mhd->nhd", scores.softmax(-1), v).to(q.dtype)


def _attention_eval(attrs: Attrs, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return _softmax_rows(q, k, v, 0, 0, attrs)


_COMMON = {"scale": float, "reads": Reads, "softcap": float}

define(
    "attn.attention",
    3,
    _attention_type,
    _attention_eval,
    attrs={**_COMMON, "causal": bool, "layer": int},
    defaults={"reads": FULL_ATTENTION, "softcap": 0.0, "causal": True},
    mixes_rows=True,
    doc="softmax(scale · q kᵀ) v within one sequence of T tokens. q [T, H, D], k [T, Hk, D], v [T, Hk, Dv] -> "
    "[T, H, Dv]; query head h reads key-value head h // (H / Hk). reads: the positions that a token sees "
    "(`inferir.ir.contract.kv_reads`). softcap c > 0: c · tanh(s / c).",
)


def _paged_type(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    q, kc, vc, tables, items = types
    bs, pack = attrs["block_size"], kpack(q.dtype)
    need(q.rank == 3 and kc.rank == 5 and vc.rank == 5, f"paged attention of {q}, {kc}, {vc}")
    need(q.dtype is kc.dtype and q.dtype is vc.dtype, f"mixed element types in {q}, {kc}, {vc}")
    need(kc.shape[1] == attrs["kv_heads"] and vc.shape[1] == attrs["kv_heads"], "kv_heads differs from the cache")
    need(q.shape[1] % kc.shape[1] == 0, f"{q.shape[1]} query heads are not a multiple of {kc.shape[1]} key-value heads")
    need(kc.shape[2] * pack == q.shape[2] and kc.shape[3:] == (bs, pack), f"key cache {kc} for {q}, block size {bs}")
    need(vc.shape[2] * pack == bs and vc.shape[4] == pack, f"value cache {vc} for block size {bs}")
    need(tables.rank == 2 and items.rank == 2 and items.shape[1] == ITEM_WIDTH, f"metadata {tables}, {items}")
    return TensorType((q.shape[0], q.shape[1], vc.shape[3]), q.dtype)


def _paged_eval(
    attrs: Attrs, q: torch.Tensor, kc: torch.Tensor, vc: torch.Tensor, tables: torch.Tensor, items: torch.Tensor
) -> torch.Tensor:
    import torch

    out = torch.zeros(q.shape[0], q.shape[1], vc.shape[3], dtype=q.dtype)
    bs = attrs["block_size"]
    for seq, row, count, position, split, _ in items.tolist():
        if count == 0 or split > 0:
            continue  # the item of split 0 stands for all splits: results do not depend on splitting
        total = position + count
        blocks = tables[seq, : -(-total // bs)].long()
        k = kc[blocks].permute(0, 3, 1, 2, 4).reshape(-1, kc.shape[1], q.shape[2])[:total]
        v = vc[blocks].permute(0, 2, 4, 1, 3).reshape(-1, vc.shape[1], vc.shape[3])[:total]
        first = max(0, attrs["reads"].first(position))
        out[row : row + count] = _softmax_rows(q[row : row + count], k[first:], v[first:], position, first, attrs)
    return out


define(
    "attn.paged",
    5,
    _paged_type,
    _paged_eval,
    attrs={**_COMMON, "kv_heads": int, "block_size": int, "layer": int},
    defaults={"reads": FULL_ATTENTION, "softcap": 0.0},
    mixes_rows=True,
    in_memory=5,
    anchor="attention",
    short="attention",
    doc="Attention of this step's tokens over the paged cache, which holds their own keys and values already. "
    "q [T, H, D]; key cache [NB, Hk, D/p, bs, p]; value cache [NB, Hk, bs/p, Dv, p] with p = kpack(dtype); "
    "block_tables [S, MB]; attn_items [A, 6] rows (sequence, first row, token count, position of the first token, "
    "split or -1, partial row): see `inferir.ir.contract.split_kv`.",
)
