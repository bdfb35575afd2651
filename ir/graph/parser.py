"""Parser of IR text (see `printer`). Result types are inferred anew and compared with those written down."""

from __future__ import annotations

import json
import math
import re

from inferir.ir.contract.kv_specs import parse_reads
from inferir.ir.errors import IRError, ParseError
from inferir.ir.graph.attrs import Attrs, AttrValue
from inferir.ir.graph.dims import Dim, parse_dim
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import NOWHERE, Graph, Node, Provenance, Value, make_node
from inferir.ir.graph.registry import opdef
from inferir.ir.graph.types import TensorType

_TOKEN = re.compile(
    r"""(?P<ws>\s+)|(?P<str>"(?:[^"\\]|\\.)*")|(?P<val>%[A-Za-z0-9_.]+(?:\#\d+)?)|(?P<arrow>->)
    |(?P<num>\d+\.?\d*(?:e[+-]?\d+)?|\d+)|(?P<id>[A-Za-z_][A-Za-z0-9_.]*)|(?P<p>[()\[\]{}:,=@+\-*/])""",
    re.VERBOSE,
)
_NUMBER = re.compile(r"^-?\d+$")
_FLOAT = re.compile(r"^-?(\d+\.\d*(e[+-]?\d+)?|\d+e[+-]?\d+|inf|nan)$")
_DTYPES = {d.value: d for d in DType}


def parse_graph(text: str) -> Graph:
    """Parse one graph. Raises `ParseError` with the line number."""
    parser = _Parser(text)
    graph = parser.graph()
    parser.end()
    return graph


