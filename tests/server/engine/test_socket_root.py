"""The folder of sockets, whatever TMPDIR is."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from inferir.ir.errors import EngineError
from inferir.server.engine.socket_root import MAX_BYTES, socket_root


@pytest.fixture
def short(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tempfile.mkdtemp(dir="/tmp")


def use(monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    monkeypatch.setenv("TMPDIR", folder)
    monkeypatch.setattr(tempfile, "tempdir", None)  # what an earlier call found


def test_the_usual_folder(monkeypatch: pytest.MonkeyPatch, short: str) -> None:
    use(monkeypatch, short)
    assert socket_root(("/nowhere",)) == Path(short)
    Path(short).rmdir()


def test_folders_that_take_no_sockets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, short: str) -> None:
    long = tmp_path / ("x" * MAX_BYTES)
    odd = tmp_path / os.fsdecode(b"t\xff")
    for folder in (long, odd):
        folder.mkdir()
        use(monkeypatch, str(folder))
        assert socket_root((short,)) == Path(short)
        with pytest.raises(EngineError, match=f"^TMPDIR: no socket can be made in .* at most {MAX_BYTES} bytes"):
            socket_root(("/nowhere", "/dev/null"))
    Path(short).rmdir()


def test_what_is_in_the_folder_fits_into_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """The longest folder that is taken leaves room for the names of the private folder and of the socket in it."""
    import shutil
    import socket

    from inferir.server.engine.socket_folder import make_socket_folder

    top = tempfile.mkdtemp(dir="/tmp")
    folder = os.path.join(top, "y" * (MAX_BYTES - len(top) - 1))
    os.mkdir(folder)
    use(monkeypatch, folder)
    private = make_socket_folder()
    assert str(private.path).startswith(folder)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(private.path / "engine"))
    private.remove()
    shutil.rmtree(top)
