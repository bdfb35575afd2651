"""`inferir bench latency|throughput|startup|serve`."""

from __future__ import annotations

import math
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from inferir.cli import arguments as a
from inferir.cli.bench_options import MOST, InputLen, Load, NumPrompts, OutputLen, Repetitions, Seed
from inferir.cli.bench_output import Output, spread, values
from inferir.cli.checked_command import Command
from inferir.cli.console import plain
from inferir.cli.shared_options import Fields, engine_fields, expanded
from inferir.ir.errors import InferirError
from inferir.ir.system.quantities import count

if TYPE_CHECKING:
    from inferir.api.llm import LLM, RequestOutput

app = typer.Typer(no_args_is_help=True, help="Measure latency, throughput, start-up, and a server under load.")


@app.command(cls=Command)
@expanded(engine=engine_fields, output=Output)
def latency(
    artifact: a.Artifact,
    *,
    batch_size: Annotated[int, a.option("N", "Prompts that run together.", min=1, max=MOST)] = 1,
    input_len: InputLen = 32,
    output_len: OutputLen = 32,
    repetitions: Repetitions = 10,
    warmup: Annotated[int, a.option("N", "Repetitions before, which do not count.", min=0, max=MOST)] = 1,
    seed: Seed = 0,
    engine: Fields,
    output: Output,
) -> None:
    """Seconds that one batch takes from its prompts to its last token."""
    from inferir.api.llm import LLM
    from inferir.cli.bench_metrics import distribution

    with LLM(artifact, max_num_seqs=batch_size, enable_prefix_caching=False, **engine) as llm:
        prompts = _fitting_prompts(llm, seed, batch_size * (warmup + repetitions), input_len, output_len)
        batches = [prompts[at : at + batch_size] for at in range(0, len(prompts), batch_size)]
        times = [_generate(llm, batch, output_len)[0] for batch in batches][warmup:]
    name, seconds = llm.manifest.model.name, distribution(times)
    rate = batch_size * output_len / seconds["mean"]
    summary = {
        "model": name,
        "batch_size": batch_size,
        "input_len": input_len,
        "output_len": output_len,
        "repetitions": repetitions,
        "seconds": seconds,
        "output_throughput": rate,
    }
    what = f"{name}: {input_len} + {output_len} tokens, batch size {batch_size}, {count(repetitions, 'repetition')}"
    output.plot(f"Latency of {name}", "s", {"batch": times})
    output.show(
        summary, plain(what), spread("Latency", [("batch", seconds)], "s"), plain(f"{rate:,.1f} output tokens/s")
    )


@app.command(cls=Command)
@expanded(engine=engine_fields, output=Output)
def throughput(
    artifact: a.Artifact,
    *,
    num_prompts: NumPrompts = 64,
    input_len: InputLen = 128,
    output_len: OutputLen = 64,
    seed: Seed = 0,
    max_num_seqs: Annotated[int | None, a.option("N", "Prompts that run at once.")] = None,
    engine: Fields,
    output: Output,
) -> None:
    """Requests and tokens per second of many random prompts given at once, without the prefix cache."""
    from inferir.api.llm import LLM

    with LLM(artifact, enable_prefix_caching=False, max_num_seqs=max_num_seqs, **engine) as llm:
        prompts = _fitting_prompts(llm, seed, num_prompts + 1, input_len, output_len)
        _generate(llm, prompts[:1], output_len)
        seconds, outputs = _generate(llm, prompts[1:], output_len)
    name, prompt, answered = llm.manifest.model.name, num_prompts * input_len, num_prompts * output_len
    rates = {
        "request_throughput": num_prompts / seconds,
        "output_throughput": answered / seconds,
        "total_throughput": (prompt + answered) / seconds,
    }
    summary = {
        "model": name,
        "num_prompts": num_prompts,
        "input_len": input_len,
        "output_len": output_len,
        "seconds": seconds,
        "prompt_tokens": prompt,
        "output_tokens": answered,
        **rates,
    }
    timings = [out.outputs[0].timing for out in outputs]
    output.plot(f"Throughput of {name}", "s", {"request": [t.e2e for t in timings if t.e2e is not None]})
    rows = zip(("seconds", "requests/s", "output tokens/s", "total tokens/s"), (seconds, *rates.values()), strict=True)
    what = f"{name}: {count(num_prompts, 'prompt')} of {input_len} + {output_len} tokens"
    output.show(summary, plain(what), values("Throughput", list(rows)))