class _Parser:
    def __init__(self, text: str) -> None:
        self.tokens: list[tuple[str, int]] = []
        pos, line = 0, 1
        while pos < len(text):
            m = _TOKEN.match(text, pos)
            if not m:
                raise ParseError(f"line {line}: unexpected character {text[pos]!r}")
            if m.lastgroup != "ws":
                self.tokens.append((m.group(), line))
            line += m.group().count("\n")
            pos = m.end()
        self.i = 0

    def _fail(self, message: str, at: int | None = None) -> ParseError:
        """The error for token number `at`, by default the next one."""
        at = self.i if at is None else at
        line = self.tokens[min(at, len(self.tokens) - 1)][1] if self.tokens else 1
        return ParseError(f"line {line}: {message}")

    def peek(self) -> str:
        return self.tokens[self.i][0] if self.i < len(self.tokens) else ""

    def take(self, want: str | None = None) -> str:
        token = self.peek()
        if not token or (want is not None and token != want):
            raise self._fail(f"expected {want or 'more text'!r}, found {token!r}")
        self.i += 1
        return token

    def accept(self, token: str) -> bool:
        if self.peek() == token:
            self.i += 1
            return True
        return False

    def end(self) -> None:
        if self.i != len(self.tokens):
            raise self._fail(f"unexpected {self.peek()!r} after the graph")

    def graph(self) -> Graph:
        self.take("graph")
        self.take("@")
        name = self.string() if self.peek().startswith('"') else self.take()
        env: dict[str, Value] = {}
        inputs: list[Value] = []
        self.take("(")
        while not self.accept(")"):
            label = self.label(env)
            input_name = self.string() if self.accept("as") else label[1:]
            self.take(":")
            type_ = self.type()
            node = Node("core.input", (), Attrs({"name": input_name}), (type_,), self.loc())
            inputs.append(node.result)
            env[label] = node.result
            self.accept(",")
        self.take("->")
        self.take("(")
        outs: list[tuple[str, str]] = []
        head = self.i
        while not self.accept(")"):
            value = self.take()
            self.take("as")
            outs.append((value, self.string()))
            self.accept(",")
        self.take("{")
        while not self.accept("}"):
            self.statement(env)
        for value, _ in outs:
            if value not in env:
                raise self._fail(f"output {value} is not defined", head)
        return Graph(tuple(inputs), tuple(env[v] for v, _ in outs), tuple(n for _, n in outs), name)

    def statement(self, env: dict[str, Value]) -> None:
        start = self.i
        results = [self.label(env)]
        while self.accept(","):
            results.append(self.label(env))
        self.take("=")
        op = self.take()
        operands: list[Value] = []
        if self.accept("("):
            while not self.accept(")"):
                name = self.take()
                if name not in env:
                    raise self._fail(f"{name} is used before it is defined")
                operands.append(env[name])
                self.accept(",")
        attrs: dict[str, AttrValue] = {}
        if self.accept("{"):
            while not self.accept("}"):
                key = self.take()
                self.take("=")
                attrs[key] = self.attr()
                self.accept(",")
        self.take(":")
        types = [self.type()]
        while self.accept(","):
            types.append(self.type())
        loc = self.loc()
        try:
            node = self._node(op, tuple(operands), attrs, tuple(types), loc)
            if len(node.results) != len(results):
                raise IRError(f"{op} has {len(node.results)} results, {len(results)} are named")
        except IRError as error:
            raise self._fail(str(error), start) from None
        env.update(zip(results, node.results, strict=True))

    def label(self, env: dict[str, Value]) -> str:
        """The name of a value that is about to be defined."""
        if not self.peek().startswith("%"):
            raise self._fail(f"expected the name of a value, found {self.peek()!r}")
        if self.peek() in env:
            raise self._fail(f"{self.peek()} is defined twice")
        return self.take()

    def string(self) -> str:
        if not self.peek().startswith('"'):
            raise self._fail(f"expected a string, found {self.peek()!r}")
        try:
            return str(json.loads(self.peek()))
        except json.JSONDecodeError as error:
            raise self._fail(f"bad string: {error.msg}") from None
        finally:
            self.i += 1

    def _node(
        self,
        op: str,
        operands: tuple[Value, ...],
        attrs: dict[str, AttrValue],
        types: tuple[TensorType, ...],
        loc: Provenance,
    ) -> Node:
        if op == "core.input":
            raise IRError("core.input belongs in the graph's head")
        if opdef(op).source:
            return Node(op, operands, Attrs(attrs), types, loc)
        node = make_node(op, operands, attrs, loc)
        if node.types != types:
            inferred, written = (", ".join(map(str, t)) for t in (node.types, types))
            raise IRError(f"{op} gives {inferred}, the text says {written}")
        return node

    def loc(self) -> Provenance:
        if not self.accept("@"):
            return NOWHERE
        module, _, source = self.string().partition(":")
        return Provenance(module, source)

    def type(self) -> TensorType:
        dtype = self.take()
        if dtype not in _DTYPES:
            raise self._fail(f"unknown element type {dtype!r}")
        self.take("[")
        dims = []
        while not self.accept("]"):
            dims.append(self.dim(self._expression()))
            self.accept(",")
        return TensorType(tuple(dims), _DTYPES[dtype])

    def _expression(self) -> str:
        depth, parts = 0, []
        while True:
            token = self.peek()
            if not token or (depth == 0 and token in (",", ")", "]", "}")):
                break
            depth += (token == "(") - (token == ")")
            parts.append(self.take())
        if not parts:
            raise self._fail("expected a value")
        return "".join(parts)

    def attr(self) -> AttrValue:
        token = self.peek()
        if token.startswith('"'):
            return self.string()
        if token == "graph":
            return self.graph()
        if token == "(":
            self.take()
            items = []
            while not self.accept(")"):
                items.append(self.attr())
                self.accept(",")
            return tuple(items)
        text = self._expression()
        if text in ("true", "false"):
            return text == "true"
        if text == "none":
            return None
        if text in _DTYPES:
            return _DTYPES[text]
        if _NUMBER.match(text):
            return int(text)
        if _FLOAT.match(text):
            return {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}.get(text) or float(text)
        try:
            reads = parse_reads(text)
        except IRError as error:
            raise self._fail(str(error)) from None
        return self.dim(text) if reads is None else reads

    def dim(self, text: str) -> Dim:
        try:
            return parse_dim(text)
        except ParseError as error:
            raise self._fail(str(error)) from None
