"""Texts that tell tokenizers apart: the same ones on every machine, for the same seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

_TEXT = """
the of and to in is it's I'LL we've DON'T o'clock camelCase PascalCase snake_case HTTPServer x86_64 naïve café
co-operate e.g. i.e. U.S.A. re:Invent 3rd 21st v2.0 Größe straße ǅ ŉ ﬁnd İstanbul
"""
_WORDS = tuple(_TEXT.split())
_SCRIPTS = (
    "我想在苹果工作，他说：“你好！”。",
    "日本語のテキスト、カタカナとひらがな。",
    "한국어 문장입니다. 안녕하세요?",
    "ภาษาไทยไม่มีช่องว่าง",
    "नमस्ते दुनिया, कृपया",
    "مرحبا بالعالم، كيف الحال؟",
    "שלום עולם",
    "Привет, мир! Ёлка",
    "Γειά σου Κόσμε",
    "Xin chào thế giới",
    "ខ្ញុំចង់ទៅ",
    "မြန်မာဘာသာ",
    "ქართული ენა",
    "Հայերեն",
    "বাংলা ভাষা",
    "தமிழ் மொழி",
    "አማርኛ",
    "ᏣᎳᎩ",
    "𐍈𐌰𐌹",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢",
)
_EMOJI = ("😀", "👍🏽", "👨‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪", "❤️", "☃", "1️⃣", "🧑🏿‍🚀", "✅")
_MARKS = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~«»„“”‘’…—–·•°§¶€£¥©®™±×÷≠≤∞∑√←→⇒■│─"
_BLANKS = (
    " ",
    "  ",
    "   ",
    "    ",
    "\t",
    "\t\t",
    "\n",
    "\n\n",
    "\r\n",
    " \n",
    "\n ",
    "\n\n\n",
    "\u00a0",
    "\u3000",
    "\u2009",
    "\v",
    "\f",
)
_CONTROLS = (
    "\x00",
    "\x01",
    "\x04",
    "\x1b[0m",
    "\x1f",
    "\x7f",
    "\x85",
    "\u200b",
    "\u200d",
    "\u2028",
    "\ufeff",
    "\ue000",
    "\ufffd",
)
_CODE = (
    "def f(x):\n    return x + 1\n",
    "for (int i = 0; i < 10; ++i) {\n\tsum += a[i];\n}\n",
    "if x:\n    y = 1\n        # z\n",
    '{"a": [1, 2.5, null], "b": "c\\n"}',
    "SELECT * FROM t WHERE id=42;",
    '<div class="a">x</div>',
    "#include <stdio.h>\r\n",
    "print(f'{x:>10.3f}')",
    "x = {\n  1: 'one',\n  2: 'two',\n}",
    "git commit -m 'fix #123'",
    "https://example.org/a?b=c&d=%20",
    'let s = r#"raw"#;',
    "- item\n  2. x\n   10) y",
    "## Title\n\n* **bold** `code`\n",
    "a  12",
    "   7",
    "$x^{2}_{ij}$",
)
_COMBINING = (
    "e\u0301",
    "n\u0303",
    "a\u0308\u0323",
    "क\u093c",
    "\u1112\u1161\u11ab",
    "Z\u0351\u036b",
    "\u212b",
    "ſ",
    "'ſ",
)

Maker = Callable[[random.Random], str]


def _pick(rng: random.Random, items: Sequence[str]) -> str:
    return items[int(rng.random() * len(items))]


def _up_to(rng: random.Random, most: int) -> int:
    return 1 + int(rng.random() * most)


def _words(rng: random.Random) -> str:
    gap = (" ", " ", " ", ", ", ". ", "\n", "  ", "/", "")
    return "".join(_pick(rng, _WORDS) + _pick(rng, gap) for _ in range(_up_to(rng, 12)))


def _number(rng: random.Random) -> str:
    digits = "".join(_pick(rng, "0123456789") for _ in range(_up_to(rng, 12)))
    shapes = (
        digits,
        f"-{digits}",
        f"{digits}.{digits[:3]}",
        f"1,{digits[:3]},000",
        f"0x{digits}",
        f"{digits}e-{digits[:2]}",
    )
    return _pick(
        rng, (*shapes, f"${digits}", f"{digits}%", f"½{digits}²", f"٣٤{digits}", f"{digits}abc", f"第{digits}章")
    )


def _numbers(rng: random.Random) -> str:
    return "".join(_pick(rng, _BLANKS) + _number(rng) for _ in range(_up_to(rng, 8)))


def _table(rng: random.Random) -> str:
    width = _up_to(rng, 14)

    def cells() -> list[str]:
        kinds = (_number(rng), _pick(rng, _WORDS), "", _pick(rng, _SCRIPTS))
        return [_pick(rng, kinds)[:width] for _ in range(3)]

    rows = [cells() for _ in range(_up_to(rng, 5))]
    if rng.random() < 0.5:
        return "\n".join("| " + " | ".join(cell.ljust(width) for cell in row) + " |" for row in rows)
    return "\n".join("".join(cell.rjust(width) for cell in row) for row in rows)


def _blanks(rng: random.Random) -> str:
    runs = (" " * _up_to(rng, 70), "\n" * _up_to(rng, 40), "\t" * _up_to(rng, 9), "\r\n" * _up_to(rng, 4))
    parts = (
        _pick(rng, (*runs, *_BLANKS)) + _pick(rng, (_pick(rng, _WORDS), _number(rng), "", "x"))
        for _ in range(_up_to(rng, 6))
    )
    return "".join(parts)


def _script(rng: random.Random) -> str:
    return "".join(_pick(rng, _SCRIPTS) + _pick(rng, ("", " ", "\n", "1", "'s")) for _ in range(_up_to(rng, 4)))


def _emoji(rng: random.Random) -> str:
    return "".join(_pick(rng, _EMOJI) + _pick(rng, ("", "", " ", "a")) for _ in range(_up_to(rng, 8)))


def _marks(rng: random.Random) -> str:
    def run() -> str:
        return "".join(_pick(rng, _MARKS) for _ in range(_up_to(rng, 5)))

    return "".join(run() + _pick(rng, ("", " ", "\n", "abc", "12", " a")) for _ in range(_up_to(rng, 6)))


def _code(rng: random.Random) -> str:
    return "".join(_pick(rng, _CODE) + _pick(rng, ("", "\n", " " * _up_to(rng, 12))) for _ in range(_up_to(rng, 4)))


def _odd(rng: random.Random) -> str:
    return "".join(
        _pick(rng, (*_CONTROLS, *_COMBINING)) + _pick(rng, ("", " ", "a", "B2")) for _ in range(_up_to(rng, 6))
    )


def _mixed(rng: random.Random) -> str:
    return "".join(_pick(rng, _MAKERS)(rng)[: _up_to(rng, 40)] for _ in range(_up_to(rng, 6)))


_MAKERS: tuple[Maker, ...] = (_words, _numbers, _table, _blanks, _script, _emoji, _marks, _code, _odd)


def texts(count: int, special: Sequence[str] = (), seed: int = 0) -> list[str]:
    """`count` texts of all kinds by turns. With `special` tokens, every tenth holds some of them, whole and damaged."""
    rng = random.Random(seed)
    makers = (*_MAKERS, _mixed)
    out = []
    for i in range(count):
        text = makers[i % len(makers)](rng)
        if special and i % len(makers) == len(makers) - 1:
            for _ in range(_up_to(rng, 3)):
                token = _pick(rng, special)
                at = int(rng.random() * (len(text) + 1))
                text = text[:at] + _pick(rng, (token, token, f" {token} ", token[:-1], token + token)) + text[at:]
        out.append(text)
    return out
