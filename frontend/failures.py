"""Explain why a model could not be traced: which module, which operator, which source line, and what to do about it."""

from __future__ import annotations

import linecache
import os
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch

from inferir.frontend.huggingface import one_line
from inferir.ir.errors import InferirError, UntraceableError

_LIBRARIES = (
    os.sep + os.path.join("site-packages", "torch") + os.sep,
    os.path.dirname(os.path.abspath(__file__)) + os.sep,
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


def _frames(error: BaseException) -> list[tuple[FrameType, int]]:
    out = []
    tb = error.__traceback__
    while tb is not None:
        out.append((tb.tb_frame, tb.tb_lineno))
        tb = tb.tb_next
    return out


def locate(error: BaseException, model: torch.nn.Module) -> tuple[Site, str]:
    """The innermost module of `model` and model source line in the traceback, and the operator that ran there ("" if
    none).
    """
    names = {id(module): name for name, module in model.named_modules()}
    path, site, operator = "", None, ""
    for frame, line in _frames(error):
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
    if "Constraints violated" in text or "specialized" in text:
        return "the code depends on the number of tokens; it must be correct for any number"
    return "check that the model runs in plain PyTorch, and that this version of transformers supports it"


def _guard_site(error: BaseException) -> str:
    """The source line of the last shape guard, for errors that torch raises after the forward has returned."""
    seen: BaseException | None = error
    while seen is not None:
        for frame, _ in _frames(seen):
            env: Any = next((v for v in frame.f_locals.values() if type(v).__name__ == "ShapeEnv"), None)
            if env is not None:
                places = [str(guard.sloc) for guard in env.guards]
                return f" (guard from {short_path(places[-1])})" if places else ""
        seen = seen.__cause__ or seen.__context__
    return ""


def explain(error: BaseException, model: torch.nn.Module) -> InferirError:
    """An `UntraceableError` for whatever was raised while `model` was traced; the message is one line."""
    site, operator = locate(error, model)
    if isinstance(error, InferirError):
        text = str(error)
        return UntraceableError(f"{text}; in {site}" if str(site) and site.module not in text else text)
    reason = one_line(str(error).split("\n\n")[0], 240)
    op = f" at operator {operator}" if operator else ""
    where = f" in {site}" if str(site) else _guard_site(error)
    return UntraceableError(
        f"cannot trace{where}{op}: {type(error).__name__}: {reason}. Hint: {_hint(error, site.code)}"
    )
