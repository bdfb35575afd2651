"""Templates that would take for ever, or all memory, are refused soon; ordinary ones mean what jinja2 says."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import jinja2
import pytest

from inferir.ir.errors import RequestError
from inferir.runtime.text import template_limits
from inferir.runtime.text.chat_template import ChatTemplate

LONG = "messages[0].content"  # 10,000 characters
MESSAGES = [{"role": "user", "content": "a" * 10_000}]
MACRO = "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}"
GROW = "{% set ns = namespace(s=SEED) %}{% for i in range(99) %}{% set ns.s = EXPR %}{% endfor %}{{ ns.s | length }}"
HUGE = "1000000000"

ENDLESS = {
    "a loop over text": f"{{% for a in {LONG} %}}{{% for b in {LONG} %}}{{% endfor %}}{{% endfor %}}",
    "a loop over a list": f"{{% set l = {LONG} | list %}}"
    "{% for a in l %}{% for b in l %}{% endfor %}{% endfor %}",
    "macros": MACRO + "{{ m(60) }}",
    "a macro that calls itself": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "recursive loops": "{% set l = [1, 2, 3] %}{% for x in l recursive %}{{ loop(l) }}{% endfor %}",
    "recursion that spreads": "{% macro t(n) %}{% for x in range(2) recursive %}{% if n %}{{ t(n - 1) }}"
    "{% endif %}{% endfor %}{% endmacro %}{{ t(50) }}",
    "blocks": "{% block a %}{% for i in range(9) %}{{ self.a() }}{% endfor %}{% endblock %}",
    "a slow test": f"{{% set l = {LONG} | list %}}"
    "{% for i in range(99999) %}{% if 'b' in l %}{% endif %}{% endfor %}",
    "range": "{% for i in range(1000000000) %}{% endfor %}",
    "range as a list": "{{ range(100000) | list | length }}{{ range(100000) | list }}",
}
LARGE = {
    "text times a number": f"{{{{ ('x' * {HUGE}) | length }}}}",
    "a number times text": f"{{{{ ({HUGE} * 'x') | length }}}}",
    "a list times a number": f"{{{{ ([1] * {HUGE}) | length }}}}",
    "a product of products": "{{ ('x' * 9999 * 9999 * 9999) | length }}",
    "a power": "{{ 10 ** 1000000000 }}",
    "powers of powers": "{{ 9 ** (9 ** 9) }}",
    "squares": GROW.replace("SEED", "3").replace("EXPR", "ns.s * ns.s"),
    "joined text": GROW.replace("SEED", LONG).replace("EXPR", "ns.s ~ ns.s"),
    "added text": GROW.replace("SEED", LONG).replace("EXPR", "ns.s + ns.s"),
    "added lists": GROW.replace("SEED", "[1]").replace("EXPR", "ns.s + ns.s"),
    "joined lists": GROW.replace("SEED", LONG).replace("EXPR", "[ns.s, ns.s] | join"),
    "replaced text": GROW.replace("SEED", "'aa'").replace("EXPR", "ns.s | replace('a', ns.s)"),
    "replaced by a method": GROW.replace("SEED", "'aa'").replace("EXPR", "ns.s.replace('a', ns.s)"),
    "joined by a method": GROW.replace("SEED", "'aa'").replace("EXPR", "ns.s.join(ns.s)"),
    "a width of a filter": f"{{{{ 'x' | center({HUGE}) | length }}}}",
    "an indentation": f"{{{{ 'x\\ny' | indent({HUGE}) | length }}}}",
    "an indentation of JSON": f"{{{{ messages | tojson(indent={HUGE}) | length }}}}",
    "slices": f"{{{{ [1] | slice({HUGE}) | list | length }}}}",
    "batches": f"{{{{ [1] | batch({HUGE}, 0) | list | length }}}}",
    "a width of a method": f"{{{{ 'x'.center({HUGE}) | length }}}}",
    "zeros": f"{{{{ 'x'.zfill({HUGE}) | length }}}}",
    "tabs": f"{{{{ '\\t'.expandtabs({HUGE}) | length }}}}",
    "a format": f"{{{{ '%{HUGE}d' % 1 }}}}",
    "a format of stars": f"{{{{ '%*d' % ({HUGE}, 1) }}}}",
    "a format by a filter": f"{{{{ '%{HUGE}d' | format(1) }}}}",
    "a format by a method": f"{{{{ '{{:{HUGE}}}'.format(1) }}}}",
    "a format in a format": f"{{{{ '{{:{{}}}}'.format(1, {HUGE}) }}}}",
    "a loop that writes": f"{{% for i in range(99999) %}}{{{{ {LONG} }}}}{{% endfor %}}",
    "a macro that writes": f"{{% macro m() %}}{{% for i in range(99999) %}}{{{{ {LONG} }}}}{{% endfor %}}"
    "{% endmacro %}"
    "{% set x = m() %}",
    "a block that is set": f"{{% set x %}}{{% for i in range(99999) %}}{{{{ {LONG} }}}}{{% endfor %}}{{% endset %}}",
    "lorem ipsum": "{{ lipsum(n=10000000) }}",
}


def test_endless_templates() -> None:
    """In a process of its own with little memory, so that a failure of the limits does no harm."""
    code = """
