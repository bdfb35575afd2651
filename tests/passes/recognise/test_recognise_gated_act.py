"""recognise-gated-act: act(gate) · up."""

import pytest

from inferir.passes.recognise.recognise_gated_act import RecogniseGatedAct

BEFORE = """graph @g(%g: f32[T, 8], %u: f32[T, 8]) -> (%2 as "y") {{
  %1 = tensor.{act}(%g){attrs} : f32[T, 8]
  %2 = tensor.mul({order}) : f32[T, 8]
}}"""
AFTER = """graph @g(%g: f32[T, 8], %u: f32[T, 8]) -> (%1 as "y") {{
  %1 = nn.gated_act(%g, %u) {{kind="{kind}"}} : f32[T, 8]
}}"""


@pytest.mark.parametrize("order", ["%1, %u", "%u, %1"])
@pytest.mark.parametrize(
    ("act", "attrs", "kind"),
    [
        ("silu", "", "silu"),
        ("relu", "", "relu"),
        ("sigmoid", "", "sigmoid"),
        ("gelu", ' {approximate="none"}', "gelu"),
        ("gelu", ' {approximate="tanh"}', "gelu_tanh"),
    ],
)
def test_golden(golden, act: str, attrs: str, kind: str, order: str) -> None:
    golden(RecogniseGatedAct(), BEFORE.format(act=act, attrs=attrs, order=order), AFTER.format(kind=kind))


def test_other_products_stay(golden) -> None:
    for act, order in (("tanh", "%1, %u"), ("silu", "%1, %g"), ("silu", "%u, %u"), ("relu", "%1, %1")):
        text = BEFORE.format(act=act, attrs="", order=order)
        golden(RecogniseGatedAct(), text, text)