def _fitting_prompts(llm: LLM, seed: int, count: int, input_len: int, output_len: int) -> list[list[int]]:
    """Random prompts. Raises `InferirError` if they are too long."""
    from inferir.cli.bench_metrics import random_prompts

    tokens, most = input_len + output_len, llm.engine.limits.max_model_len
    if tokens > most:
        raise InferirError(f"requests of {tokens} tokens, prompt and answer, are too long for the artifact ({most})")
    return random_prompts(seed, count, input_len, llm.manifest.model.vocab_size)


def _generate(llm: LLM, prompts: list[list[int]], output_len: int) -> tuple[float, list[RequestOutput]]:
    """Seconds and answers of `output_len` tokens each. Raises `InferirError` if one is shorter."""
    from inferir.api.llm import SamplingParams

    params = SamplingParams(max_tokens=output_len, temperature=0.0, ignore_eos=True)
    begin = time.perf_counter()
    outputs = llm.generate(prompts, params)
    seconds = time.perf_counter() - begin
    for out in outputs:
        if len(out.token_ids) != output_len:
            reason = out.outputs[0].error or out.finish_reason
            raise InferirError(f"an answer ended after {len(out.token_ids)} of {output_len} tokens: {reason}")
    return seconds, outputs


@app.command(cls=Command)
@expanded(engine=engine_fields, output=Output)
def startup(
    artifact: a.Artifact,
    *,
    repetitions: Repetitions = 5,
    timeout: Annotated[float, a.option("S", "Seconds after which a start has failed.", min=1, max=MOST)] = 120.0,
    engine: Fields,
    output: Output,
) -> None:
    """Seconds that fresh processes take: `LLM` to its first token, `inferir serve` until it is ready."""
    from inferir.cli import bench_startup

    summary, times = bench_startup.startup(artifact, repetitions=repetitions, timeout=timeout, **engine)
    names = {
        "llm_first_token": "LLM: first token",
        "serve_listening": "serve: listening",
        "serve_ready": "serve: ready",
    }
    output.plot(f"Start-up of {artifact.name}", "s", {names[k]: v for k, v in times.items()})
    title = f"{artifact.name}: {count(repetitions, 'start')} of fresh processes each"
    output.show(summary, spread(title, [(names[k], v) for k, v in summary["seconds"].items()], "s"))


@app.command(cls=Command)
@expanded(load=Load, output=Output)
def serve(
    *,
    url: Annotated[str, a.option("URL", "The server's address.")] = "http://127.0.0.1:8000",
    model: Annotated[str | None, a.option("NAME", "Default: the server's first model.")] = None,
    api_key: Annotated[str | None, a.option("KEY", "Key that the server wants.")] = None,
    uds: Annotated[str | None, a.option("PATH", "Reach the server at this Unix socket.")] = None,
    load: Load,
    goodput: Annotated[
        list[str] | None, a.option("GOALS", 'Count requests within "ttft:MS tpot:MS e2e:MS". May be repeated.')
    ] = None,
    output: Output,
) -> None:
    """Send completions to a running server, and measure what its users would see."""
    from inferir.cli.bench_load import run_load
    from inferir.cli.bench_metrics import METRICS, load_summary, parse_goals, samples
    from inferir.cli.console import progress_bars
    from inferir.cli.http_client import Client

    goals = parse_goals(goodput or [])
    with progress_bars() as progress:
        name, records = run_load(Client(url, api_key, uds), model, load, progress)
    found = load_summary(records, goals)
    rate = None if math.isinf(load.rate) else load.rate
    rows = [
        ("completed requests", found["completed"]),
        ("failed requests", found["failed"]),
        ("seconds", found["duration_s"]),
        ("prompt tokens", found["prompt_tokens"]),
        ("output tokens", found["output_tokens"]),
        ("requests/s", found["request_throughput"]),
        ("output tokens/s", found["output_throughput"]),
        ("total tokens/s", found["total_throughput"]),
        ("goodput, requests/s", found["goodput"]),
    ]
    lengths = f"{load.prefix_len + load.input_len} + {load.output_len} tokens"
    output.plot(f"Load on {name}", "ms", {n.upper(): v for n, v in samples(records).items()})
    output.show(
        {"model": name, "load": {**asdict(load), "rate": rate}, "goals": goals, **found},
        plain(f"{name}: {count(load.num_prompts, 'prompt')} of {lengths}"),
        values("Load", rows),
        spread("Times", [(n.upper(), found[f"{n}_ms"]) for n in METRICS], "ms"),
        *(plain(f"failed {n} times: {e}") for e, n in found["errors"].items()),
    )
    if found["failed"]:
        raise typer.Exit(1)
