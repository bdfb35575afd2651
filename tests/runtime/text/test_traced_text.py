"""Text that knows which characters a request gave: templates see ordinary strings, and no origin is lost."""

from __future__ import annotations

import random
from typing import Any

import pytest

from inferir.runtime.text.chat_template import ChatTemplate
from inferir.runtime.text.traced_text import Origin, TracedText, concat, plain, spans, trace

HERE = Origin(0, "content")
ALPHABET = "ab \n<x"


def random_text(rng: random.Random, longest: int = 12) -> str:
    """Data in capitals between the template's small letters, so that every character tells where it is from."""
    parts = []
    for _ in range(rng.randint(0, 4)):
        text = "".join(rng.choice(ALPHABET) for _ in range(rng.randint(0, longest)))
        parts.append(trace(text.upper(), HERE) if rng.random() < 0.5 else text)
    return concat(parts)


def check(value: Any) -> None:
    """Marked are all capitals, and no small letter is."""
    if isinstance(value, list | tuple):
        for v in value:
            check(v)
    elif isinstance(value, str):
        marked = [any(a <= i < b for a, b, _ in spans(value)) for i in range(len(value))]
        for character, mark in zip(plain(value), marked, strict=True):
            assert not character.isalpha() or mark is character.isupper(), (value, spans(value))


OPERATIONS = {
    "strip": lambda s, rng: s.strip(),
    "lstrip": lambda s, rng: s.lstrip("a \n"),
    "rstrip": lambda s, rng: s.rstrip("A\n"),
    "split": lambda s, rng: s.split(),
    "split at": lambda s, rng: s.split(rng.choice("aA< "), rng.randint(-1, 2)),
    "rsplit": lambda s, rng: s.rsplit(None, rng.randint(-1, 2)),
    "rsplit at": lambda s, rng: s.rsplit(rng.choice("aA< "), rng.randint(-1, 2)),
    "splitlines": lambda s, rng: s.splitlines(rng.random() < 0.5),
    "partition": lambda s, rng: s.partition(rng.choice("aA<")),
    "rpartition": lambda s, rng: s.rpartition(rng.choice("aA<")),
    "removeprefix": lambda s, rng: s.removeprefix(s[:2]),
    "removesuffix": lambda s, rng: s.removesuffix(s[-2:]),
    "replace": lambda s, rng: s.replace(rng.choice(["a", "A", "< "]), rng.choice(["", "xx"]), rng.randint(-1, 2)),
    "slice": lambda s, rng: s[rng.randint(-9, 9) : rng.randint(-9, 9)],
    "index": lambda s, rng: s[rng.randrange(-len(s), len(s))] if s else s,
    "characters": lambda s, rng: list(s),
    "times": lambda s, rng: s * rng.randint(-1, 3),
    "plus": lambda s, rng: "xa" + s + "b",
    "join": lambda s, rng: s.join([s, "a", s]),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_are_those_of_str(name: str) -> None:
    for seed in range(300):
        text = random_text(random.Random(seed))
        ours = OPERATIONS[name](text, random.Random(seed))
        assert ours == OPERATIONS[name](plain(text), random.Random(seed))
        check(ours)


def test_other_methods_mark_everything() -> None:
    text = concat(["ab", trace("CD", HERE)])
    for made in (text.center(9), text.zfill(9), text.expandtabs(), text.translate({}), text.ljust(8, "x")):
        if isinstance(made, TracedText):
            assert {o for _, _, origins in spans(made) for o in origins} == {HERE}
    assert spans(text.center(9)) == ((0, 9, (HERE,)),)
    assert spans(text.swapcase()) == spans(text)


MESSAGE = {"role": "user", "content": "SEC RET", "extra": ["ONE", {"KEY": "TWO"}]}
EXPRESSIONS = [
    "'x' + m.content + 'y'",
    "'x' ~ m.content ~ 'y'",
    "m.content | trim",
    "'-'.join([m.content, 'a'])",
    "[m.content, 'a'] | join('-')",
    "[m, m] | map(attribute='content') | join('a')",
    "m.content | replace('SEC', 'x')",
    "'aQb' | replace('Q', m.content)",
    "'aQb'.replace('Q', m.content)",
    "'a{}b'.format(m.content)",
    "'a%sb' % m.content",
    "'a%sb' | format(m.content)",
    "m.content[:3] ~ 'x' ~ m.content[-1]",
    "m.content.split(' ')[-1] ~ 'x'",
    "m.content | upper | list | join",
    "m.content | first ~ m.content | last",
    "m.missing | default(m.content)",
    "m.extra[1].items() | map('first') | join('a')",
    "m.extra | string | upper",
    "m.extra",
    "m | tojson(indent=2)",
    "m.content | indent(2, true)",
    "m.content | safe",
    "'x' | safe + m.content",
    "m.content | reverse",
    "m.content | wordwrap(3)",
    "m.content | e",
    "(m.content,) | string",
    "m.content | center(20)",
    "m.content | title | upper",
]


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_no_expression_of_a_template_loses_data(expression: str) -> None:
    source = f"{{% set m = messages[0] %}}ab{{{{ {expression} }}}}cd"
    text = ChatTemplate(source).render([MESSAGE])
    assert any(c.isupper() for c in text)
    marked = [any(a <= i < b for a, b, _ in spans(text)) for i in range(len(text))]
    assert all(mark for c, mark in zip(plain(text), marked, strict=True) if c.isupper())
    assert not any(marked[:2] + marked[-2:])


@pytest.mark.parametrize(
    "source",
    [
        "{% macro f(x) %}[{{ x }}{{ caller() if caller }}]{% endmacro %}a{{ f(messages[0].content) }}b",
        "{% macro f() %}[{{ caller() }}]{% endmacro %}a{% call f() %}{{ messages[0].content }}{% endcall %}b",
        "a{% set x %}[{{ messages[0].content }}]{% endset %}{{ x }}b",
        "a{% filter trim %}[{{ messages[0].content }}]{% endfilter %}b",
        "a{% for c in messages[0].content %}{{ c }}{% endfor %}b",
        "{% set n = namespace(x='[') %}{% for m in messages %}{% set n.x = n.x + m.content %}{% endfor %}a{{ n.x }}b",
        "{% block x %}a{{ messages[0].content }}b{% endblock %}",
        "{% generation %}a{{ messages[0].content }}b{% endgeneration %}",
    ],
)
def test_statements_keep_spans_exactly(source: str) -> None:
    text = ChatTemplate(source).render([MESSAGE])
    assert "".join(text[a:b] for a, b, _ in spans(text)) == "SEC RET"
    assert {o for _, _, origins in spans(text) for o in origins} == {HERE}
