"""Reading module text quickly: the subset of TVMScript that kernels are written in.

TVM's own parser evaluates every node of every expression by itself, which costs about a millisecond per line and would
be most of a build. Here each statement's expressions are evaluated in one go against the same builder functions. The
result is the same module; text that uses anything else, or that has an error, is handed to TVM's parser, whose messages
name the place.
"""

from __future__ import annotations

import ast
import gc
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import tvm.script
from tvm import tirx
from tvm.ir import Call, Expr
from tvm.script import ir
from tvm.script import tirx as script
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import ir as ir_builder
from tvm.tirx import PrimFunc, const, is_buffer_var
from tvm.tirx.script import builder
from tvm.tirx.script.builder import LetAnnotation


class _UnsupportedError(Exception):
    """The text uses something this reader does not know."""


def parse_module(source: str, variables: Mapping[str, Any]) -> Any:
    """The IRModule of module text. `variables` are the names the text may use besides `I`, `T` and its own functions.

    Raises what TVM's parser raises for text it refuses.
    """
    names = {"I": ir, "T": script, **variables}
    with _without_garbage_collection():
        try:
            return _Reader(source, names).module()
        except Exception:
            return tvm.script.from_source(source, names)


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Parsing makes many short-lived objects; looking for cycles among them costs a fifth of its time."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


class _Operators(ast.NodeTransformer):
    """Comparisons, `and` and `or` become calls: on TVM expressions Python's own would ask for a truth value."""

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, _FOREIGN):
            raise _UnsupportedError(type(node).__name__)
        self.generic_visit(node)
        if isinstance(node, ast.BoolOp):
            return self._call("__logical__", node.op, node.values)
        if not isinstance(node, ast.Compare):
            return node
        if len(node.ops) != 1:
            raise _UnsupportedError(ast.unparse(node))
        return self._call("__compare__", node.ops[0], [node.left, *node.comparators])

    @staticmethod
    def _call(function: str, operator: ast.AST, operands: list[ast.expr]) -> ast.Call:
        return ast.Call(ast.Name(function, ast.Load()), [ast.Constant(type(operator).__name__), *operands], [])


_FOREIGN = (ast.IfExp, ast.Slice, ast.Lambda, ast.Starred, ast.ListComp)


def _compare(name: str, a: Any, b: Any) -> Any:
    functions = {"Eq": "EQ", "NotEq": "NE", "Lt": "LT", "LtE": "LE", "Gt": "GT", "GtE": "GE"}
    if isinstance(a, int | float):
        a = tirx.const(a, str(b.ty.dtype))
    if isinstance(b, int | float):
        b = tirx.const(b, str(a.ty.dtype))
    return getattr(tirx, functions[name])(a, b)


def _logical(name: str, *values: Any) -> Any:
    result = values[0]
    for value in values[1:]:
        if not (result.ty.is_scalar() and value.ty.is_scalar()):
            result = result & value if name == "And" else result | value
        else:
            result = getattr(tirx, name)(result, value)
    return result


