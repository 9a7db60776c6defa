"""What a program tells the daemon, against a socket that plays its protocol."""

import json
import socket
import threading

import pytest

import hither


def test_a_program_tells_the_daemon_of_itself(tmp_path, monkeypatch):
    path = str(tmp_path / "s")
    monkeypatch.setenv("HITHER_SOCKET", path)
    with pytest.raises(ConnectionRefusedError, match="no daemon answers"):
        hither.opt_out()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    asked = []

    def serve():
        for answer in ({"did": ["1"], "hither": 1}, {"error": "it says off", "hither": 1}):
            stream, _ = listener.accept()
            with stream:
                asked.append(json.loads(stream.makefile().readline())["ask"])
                stream.sendall(json.dumps(answer).encode() + b"\n")

    daemon = threading.Thread(target=serve)
    daemon.start()
    hither.opt_out()
    with pytest.raises(PermissionError, match="it says off"):
        hither.opt_in()
    daemon.join()
    assert asked == ["opt_out", "opt_in"]
