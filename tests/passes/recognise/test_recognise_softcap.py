"""recognise-softcap: cap · tanh(x / cap)."""

from inferir.passes.recognise.recognise_softcap import RecogniseSoftcap

BEFORE = """graph @g(%x: f32[T, 8]) -> (%5 as "y") {
  %1 = core.scalar {value=30.0} : f64[]
  %2 = tensor.div(%x, %1) : f32[T, 8]
  %3 = tensor.tanh(%2) : f32[T, 8]
  %4 = core.scalar {value=30.0} : f64[]
  %5 = tensor.mul(%3, %4) : f32[T, 8]
}"""
AFTER = """graph @g(%x: f32[T, 8]) -> (%1 as "y") {
  %1 = nn.softcap(%x) {cap=30.0} : f32[T, 8]
}"""


def test_golden(golden) -> None:
    golden(RecogniseSoftcap(), BEFORE, AFTER)


def test_different_numbers_are_no_softcap(golden) -> None:
    text = BEFORE.replace("%4 = core.scalar {value=30.0}", "%4 = core.scalar {value=50.0}")
    golden(RecogniseSoftcap(), text, text)
