"""The command line. Importing it and showing help loads nothing heavy: a command imports what it needs when it runs."""

from __future__ import annotations

import signal
import sys
import warnings
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from inferir import __version__
from inferir.cli import bench_command as bench
from inferir.cli import cache_command as cache
from inferir.cli import chat_command as chat
from inferir.cli import command_failures as failures
from inferir.cli import compile_command as compile_model
from inferir.cli import doctor_command as doctor
from inferir.cli import inspect_command as inspect
from inferir.cli import plan_command as plan
from inferir.cli import plugins_command as plugins
from inferir.cli import profile_command as profile
from inferir.cli import run_command as run
from inferir.cli import serve_command as serve
from inferir.cli import streams
from inferir.cli import tune_command as tune
from inferir.cli import verify_command as verify
from inferir.cli.checked_command import Command
from inferir.ir.system import env, log_levels


class _Group(TyperGroup):
    """The top-level group: every command's errors become one line and an exit status."""

    def invoke(self, ctx: Any) -> Any:
        with failures.one_line_errors():
            log_levels.set_levels()
            return super().invoke(ctx)


_VARIABLES = "\n\n".join(f"{v.name} ({v.values}; default {v.default}): {v.why}." for v in env.VARIABLES)

app = typer.Typer(
    name="inferir",
    cls=_Group,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=f"Environment:\n\n{_VARIABLES}",
)
app.command("compile", cls=Command)(compile_model.command)
app.command(cls=Command)(serve.serve)
app.command(cls=Command)(run.run)
app.command(cls=Command)(chat.chat)
app.command(cls=Command)(verify.verify)
app.command(cls=Command)(inspect.inspect)
app.command(cls=Command)(plan.plan)
app.command(cls=Command)(plugins.plugins)
app.command(cls=Command)(doctor.doctor)
app.command(cls=Command)(tune.tune)
app.command(cls=Command)(profile.profile)
app.add_typer(bench.app, name="bench")
app.add_typer(cache.app, name="cache")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"inferir {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Compile a language model ahead of time into an artifact, and serve that artifact."""


def main() -> None:
    streams.prepare()
    _reset_signals()
    _quieten_libraries()
    sys.exit(failures.run(app))


def _reset_signals() -> None:
    """Undo what a parent left: blocked signals would make us deaf, and ignored ends of children look like success."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM})
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def _quieten_libraries() -> None:
    """Our own warnings become one line each; those of libraries are shown only with INFERIR_DEBUG=1."""
    log_levels.write_to(sys.stderr)
    warnings.simplefilter("default")
    warnings.showwarning = _show_warning  # type: ignore[assignment]


def _show_warning(message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: Any) -> None:
    debug = failures.wants_debug()
    if debug or category.__module__.startswith("inferir."):
        failures.warn(f"{message} ({filename}:{lineno})" if debug else str(message))
