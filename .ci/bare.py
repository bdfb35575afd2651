"""Check the wheel as a user has it: everything is in it, and alone it serves an artifact but does not compile.

    python .ci/bare.py WHEEL ENVIRONMENT ARTIFACT

WHEEL: installed in ENVIRONMENT, a virtual environment that holds only what the wheel asks for.
ARTIFACT: a model compiled elsewhere.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai

from inferir.ir.system.extras import LIBRARIES

SOURCES = Path(__file__).resolve().parents[1] / "src" / "inferir"
ABSENT = sorted(
    {*LIBRARIES["compile"], "onnx", "matplotlib", "tvm_ffi"} - {"huggingface_hub"}
)  # tokenizers need the hub
SECONDS = 60

LOOK = """
import importlib.util, inferir, sys
print(inferir.__file__)
print(*[name for name in sys.argv[1:] if importlib.util.find_spec(name) is not None])
"""
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "people": {"type": "integer"}},
    "required": ["city", "people"],
    "additionalProperties": False,
}


def check_contents(wheel: Path) -> None:
    """The wheel holds every file of the package, and no other."""
    built = {n for n in zipfile.ZipFile(wheel).namelist() if n.startswith("inferir/")}
    there = set()
    for folder, _, names in os.walk(SOURCES, followlinks=True):
        if Path(folder).name != "__pycache__":
            there |= {f"inferir/{(Path(folder) / n).relative_to(SOURCES)}" for n in names if not n.startswith(".")}
    assert built == there, f"not in the wheel: {sorted(there - built)}; only in the wheel: {sorted(built - there)}"


class Bare:
    """The environment. Its commands run in an empty folder and see nothing of the caller's Python."""

    def __init__(self, environment: Path) -> None:
        self.programs = environment.resolve() / "bin"
        self.place = tempfile.mkdtemp()
        self.variables = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))}

    def run(self, program: str, *arguments: object, status: int = 0) -> tuple[str, str]:
        """What a command prints, and its errors. It must end with `status`."""
        done = subprocess.run(
            self.command(program, *arguments), cwd=self.place, env=self.variables, capture_output=True, text=True
        )
        assert done.returncode == status, f"{program} {arguments}: status {done.returncode}\n{done.stderr}"
        return done.stdout, done.stderr

    def command(self, program: str, *arguments: object) -> list[str]:
        return [str(self.programs / program), *map(str, arguments)]

    @contextlib.contextmanager
    def serve(self, artifact: Path, *options: str) -> Iterator[str]:
        """The address of a server."""
        command = self.command("inferir", "serve", artifact, "--port", 0, "--log-level", "error", *options)
        process = subprocess.Popen(command, cwd=self.place, env=self.variables, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        try:
            line = next(line for line in process.stdout if line.startswith("listening on "))
            yield line.split()[-1]
            process.terminate()
            assert process.wait(SECONDS) == 0
        finally:
            process.kill()
            process.wait()


def check_libraries(bare: Bare) -> None:
    """Nothing heavy is there, and the package is the installed one."""
    where, found = bare.run("python", "-c", LOOK, *ABSENT)[0].splitlines()
    assert Path(where).is_relative_to(bare.programs.parent), where
    assert not found, f"installed with the bare wheel: {found}"


def check_server(url: str) -> None:
    """A completion, structured output and a tool call, over HTTP."""
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", timeout=SECONDS)
    model = client.models.list().data[0].id
    text = client.completions.create(model=model, prompt="The capital of France is", max_tokens=8, temperature=0)
    assert "Paris" in text.choices[0].text, text
    ask: Any = {"model": model, "temperature": 0, "max_tokens": 100}
    question = [{"role": "user", "content": "Name a city and how many people live there."}]
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY, "strict": True}}
    answer = client.chat.completions.create(messages=question, response_format=form, **ask)
    assert set(json.loads(answer.choices[0].message.content)) == {"city", "people"}, answer
    tool = {"type": "function", "function": {"name": "population", "parameters": CITY, "strict": True}}
    answer = client.chat.completions.create(messages=question, tools=[tool], tool_choice="required", **ask)
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.name == "population", answer
    assert set(json.loads(call.function.arguments)) == {"city", "people"}, answer


def check_commands(bare: Bare, artifact: Path) -> None:
    """Commands that need an artifact only work; those that need the compiler say how to get it."""
    assert bare.run("inferir", "run", artifact, "The capital of France is", "--max-tokens", 4)[0].strip()
    json.loads(bare.run("inferir", "inspect", artifact, "--json")[0])
    bare.run("inferir", "bench", "latency", artifact, "--output-len", 2, "--repetitions", 1, "--warmup", 0)
    assert "this installation serves only" in bare.run("inferir", "doctor", artifact)[0]
    assert "does not show the graph" in bare.run("inferir", "inspect", artifact, "--html", "page.html")[1]
    for command in ("compile", "plan", "tune", "verify"):
        output = ("-o", "out") if command in ("compile", "tune") else ()
        errors = bare.run("inferir", command, artifact, *output, status=1)[1]
        assert errors.startswith(f"inferir: error: {command} needs "), errors
        assert errors.endswith("pip install 'inferir[compile]'\n"), errors


def main(wheel: str, environment: str, artifact: str) -> None:
    check_contents(Path(wheel))
    bare, art = Bare(Path(environment)), Path(artifact).resolve()
    check_libraries(bare)
    with bare.serve(art, "--tool-style", "hermes") as url:
        check_server(url)
        bare.run("inferir", "bench", "serve", "--url", url, "--num-prompts", 2, "--output-len", 4)
    check_commands(bare, art)
    print("the bare wheel serves, runs, inspects and benches")


if __name__ == "__main__":
    main(*sys.argv[1:])
