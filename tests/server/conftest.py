"""Servers of the tiny artifact."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from serving import SECONDS, Server, Start


@pytest.fixture
def start(tiny_artifact: Path, tmp_path: Path) -> Iterator[Start]:
    """Start a server of the tiny artifact, or of another one, with options."""
    servers: list[Server] = []

    def call(*options: str, artifact: Path = tiny_artifact) -> Server:
        servers.append(Server(artifact, tmp_path / f"{len(servers)}.log", *options))
        return servers[-1]

    yield call
    for server in servers:
        server.close()


@pytest.fixture(scope="session")
def server(tiny_artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that all tests share. Not to be stopped."""
    server = Server(tiny_artifact, tmp_path_factory.mktemp("server") / "log")
    try:
        yield server.ready()
    finally:
        server.close()


@pytest.fixture(scope="session")
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=SECONDS)
