"""Groups of options that several commands have: declared once, and given to a command as one value."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, TypeVar, get_type_hints

from inferir.cli import arguments as a

Fields = dict[str, Any]
"""Arguments of the object that the options describe, by name."""

Command = TypeVar("Command", bound=Callable[..., None])


def expanded(**groups: Callable[..., Any]) -> Callable[[Command], Command]:
    """Give a command, in place of each named parameter, the options that are the parameters of a function; the command
    then gets what that function makes of them.
    """

    def decorate(command: Command) -> Command:
        hints = get_type_hints(command, include_extras=True)
        parameters: list[inspect.Parameter] = []
        for name, parameter in inspect.signature(command).parameters.items():
            if name in groups:
                parameters += _parameters(groups[name])
            else:
                parameters.append(parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY))

        @functools.wraps(command)
        def run(**given: Any) -> None:
            for name, make in groups.items():
                given[name] = make(**{p.name: given.pop(p.name) for p in _parameters(make)})
            command(**given)

        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        return run  # type: ignore[return-value]

    return decorate


def _parameters(make: Callable[..., Any]) -> list[inspect.Parameter]:
    hints = get_type_hints(make, include_extras=True)
    parameters = inspect.signature(make).parameters.values()
    return [p.replace(annotation=hints[p.name], kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]


def compile_fields(
    dtype: a.Dtype = "auto",
    target: a.Target = "host",
    max_model_len: a.MaxModelLen = None,
    max_num_seqs: a.MaxNumSeqs = 64,
    max_num_batched_tokens: a.MaxNumBatchedTokens = 2048,
    block_size: a.BlockSize = 32,
    buckets: a.Buckets = None,
    opt_level: a.OptLevel = 2,
    enable_pass: a.EnablePass = None,
    disable_pass: a.DisablePass = None,
    no_trace_check: a.NoTraceCheck = False,
    revision: a.Revision = None,
    trust_remote_code: a.TrustRemoteCode = False,
) -> Fields:
    """Those of `CompileOptions`."""
    given = dict(locals())
    given["enabled_passes"] = frozenset(given.pop("enable_pass") or ())
    given["disabled_passes"] = frozenset(given.pop("disable_pass") or ())
    given["trace_check"] = not given.pop("no_trace_check")
    return given


def engine_fields(
    threads: a.Threads = None,
    kv_cache_memory: Annotated[
        str | None, a.option("SIZE", 'KV-cache memory, such as "2GiB". Default: half the free memory.')
    ] = None,
) -> Fields:
    """Those of `LLM` that say what it may take of the machine."""
    return dict(locals())
