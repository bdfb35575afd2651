"""What a process logs, and how a line looks: `inferir: LEVEL: ROOM: MESSAGE` on standard error.

A room is a folder of the package: a logger `inferir.codegen.cache.store` belongs to the room `codegen`. `INFERIR_LOG`
says how much each of them logs: `debug`, or `info,codegen=debug`. Nothing is set up on import: a program that uses
Inferir as a library has logging of its own.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import inferir
from inferir.ir.errors import InferirError
from inferir.ir.system.error_report import one_line

VARIABLE = "INFERIR_LOG"
LEVELS = ("debug", "info", "warning", "error")
USUAL = "warning"
_ROOT = "inferir"


@dataclass(frozen=True)
class LogLevels:
    """`level` holds for every room that `rooms` does not name; None: nothing is said about those."""

    level: str | None
    rooms: Mapping[str, str]


def room_names() -> list[str]:
    """The folders of the package, which are what levels can be given for."""
    package = Path(next(iter(inferir.__path__)))
    return sorted(p.name for p in package.iterdir() if (p / "__init__.py").is_file())


def parse_levels(text: str) -> LogLevels:
    """Levels of text such as "info,codegen=debug". Raises `InferirError` naming the variable for anything else."""
    level: str | None = None
    rooms: dict[str, str] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        room, equals, name = (p.strip() for p in part.lower().rpartition("="))
        if name not in LEVELS:
            raise _bad(text, f"{name!r} is no level; levels are {', '.join(LEVELS)}")
        if (room in rooms) if equals else level is not None:
            raise _bad(text, f"{part!r} is a second level for {room or 'all rooms'}")
        if not equals:
            level = name
        elif room in (known := room_names()):
            rooms[room] = name
        else:
            raise _bad(text, f"{room!r} is no room; rooms are {', '.join(known)}")
    return LogLevels(level, rooms)


def _bad(text: str, reason: str) -> InferirError:
    return InferirError(
        f"the environment variable {VARIABLE} is {text!r}: {reason}; "
        "give a level, and levels of rooms, such as info,codegen=debug"
    )


def set_levels(option: str | None = None, usual: str = USUAL, environ: Mapping[str, str] = os.environ) -> None:
    """Let every room log what INFERIR_LOG says. For rooms that it does not name, a command's `option` comes before its
    plain level, and `usual` holds where neither is given. Raises `InferirError` for a value that is not understood.
    """
    levels = parse_levels(environ.get(VARIABLE, ""))
    _logger().setLevel((option or levels.level or usual).upper())
    for room in room_names():
        _logger(room).setLevel(levels.rooms.get(room, "notset").upper())


def levels_text() -> str:
    """What this process logs, as a value of INFERIR_LOG, for a child that is to log the same."""
    own = {room: _logger(room).level for room in room_names()}
    parts = [_name(_logger().getEffectiveLevel()), *(f"{r}={_name(n)}" for r, n in own.items() if n != logging.NOTSET)]
    return ",".join(parts)


def write_to(stream: TextIO) -> None:
    """Write what the package logs to `stream`, and nowhere else."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LineFormat())
    _logger().addHandler(handler)
    _logger().propagate = False
    logging.raiseExceptions = False  # a line of the log that cannot be written is lost, and nothing else


class LineFormat(logging.Formatter):
    """`inferir: warning: codegen: …` on one line."""

    def format(self, record: logging.LogRecord) -> str:
        room = record.name.removeprefix(_ROOT).lstrip(".").partition(".")[0]
        where = f"{room}: " if room else ""
        return f"inferir: {record.levelname.lower()}: {where}{one_line(record.getMessage())}"


def _logger(room: str = "") -> logging.Logger:
    return logging.getLogger(f"{_ROOT}.{room}" if room else _ROOT)


def _name(level: int) -> str:
    """The least of `LEVELS` that shows nothing below `level`."""
    return next((name for name in LEVELS if getattr(logging, name.upper()) >= level), LEVELS[-1])
