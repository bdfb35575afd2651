"""`inferir bench latency|throughput|startup|serve`."""

from __future__ import annotations

import math
from typing import Annotated

import typer

from inferir.cli import arguments as a
from inferir.cli.bench_output import Output
from inferir.cli.checked_command import Command
from inferir.cli.shared_options import Fields, engine_fields, expanded, measured_output
from inferir.ir.system.quantities import count

app = typer.Typer(no_args_is_help=True, help="Measure latency, throughput, start-up, and a server under load.")

MOST = 1_000_000
"""Of anything that is counted or waited for: more is a slip of the keyboard."""

InputLen = Annotated[int, typer.Option(metavar="N", min=1, help="Random token ids per prompt.")]
OutputLen = Annotated[int, typer.Option(metavar="N", min=1, help="Tokens per answer.")]
NumPrompts = Annotated[int, typer.Option(metavar="N", min=1, max=MOST, help="How many prompts.")]
Repetitions = Annotated[int, typer.Option(metavar="N", min=1, max=MOST, help="How often it is measured.")]
Seed = Annotated[int, typer.Option(metavar="N", help="The same seed gives the same prompts.")]


@app.command(cls=Command)
@expanded(engine=engine_fields, output=measured_output)
def latency(
    artifact: a.Artifact,
    *,
    batch_size: Annotated[int, typer.Option(metavar="N", min=1, max=MOST, help="Prompts that run together.")] = 1,
    input_len: InputLen = 32,
    output_len: OutputLen = 32,
    repetitions: Repetitions = 10,
    warmup: Annotated[
        int, typer.Option(metavar="N", min=0, max=MOST, help="Repetitions before, which do not count.")
    ] = 1,
    seed: Seed = 0,
    engine: Fields,
    output: Output,
) -> None:
    """Seconds that one batch takes from its prompts to its last token."""
    from inferir.cli import bench_offline, bench_output, console

    summary, times = bench_offline.latency(
        artifact,
        batch_size=batch_size,
        input_len=input_len,
        output_len=output_len,
        repetitions=repetitions,
        warmup=warmup,
        seed=seed,
        **engine,
    )
    output.plot(f"Latency of {summary['model']}", "s", {"batch": times})
    if output.json:
        console.print_json(summary)
        return
    what = f"{summary['model']}: {input_len} + {output_len} tokens, batch size {batch_size}"
    console.show(
        console.plain(f"{what}, {count(repetitions, 'repetition')}"),
        bench_output.spread("Latency", [("batch", summary["seconds"])], "s"),
        console.plain(f"{summary['output_throughput']:,.1f} output tokens/s"),
    )


@app.command(cls=Command)
@expanded(engine=engine_fields, output=measured_output)
def throughput(
    artifact: a.Artifact,
    *,
    num_prompts: NumPrompts = 64,
    input_len: InputLen = 128,
    output_len: OutputLen = 64,
    seed: Seed = 0,
    max_num_seqs: Annotated[int | None, typer.Option(metavar="N", help="Prompts that run at once.")] = None,
    engine: Fields,
    output: Output,
) -> None:
    """Requests and tokens per second of many random prompts given at once, without the prefix cache."""
    from inferir.cli import bench_offline, bench_output, console

    summary, times = bench_offline.throughput(
        artifact,
        num_prompts=num_prompts,
        input_len=input_len,
        output_len=output_len,
        seed=seed,
        max_num_seqs=max_num_seqs,
        **engine,
    )
    output.plot(f"Throughput of {summary['model']}", "s", {"request": times})
    if output.json:
        console.print_json(summary)
        return
    rows = [
        ("seconds", summary["seconds"]),
        ("requests/s", summary["request_throughput"]),
        ("output tokens/s", summary["output_throughput"]),
        ("total tokens/s", summary["total_throughput"]),
    ]
    what = f"{summary['model']}: {count(num_prompts, 'prompt')} of {input_len} + {output_len} tokens"
    console.show(console.plain(what), bench_output.values("Throughput", rows))