import resource, sys
from test_template_limits import ENDLESS, LARGE, MESSAGES
from inferir.ir.errors import RequestError
from inferir.runtime.text import template_limits
from inferir.runtime.text.chat_template import ChatTemplate
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
template_limits.SECONDS = 3.0
for name, source in {**ENDLESS, **LARGE}.items():
    try:
        text = ChatTemplate(source).render(MESSAGES)
    except RequestError as error:
        assert "MemoryError" not in str(error) and str(error).startswith("the chat template"), error
    else:
        raise AssertionError(f"{name}: {text[:50]!r}")
# Not ru_maxrss, which starts at what the process that started this one had.
print(next(int(line.split()[1]) // 1024 for line in open("/proc/self/status") if line.startswith("VmHWM:")))
"""
    environment = {"PYTHONPATH": str(__file__).rsplit("/", 1)[0]}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 1500


def plain(source: str, **values: Any) -> str:
    """What jinja2 itself makes of it."""
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    return environment.from_string(source).render(**values)


@pytest.mark.parametrize(
    "source",
    [
        "{% for x in l %}{{ loop.index }}/{{ loop.length }}{{ loop.last }}{{ loop.nextitem }}{{ x }}{% endfor %}",
        "{% for x in l | map('upper') %}{{ loop.revindex }}{{ loop.last }}{{ x }}{% endfor %}",
        "{% for x in l if x != 'b' %}{{ loop.index }}{{ x }}{% else %}none{% endfor %}",
        "{% for x in [] %}{% else %}none{% endfor %}{% for x in missing %}{% else %}none{% endfor %}",
        "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{% for k in d %}{{ k }}{% endfor %}",
        "{% for c in tree recursive %}{{ c.n }}{% if c.k %}({{ loop(c.k) }}){% endif %}{{ loop.depth }}{% endfor %}",
        "{% macro m(a, b=2) %}{{ a ~ b ~ 'x' }}{{ caller() if caller }}{% endmacro %}{{ m(1) }}",
        "{% macro m(a) %}{{ a }}{{ caller() }}{% endmacro %}{% call m(3) %}y{% endcall %}",
        "{{ 'a' ~ 1 ~ none ~ l }}{{ 'a' 'b' }}{{ 1 + 2 * 3 ** 2 % 5 }}{{ [1] + [2] }}{{ 'ab' * 2 }}",
        "{{ '%s-%03d' % ('x', 5) }}{{ 'x' | center(5) }}|{{ 'a\nb' | indent(2) }}",
        "{{ '{}-{:>4}'.format(1, 'b') }}{{ '%5s' | format('x') }}{{ 'a{b}'.format(b=2) }}",
        "{{ l | join(', ') }}{{ ', '.join(l) }}{{ 'aXbX' | replace('X', '--') }}{{ 'aXb'.replace('X', '') }}",
        "{% autoescape true %}{{ '<' ~ '>' }}{% endautoescape %}{{ '<' ~ '>' }}{{ l | batch(2) | list }}",
        "{% set ns = namespace(n=0) %}{% for x in l %}{% set ns.n = ns.n + 1 %}{% break %}{% endfor %}{{ ns.n }}",
        "{{ l | selectattr('x', 'undefined') | list | length }}{{ l | sort(reverse=true) | first }}",
        "{{ tree | groupby('n') | length }}{{ tree | map(attribute='n') | sum }}{{ d | dictsort | first }}",
        "{% set x %}a{{ l[0] }}{% endset %}{{ x | trim | upper }}{% filter upper %}b{% endfilter %}",
        "{{ cycler('a', 'b').next() }}{% set j = joiner(',') %}{{ j() }}{{ j() }}{{ 1700000000 | int }}{{ 7 // 2 }}",
    ],
)
def test_ordinary_templates(source: str) -> None:
    tree = [{"n": 1, "k": [{"n": 2}, {"n": 3, "k": [{"n": 4}]}]}, {"n": 5}]
    values = {"l": ["a", "b", "c"], "d": {"x": 1, "y": 2}, "tree": tree}
    ours = ChatTemplate(source).render([{"role": "user", "content": "x"}], variables=values)
    assert ours == plain(source, **values)


def test_a_long_conversation_is_ordinary() -> None:
    source = "{% for m in messages %}{{ '<' + m.role + '>' + m.content | trim + '\n' }}{% endfor %}"
    messages = [{"role": "user", "content": "x" * 1500}] * 4096
    text = ChatTemplate(source).render(messages)
    assert len(text) == 4096 * (1500 + 7)


def test_every_rendering_has_its_own_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_limits, "MAX_STEPS", 100)
    template = ChatTemplate("{% for i in range(n) %}x{% endfor %}")
    message = [{"role": "user", "content": "x"}]
    for _ in range(5):
        assert template.render(message, variables={"n": 80}) == "x" * 80
    with pytest.raises(RequestError, match="more than 100 loops and calls"):
        template.render(message, variables={"n": 120})
