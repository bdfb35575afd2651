"""Jinja's immutable sandbox with limits: no template, whatever it does, takes much time or memory.

Every loop and every call counts as steps, every text that is put together as characters, and a deadline stands behind
both, for single operations that are slow. Numbers that would make a huge value at once are refused before it is made.
"""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jinja2
import jinja2.compiler
import jinja2.ext
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.filters import make_attrgetter
from jinja2.runtime import LoopContext, markup_join
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from inferir.runtime.text import traced_text

MAX_STEPS = 500_000
MAX_CHARS = 128 << 20
MAX_RANGE = 100_000
MAX_WIDTH = 10_000
MAX_BITS = 10_000
SECONDS = 5.0

_WIDE = re.compile(r"\d{5,}|\*|[{][^{}]*[{]")  # a width in a format text that is large, or that a value gives
_SIZED_FILTERS = ("batch", "center", "filesizeformat", "indent", "slice", "tojson", "truncate", "wordwrap")
_SIZED_METHODS = ("center", "expandtabs", "ljust", "rjust", "zfill")


class Budget:
    """What one rendering has left. Raises `SecurityError` where it is used up."""

    def __init__(self) -> None:
        self._steps = MAX_STEPS
        self._chars = MAX_CHARS
        self._range = MAX_RANGE
        self._end = time.monotonic() + SECONDS

    def step(self, count: int = 1) -> None:
        self._steps -= count
        if self._steps < 0:
            raise SecurityError(f"more than {MAX_STEPS:,} loops and calls")
        if time.monotonic() > self._end:
            raise SecurityError(f"more than {SECONDS:g} s")

    def chars(self, count: int) -> None:
        self._chars -= count
        if self._chars < 0:
            raise SecurityError(f"more than {MAX_CHARS >> 20} Mi characters of text")

    def numbers(self, *bounds: int) -> range:
        """Stands for `range` in a template."""
        out = range(*bounds)
        self._range -= len(out)
        if self._range < 0:
            raise SecurityError(f"loops over more than {MAX_RANGE:,} numbers")
        return out


_BUDGET: ContextVar[Budget | None] = ContextVar("budget", default=None)


@contextmanager
def rendering() -> Iterator[Budget]:
    """A new budget for what is rendered in the block."""
    token = _BUDGET.set(budget := Budget())
    try:
        yield budget
    finally:
        _BUDGET.reset(token)


def _budget() -> Budget:
    """That of the rendering; a fresh one for what the compiler evaluates."""
    return _BUDGET.get() or Budget()


class LimitedEnvironment(ImmutableSandboxedEnvironment):
    """See the module. Templates must be rendered inside `rendering`."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, **options: Any) -> None:
        super().__init__(finalize=traced_text.shown, **options)
        del self.globals["lipsum"]
        self.filters["join"] = _join
        self.filters["replace"] = _replace
        for name, call in list(self.filters.items()):
            self.add_filter(name, call)
        self.filters["_counted"] = _Counted
        self.filters["_joined"] = _joined

    def add_filter(self, name: str, call: Callable[..., Any]) -> None:
        self.filters[name] = _limited(name, call)

    @staticmethod
    def concat(parts: Iterable[str]) -> str:
        """What compiled templates put their pieces together with."""
        budget = _budget()
        out = []
        for part in parts:
            budget.chars(len(part))
            out.append(part)
        return traced_text.concat(out)

    def call(self, context: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Every call that a template makes."""
        budget = _budget()
        budget.step()
        if isinstance(obj, LoopContext) and args:
            args = (_Counted(args[0]), *args[1:])
        _check_method(obj, args, kwargs)
        value = super().call(context, traced_text.exact_call(obj) or obj, *args, **kwargs)
        return _charged(traced_text.called(obj, args, kwargs, value), budget)

    def wrap_str_format(self, value: Any) -> Any:
        """The method `format` of a text, which the sandbox replaces."""
        wrapped = super().wrap_str_format(value)
        if wrapped is not None:
            _check_format(value.__self__)
        return wrapped

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """The operators above."""
        _check_operation(operator, left, right)
        value = super().call_binop(context, operator, left, right)
        return _charged(traced_text.combined(left, right, value), _budget())


