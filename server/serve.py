"""Run a server: bind, start the engine, serve, drain, stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from inferir.ir.errors import InferirError
from inferir.server.engine.engine_client import EngineClient
from inferir.server.engine.stat_sinks import SINKS, Sink, feed
from inferir.server.http.http_errors import draining
from inferir.server.http.listen import BACKLOG, close, listen, url
from inferir.server.http.loop_errors import LoopErrors
from inferir.server.http.process_limits import check_threads, raise_open_files
from inferir.server.server_options import ServerOptions

if TYPE_CHECKING:
    import uvicorn

    from inferir.server.service import Service

CLOSE_SECONDS = 2  # for answers that are written when everything else has ended
TICK = 0.05
ACCEPTED = 4
"""Connections accepted at once. The event loop tries as often also when the first attempt failed, and reports each; and
so few that those beyond the limit of open files are refused before the next ones come, see `RESERVED_FILES`.
"""

log = logging.getLogger("inferir.server")


def serve(options: ServerOptions) -> None:
    """Serve until a signal ends it. Raises `InferirError` if it cannot start, or the engine cannot be kept alive."""
    started = time.monotonic()
    sinks = {name: SINKS.get(name) for name in options.stat_sinks}
    if options.routes:
        from inferir.server.routes import open_routes

        open_routes(
            options.routes, profile=options.profile
        )  # what cannot be used is refused before anything is started
    most_files = raise_open_files()
    check_threads()
    sockets = listen(options.host, options.port, options.uds)
    try:
        asyncio.run(_Run(options, sockets, sinks, started, most_files).main())
    finally:
        close(sockets, options.uds)


def say(text: str) -> None:
    """Tell whoever reads standard output, if anybody does."""
    with contextlib.suppress(OSError):
        print(text, flush=True)


@dataclass
class _Run:
    options: ServerOptions
    sockets: list[socket.socket]
    sinks: dict[str, Sink]
    started: float
    most_files: int
    signals: int = 0
    signalled: asyncio.Event = field(default_factory=asyncio.Event)

    async def main(self) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(LoopErrors())
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        client = EngineClient(self.options.artifact, self.options.engine)
        client.start()  # it loads while the web framework is imported
        say(f"listening on {url(self.sockets[0])}")
        try:
            from inferir.server.app import make_app
            from inferir.server.routes import open_routes
            from inferir.server.service import Service

            service = Service(self.options, client)
            _tell_defaults(service)
            app = make_app(service, open_routes(self.options.routes, profile=self.options.profile))
            await self._serve(service, _web_server(app, self.most_files))
        finally:
            await client.stop()

    def _on_signal(self) -> None:
        self.signals += 1
        self.signalled.set()

    async def _serve(self, service: Service, web: uvicorn.Server) -> None:
        client = service.client
        serving = asyncio.create_task(web.serve(sockets=self.sockets))
        failed = asyncio.create_task(client.wait_failed())
        tasks = [failed, asyncio.create_task(self.signalled.wait()), asyncio.create_task(self._announce(service))]
        tasks.append(asyncio.create_task(feed(client, self.sinks)))
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
        say(f"ready after {time.monotonic() - self.started:.2f} s: {service.names[0]}")
        say(f"KV cache: {service.client.kv}")


def _tell_defaults(service: Service) -> None:
    """Say what requests get that do not ask for something else."""
    for problem in service.sampling.ignored:
        log.warning("%s", problem)
    text = service.sampling.text()
    if text:
        say(f"defaults from the model: {text} (--generation-config none leaves them out)")


def _web_server(app: object, most_files: int) -> uvicorn.Server:
    import uvicorn

    from inferir.server.http.patient_protocol import PatientProtocol

    class Protocol(PatientProtocol):
        pass

    Protocol.most_files = most_files

    class Server(uvicorn.Server):
        """Signals are ours."""

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets=sockets)
            for sock in sockets or ():
                sock.listen(BACKLOG)

        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    return Server(
        uvicorn.Config(
            app,  # type: ignore[arg-type]
            lifespan="off",
            ws="none",
            http=Protocol,
            loop="asyncio",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=60,
            backlog=ACCEPTED,
            timeout_graceful_shutdown=CLOSE_SECONDS,
        )
    )