class _Reader:
    """Runs module text against TVM's IR builder."""

    def __init__(self, source: str, names: Mapping[str, Any]) -> None:
        self._tree = ast.parse(source)
        self._scope: ChainMap[str, Any] = ChainMap(dict(names))
        self._globals = {"__builtins__": {}, "__compare__": _compare, "__logical__": _logical}
        self._statements: dict[type, Callable[[Any], None]] = {
            ast.Assign: self._assign,
            ast.AnnAssign: self._let,
            ast.Expr: self._expression,
            ast.For: self._for,
            ast.While: self._while,
            ast.If: self._if,
            ast.With: self._with,
            ast.Return: self._return,
        }

    def module(self) -> Any:
        (module,) = self._tree.body
        if not isinstance(module, ast.ClassDef):
            raise _UnsupportedError("a module is a class")
        functions = [f for f in module.body if isinstance(f, ast.FunctionDef)]
        if len(functions) != len(module.body):
            raise _UnsupportedError("a module holds functions only")
        with IRBuilder() as build:
            with ir_builder.ir_module():
                self._scope[module.name] = SimpleNamespace(**{f.name: self._declare(f) for f in functions})
                for function in functions:
                    self._define(function)
            return build.get()

    def _value(self, node: ast.expr) -> Any:
        expression = ast.Expression(_Operators().visit(node))
        ast.fix_missing_locations(expression)
        return eval(compile(expression, "<kernel>", "eval"), self._globals, self._scope)

    def _run(self, body: list[ast.stmt], name: str = "", value: Any = None) -> None:
        """Run statements in a scope of their own, in which `name` is bound to `value`."""
        self._scope = self._scope.new_child()
        if name:
            self._bind(name, value)
        for statement in body:
            if type(statement) not in self._statements:
                raise _UnsupportedError(type(statement).__name__)
            self._statements[type(statement)](statement)
        self._scope = self._scope.parents

    def _bind(self, name: str, value: Any) -> None:
        IRBuilder.name(name, value)
        self._scope[name] = value

    def _annotation(self, node: ast.expr | None) -> Any:
        if node is None:
            raise _UnsupportedError("parameters and results need a type")
        value = self._value(node)
        return value() if callable(value) and not hasattr(value, "ty") else value

    def _declare(self, node: ast.FunctionDef) -> Callable[..., Any]:
        params = [self._annotation(a.annotation) for a in node.args.args]
        result = self._annotation(node.returns).ty
        function = ir_builder.decl_function(node.name, PrimFunc(params, None, ret_type=result))
        return lambda *args: Call(function, args, ret_ty=result)

    def _define(self, node: ast.FunctionDef) -> None:
        (decorator,) = node.decorator_list
        private = isinstance(decorator, ast.Call) and any(
            k.arg == "private" and ast.literal_eval(k.value) for k in decorator.keywords
        )
        outer = self._scope
        self._scope = outer.new_child()
        with builder.prim_func(is_private=private):
            builder.func_name(node.name)
            for a in node.args.args:
                self._scope[a.arg] = builder.arg(a.arg, self._annotation(a.annotation))
            builder.func_ret(self._annotation(node.returns).ty)
            self._run(node.body)
        self._scope = outer

    def _assign(self, node: ast.Assign) -> None:
        (target,) = node.targets
        value = self._value(node.value)
        if isinstance(target, ast.Subscript):
            at = target.slice
            parts = at.elts if isinstance(at, ast.Tuple) else [at]
            builder.buffer_store(self._value(target.value), value, [self._value(p) for p in parts])
        elif isinstance(target, ast.Name) and is_buffer_var(value) and target.id not in self._scope:
            self._bind(target.id, value)
        else:
            raise _UnsupportedError(ast.unparse(node))

    def _let(self, node: ast.AnnAssign) -> None:
        annotation = self._value(node.annotation)
        if not isinstance(annotation, LetAnnotation) or not isinstance(node.target, ast.Name) or node.value is None:
            raise _UnsupportedError(ast.unparse(node))
        value = self._value(node.value)
        if not isinstance(value, Expr):
            value = const(value)
        variable = annotation.as_var() if annotation.type_spec is not None else annotation.as_var(rhs_dtype=value.ty)
        self._bind(node.target.id, variable)
        builder.Bind(value, var=variable)

    def _expression(self, node: ast.Expr) -> None:
        if self._value(node.value) is not None:
            raise _UnsupportedError(ast.unparse(node))

    def _for(self, node: ast.For) -> None:
        if not isinstance(node.target, ast.Name) or not isinstance(node.iter, ast.Call) or node.orelse:
            raise _UnsupportedError(ast.unparse(node))
        function = node.iter.func
        if isinstance(function, ast.Name) and function.id == "range":
            bounds = [self._value(a) for a in node.iter.args]
            loop = builder.serial(*([0, *bounds] if len(bounds) == 1 else bounds[:2]))
            if len(bounds) > 2 or node.iter.keywords:
                raise _UnsupportedError(ast.unparse(node))
        else:
            loop = self._value(node.iter)
        with loop as variable:
            self._run(node.body, node.target.id, variable)

    def _while(self, node: ast.While) -> None:
        with builder.While(self._value(node.test)):
            self._run(node.body)

    def _if(self, node: ast.If) -> None:
        test = self._value(node.test)
        if isinstance(test, bool):
            raise _UnsupportedError("a constant condition")
        with builder.If(test):
            with builder.Then():
                self._run(node.body)
            if node.orelse:
                with builder.Else():
                    self._run(node.orelse)

    def _with(self, node: ast.With) -> None:
        (item,) = node.items
        if item.optional_vars is not None:
            raise _UnsupportedError(ast.unparse(node))
        with self._value(item.context_expr):
            self._run(node.body)

    def _return(self, node: ast.Return) -> None:
        if node.value is None:
            raise _UnsupportedError("return without a value")
        builder.Return(self._value(node.value))