class _Limiter(NodeTransformer):
    """Puts a counter into every loop, and a check before texts are joined."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 - jinja2's name
        self.generic_visit(node)
        node.iter = nodes.Filter(node.iter, "_counted", [], [], None, None, lineno=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802 - jinja2's name
        self.generic_visit(node)
        parts = nodes.List(node.nodes, lineno=node.lineno)
        return nodes.Filter(parts, "_joined", [], [], None, None, lineno=node.lineno)


class _Generator(jinja2.compiler.CodeGenerator):
    def visit_Template(self, node: nodes.Template, frame: Any = None) -> None:  # noqa: N802 - jinja2's name
        _Limiter().visit(node)
        node.set_environment(self.environment)
        super().visit_Template(node, frame)


LimitedEnvironment.code_generator_class = _Generator


class _Counted:
    """An iterable whose elements count as steps."""

    def __init__(self, values: Any) -> None:
        self._values = values

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[Any]:
        budget = _budget()
        for value in self._values:
            budget.step()
            yield value


@jinja2.pass_eval_context
def _joined(context: nodes.EvalContext, parts: list[Any]) -> str:
    """The operator `~`."""
    if context.autoescape:
        return markup_join(parts)
    return LimitedEnvironment.concat(str(traced_text.shown(part)) for part in parts)


@jinja2.pass_eval_context
def _join(context: nodes.EvalContext, value: Any, d: str = "", attribute: str | int | None = None) -> str:
    """The filter of that name."""
    if attribute is not None:
        value = map(make_attrgetter(context.environment, attribute), value)
    return traced_text.join(str(d), (str(traced_text.shown(v)) for v in value))


def _replace(s: Any, old: Any, new: Any, count: int | None = None) -> str:
    """The filter of that name."""
    return traced_text.replace(str(traced_text.shown(s)), str(old), str(new), -1 if count is None else count)


def _limited(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """A filter whose result counts."""

    @functools.wraps(call)
    def limited(*args: Any, **kwargs: Any) -> Any:
        budget = _budget()
        budget.step()
        if name in _SIZED_FILTERS:
            _check_widths((*args[1:], *kwargs.values()))
        if name in ("format", "replace"):
            given = [a for a in (*args, *kwargs.values()) if not isinstance(a, nodes.EvalContext)]
            (_check_format if name == "format" else _check_replace)(*map(str, given[:3]))
        return _charged(traced_text.filtered(name, args, kwargs, call(*args, **kwargs)), budget)

    return limited


def _charged(value: Any, budget: Budget) -> Any:
    if isinstance(value, str):
        budget.chars(len(value))
    elif isinstance(value, list | tuple | dict):
        budget.step(len(value))
    return value


def _check_method(obj: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse methods of texts that would make a huge one."""
    owner, name = getattr(obj, "__self__", None), getattr(obj, "__name__", "")
    if not isinstance(owner, str):
        return
    if name in _SIZED_METHODS:
        _check_widths((*args, *kwargs.values()))
    elif name in ("format", "format_map"):
        _check_format(owner)
    elif name == "replace" and len(args) >= 2:
        _check_replace(owner, str(args[0]), str(args[1]))
    elif name == "join" and len(args) == 1 and hasattr(args[0], "__len__"):
        _budget().chars(len(owner) * len(args[0]))
    elif name == "translate":
        raise SecurityError("translate is not available")


def _check_widths(values: Iterable[Any]) -> None:
    for value in values:
        if isinstance(value, int) and value > MAX_WIDTH:
            raise SecurityError(f"a width of {value} is more than {MAX_WIDTH}")
        if isinstance(value, str) and len(value) > MAX_WIDTH:
            raise SecurityError(f"an indentation of more than {MAX_WIDTH} characters")


def _check_format(text: str, *_: str) -> None:
    if _WIDE.search(text):
        raise SecurityError(f"a format with a width of more than {MAX_WIDTH}, or one that a value gives")


def _check_replace(text: str, old: str = "", new: str = "") -> None:
    found = text.count(old) if old else len(text) + 1
    _budget().chars(found * len(new))


def _check_operation(operator: str, left: Any, right: Any) -> None:
    """Refuse operators that would make something huge."""
    bits = 0
    numbers = isinstance(left, int) and isinstance(right, int)
    match operator:
        case "+":
            if isinstance(left, str) and isinstance(right, str):
                _budget().chars(len(left) + len(right))
            elif isinstance(left, list | tuple) and isinstance(right, list | tuple):
                _budget().step(len(left) + len(right))
        case "*":
            for one, other in ((left, right), (right, left)):
                if isinstance(one, str | bytes) and isinstance(other, int):
                    _budget().chars(len(one) * max(other, 0))
                elif isinstance(one, list | tuple) and isinstance(other, int):
                    _budget().step(len(one) * max(other, 0))
            bits = left.bit_length() + right.bit_length() if numbers else 0
        case "**":
            bits = left.bit_length() * right if numbers else 0
        case "%" if isinstance(left, str):
            _check_format(left)
    if bits > MAX_BITS:
        raise SecurityError("a number that is too large")
