"""Run a server: bind, start the engine, serve, drain, stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from inferir.ir.errors import InferirError
from inferir.server.engine_client import EngineClient
from inferir.server.errors import draining
from inferir.server.listen import listen, url
from inferir.server.options import ServerOptions

if TYPE_CHECKING:
    import uvicorn

    from inferir.server.service import Service

CLOSE_SECONDS = 2  # for answers that are written when everything else has ended
TICK = 0.05

log = logging.getLogger("inferir.server")


def serve(options: ServerOptions) -> None:
    """Serve until a signal ends it. Raises `InferirError` if it cannot start, or the engine cannot be kept alive."""
    started = time.monotonic()
    sock = listen(options.host, options.port, options.uds)
    try:
        print(f"listening on {url(sock)}", flush=True)
        asyncio.run(_Run(options, sock, started).main())
    finally:
        sock.close()
        if options.uds is not None:
            with contextlib.suppress(OSError):
                os.unlink(options.uds)


class _Run:
    """One run of a server."""

    def __init__(self, options: ServerOptions, sock: socket.socket, started: float) -> None:
        self.options = options
        self.sock = sock
        self.started = started
        self.signals = 0
        self.signalled = asyncio.Event()

    async def main(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        client = EngineClient(self.options.artifact, self.options.engine)
        client.start()  # it loads while the web framework is imported
        try:
            from inferir.server.app import make_app
            from inferir.server.service import Service

            service = Service(self.options, client)
            _tell_defaults(service)
            await self._serve(service, _web_server(make_app(service)))
        finally:
            await client.stop()

    def _on_signal(self) -> None:
        self.signals += 1
        self.signalled.set()

    async def _serve(self, service: Service, web: uvicorn.Server) -> None:
        client = service.client
        serving = asyncio.create_task(web.serve(sockets=[self.sock]))
        failed = asyncio.create_task(client.wait_failed())
        tasks = [failed, asyncio.create_task(self.signalled.wait()), asyncio.create_task(self._announce(service))]
        failure: InferirError | None = None
        await asyncio.wait({serving, *tasks[:2]}, return_when=asyncio.FIRST_COMPLETED)
        if failed.done():
            failure = failed.result()
        else:
            await self._drain(service)
        web.should_exit = True
        await serving
        for task in tasks:
            task.cancel()
        service.close()
        if failure is not None:
            raise failure

    async def _drain(self, service: Service) -> None:
        """Refuse new requests and let running ones finish, for a while; a second signal ends that."""
        service.draining = True
        end = time.monotonic() + self.options.grace
        if service.client.unfinished:
            log.info("draining: %d requests have %g s to finish", service.client.unfinished, self.options.grace)
        while service.client.unfinished and time.monotonic() < end and self.signals < 2:
            await asyncio.sleep(TICK)
        service.client.fail_all(draining())

    async def _announce(self, service: Service) -> None:
        while service.client.phase != "ready":
            await asyncio.sleep(TICK / 5)
        print(f"ready after {time.monotonic() - self.started:.2f} s: {service.names[0]}", flush=True)


def _tell_defaults(service: Service) -> None:
    """Say what requests get that do not ask for something else."""
    for problem in service.sampling.ignored:
        log.warning("%s", problem)
    text = service.sampling.text()
    if text:
        print(f"defaults from the model: {text} (--generation-config none leaves them out)", flush=True)


def _web_server(app: object) -> uvicorn.Server:
    import uvicorn

    from inferir.server.protocol import PatientProtocol

    class Server(uvicorn.Server):
        """Signals are ours."""

        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    return Server(
        uvicorn.Config(
            app,  # type: ignore[arg-type]
            lifespan="off",
            ws="none",
            http=PatientProtocol,
            loop="asyncio",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=60,
            timeout_graceful_shutdown=CLOSE_SECONDS,
        )
    )
