"""Explain why a model could not be traced: which module, which operator, which source line, and what to do about it."""

from __future__ import annotations

import contextlib
import linecache
import os
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from inferir.frontend.checkpoint.huggingface import one_line
from inferir.ir.errors import InferirError, UntraceableError

_LIBRARIES = (
    os.sep + os.path.join("site-packages", "torch") + os.sep,
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep,
)


@dataclass(frozen=True)
class Site:
    """Where in the model's code something happened."""

    module: str
    file: str
    line: int
    code: str

    def __str__(self) -> str:
        where = f"module {self.module!r} " if self.module else ""
        return f"{where}({self.file}:{self.line}: {self.code})" if self.file else where.strip()


def short_path(path: str) -> str:
    """A source path from its package folder on."""
    marker = "site-packages" + os.sep
    return path.split(marker)[-1] if marker in path else path


def locate(error: BaseException, model: torch.nn.Module) -> tuple[Site, str]:
    """The innermost module of `model` and model source line in the traceback, and the operator that ran there ("" if
    none).
    """
    names = {id(module): name for name, module in model.named_modules()}
    path, site, operator = "", None, ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        owner: Any = frame.f_locals.get("self")
        if isinstance(owner, torch.nn.Module):
            path = names.get(id(owner), path)
        file = frame.f_code.co_filename
        if any(library in file for library in _LIBRARIES) or not os.path.exists(file):
            if site is not None and not operator:
                ops = (v for v in frame.f_locals.values() if isinstance(v, torch._ops.OpOverload))
                operator = str(next(ops, ""))
        elif path:
            site, operator = Site(path, short_path(file), line, linecache.getline(file, line).strip()), ""
    return site or Site(path, "", 0, ""), operator


def _hint(error: BaseException, code: str) -> str:
    kind, text = type(error).__name__, str(error)
    if "numpy" in text or ".numpy(" in code or "np." in code:
        return "numpy in forward hides the computation from the trace; write it with torch operators"
    if "data-dependent" in text or "DataDependent" in kind or ".item(" in code or ".tolist(" in code:
        return "a branch or a size depends on tensor values; use torch.where, or make it depend on the config only"
    return "check that the model runs in plain PyTorch, and that this version of transformers supports it"


@contextlib.contextmanager
def guards_by_module(model: torch.nn.Module) -> Iterator[list[tuple[str, Any]]]:
    """Collects (module, shape guard) for the time of one trace, by hooks around the forward of every module.

    A shape guard that appears between two module boundaries was made by the module that runs there.
    """
    names = {id(module): name for name, module in model.named_modules()}
    found: list[tuple[str, Any]] = []
    running: list[str] = []
    seen: list[Any] = []
    env: Any = None

    def attribute() -> None:
        new = env.guards[len(seen) :] if env is not None else []
        if running:
            found.extend((running[-1], guard) for guard in new)
        seen.extend(new)

    def enter(module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        nonlocal env
        if env is None:
            tensors = [v for v in (*args, *kwargs.values()) if isinstance(v, torch.Tensor)]
            nodes = [getattr(size, "node", None) for tensor in tensors for size in tensor.shape]
            env = next((node.shape_env for node in nodes if node is not None), None)
        attribute()
        running.append(names[id(module)])

    def leave(module: torch.nn.Module, args: Any, out: Any) -> None:
        attribute()
        running.pop()

    with contextlib.ExitStack() as hooks:
        for module in model.modules():
            hooks.callback(module.register_forward_pre_hook(enter, with_kwargs=True).remove)
            hooks.callback(module.register_forward_hook(leave).remove)
        yield found


def explain_sizes(error: BaseException, model: torch.nn.Module, retrace: Callable[[], object]) -> UntraceableError:
    """An `UntraceableError` for a trace that holds for some token counts only; `retrace` traces `model` once more."""
    with guards_by_module(model) as found, contextlib.suppress(Exception):
        retrace()
    hint = "the code depends on the number of tokens; it must be correct for any number"
    # That two inputs have one length is no restriction.
    found = [(module, guard) for module, guard in found if len(guard.expr.free_symbols) == 1]
    if not found:
        return UntraceableError(f"cannot trace: {one_line(error, 240)}. Hint: {hint}")
    module, guard = found[0]
    module = module or type(model).__name__
    (symbol,) = guard.expr.free_symbols
    condition = str(guard.expr).replace(str(symbol), "tokens")
    place = str(guard.sloc).strip("()").split(" in ")[0]  # torch shortens the path
    internal = any(part in place for part in ("torch/", "_export/", "_subclasses/", "_prims", "_refs/", "_ops.py"))
    where = "" if internal or not place else f" ({os.path.basename(place)})"
    return UntraceableError(
        f"cannot trace in module {module!r}{where}: the trace holds only where {condition}. Hint: {hint}"
    )


def explain(error: BaseException, model: torch.nn.Module) -> InferirError:
    """An `UntraceableError` for whatever was raised while `model` was traced; the message is one line."""
    site, operator = locate(error, model)
    if isinstance(error, InferirError):
        text = str(error)
        return UntraceableError(f"{text}; in {site}" if str(site) and site.module not in text else text)
    reason = one_line(str(error).split("\n\n")[0], 240).rstrip(".")
    op = f" at operator {operator}" if operator else ""
    where = f" in {site}" if str(site) else ""
    return UntraceableError(
        f"cannot trace{where}{op}: {type(error).__name__}: {reason}. Hint: {_hint(error, site.code)}"
    )
