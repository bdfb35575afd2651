"""properties: every check finds what contradicts it."""

import re

import pytest

from inferir.ir.graph.parser import parse_graph
from inferir.passes.properties import CHECKS

GOOD = """graph @g(%x: f32[T, 4], %rows: i32[R]) -> (%2 as "logits", %3 as "tokens") {
  %1 = core.weight {name="w"} : f32[4]
  %4 = tensor.mul(%x, %1) : f32[T, 4]
  %2 = tensor.gather_rows(%4, %rows) : f32[R, 4]
  %3 = tensor.argmax(%2) {dim=1, keepdim=false} : i32[R]
}"""
ATTENTION = (
    "attn.attention(%5, %5, %5) {causal=true, layer=0, reads=full_attention, scale=1.0, softcap=0.0} : f32[T, 1, 4]"
)

PAGED = f"""%5 = tensor.view(%x) {{shape=(T, 1, 4)}} : f32[T, 1, 4]
  %6 = {ATTENTION}
  %4 = tensor.view(%6) {{shape=(T, 4)}} : f32[T, 4]"""


@pytest.mark.parametrize(
    ("name", "old", "new", "reason"),
    [
        ("ragged", "f32[T, 4]", "f32[4, T]", r"core.input has type f32\[4, T\]"),
        ("positions-tabulated", "%x", "%positions", "tensor.mul computes with positions"),
        (
            "paged",
            "%4 = tensor.mul(%x, %1) : f32[T, 4]",
            PAGED,
            "there is still a attn.attention",
        ),
        ("rows-gathered", "%2 as", "%4 as", r"logits are f32\[T, 4\]"),
        ("sampled", '"tokens"', '"chosen"', "no output 'tokens'"),
        (
            "packed",
            '%1 = core.weight {name="w"} : f32[4]\n  %4 = tensor.mul',
            '%1 = core.weight {name="w"} : f32[4, 4]\n  %4 = tensor.linear',
            "there is still a tensor.linear",
        ),
        (
            "weights-folded",
            '%1 = core.weight {name="w"} : f32[4]',
            '%5 = core.weight {name="w"} : f32[4]\n  %1 = tensor.exp(%5) : f32[4]',
            "tensor.exp depends on weights alone",
        ),
    ],
)
def test_contradictions_are_named(name: str, old: str, new: str, reason: str) -> None:
    assert old in GOOD
    assert CHECKS[name](parse_graph(GOOD)) is None
    text = GOOD.replace(old, new)
    if name == "ragged":
        text = text.replace('%1 = core.weight {name="w"} : f32[4]', '%1 = core.weight {name="w"} : f32[1]')
        text = text.replace("f32[R, 4]", "f32[R, T]")
    found = CHECKS[name](parse_graph(text))
    assert found is not None
    assert re.search(reason, found)


def test_ops_outside_of_regions_are_named() -> None:
    assert CHECKS["regions"](parse_graph(GOOD)) == "tensor.mul is in no region"