@app.command(cls=Command)
@expanded(engine=engine_fields, output=measured_output)
def startup(
    artifact: a.Artifact,
    *,
    repetitions: Repetitions = 5,
    timeout: Annotated[
        float, typer.Option(metavar="S", min=1, max=MOST, help="Seconds after which a start has failed.")
    ] = 120.0,
    engine: Fields,
    output: Output,
) -> None:
    """Seconds that fresh processes take: `LLM` to its first token, `inferir serve` until it is ready."""
    from inferir.cli import bench_output, bench_startup, console

    summary, times = bench_startup.startup(artifact, repetitions=repetitions, timeout=timeout, **engine)
    names = {
        "llm_first_token": "LLM: first token",
        "serve_listening": "serve: listening",
        "serve_ready": "serve: ready",
    }
    output.plot(f"Start-up of {artifact.name}", "s", {names[k]: v for k, v in times.items()})
    if output.json:
        console.print_json(summary)
        return
    title = f"{artifact.name}: {count(repetitions, 'start')} of fresh processes each"
    console.show(bench_output.spread(title, [(names[k], v) for k, v in summary["seconds"].items()], "s"))


@app.command(cls=Command)
@expanded(output=measured_output)
def serve(
    *,
    url: Annotated[str, typer.Option(metavar="URL", help="The server's address.")] = "http://127.0.0.1:8000",
    model: Annotated[str | None, typer.Option(metavar="NAME", help="Default: the server's first model.")] = None,
    api_key: Annotated[str | None, typer.Option(metavar="KEY", help="Key that the server wants.")] = None,
    uds: Annotated[str | None, typer.Option(metavar="PATH", help="Reach the server at this Unix socket.")] = None,
    num_prompts: NumPrompts = 64,
    input_len: InputLen = 128,
    output_len: OutputLen = 64,
    prefix_len: Annotated[
        int, typer.Option(metavar="N", min=0, help="Token ids before each prompt that all prompts share.")
    ] = 0,
    vocab_size: Annotated[int, typer.Option(metavar="N", min=1, help="Token ids are drawn below this.")] = 256,
    max_concurrency: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Requests under way at most. Default: no limit.")
    ] = None,
    request_rate: Annotated[
        float, typer.Option(metavar="X", help="Requests per second, at random times. Default: all at once.")
    ] = math.inf,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on after an end-of-text token.")] = False,
    temperature: a.Temperature = 0.0,
    goodput: Annotated[
        list[str] | None,
        typer.Option(metavar="GOALS", help='Count requests within "ttft:MS tpot:MS e2e:MS". May be repeated.'),
    ] = None,
    timeout: Annotated[
        float, typer.Option(metavar="S", min=0.001, max=MOST, help="Seconds after which a request has failed.")
    ] = 300.0,
    seed: Seed = 0,
    output: Output,
) -> None:
    """Send completions to a running server, and measure what its users would see."""
    from inferir.cli import bench_load, bench_metrics, bench_serve_report
    from inferir.cli.http_client import Client
    from inferir.cli.progress import progress_bars

    if not request_rate > 0:
        raise typer.BadParameter("must be more than 0", param_hint="--request-rate")
    goals = bench_metrics.parse_goals(goodput or [])
    load = bench_load.Load(
        num_prompts=num_prompts,
        input_len=input_len,
        output_len=output_len,
        prefix_len=prefix_len,
        vocab_size=vocab_size,
        max_concurrency=max_concurrency,
        rate=request_rate,
        ignore_eos=ignore_eos,
        temperature=temperature,
        seed=seed,
        timeout=timeout,
    )
    with progress_bars() as progress:
        name, records = bench_load.run_load(Client(url, api_key, uds), model, load, progress)
    bench_serve_report.report(name, load, records, goals, output)
    if any(r.error is not None for r in records):
        raise typer.Exit(1)
