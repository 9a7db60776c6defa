"""What a program tells the daemon, against a socket that plays its protocol."""

import json
import socket
import threading

import numpy as np
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
        done, refused = {"did": ["1"], "hither": 1}, {"error": "it says off", "hither": 1}
        for answer in (done, refused, done, done):
            stream, _ = listener.accept()
            with stream:
                asked.append(json.loads(stream.makefile().readline()))
                stream.sendall(json.dumps(answer).encode() + b"\n")

    daemon = threading.Thread(target=serve)
    daemon.start()
    hither.opt_out()
    with pytest.raises(PermissionError, match="it says off"):
        hither.opt_in()
    array = np.zeros(10000)
    hither.declare(array, "pin_fast")
    hither.declare(array[:512], None)
    with pytest.raises(ValueError, match="hot, cold, pin_fast, pin_slow"):
        hither.declare(array, "warm")
    daemon.join()
    assert [question["ask"] for question in asked] == ["opt_out", "opt_in", "declare", "declare"]
    start = array.ctypes.data
    assert asked[2]["ranges"] == [[start, start + array.nbytes]]
    assert asked[2]["hint"] == "pin_fast"
    assert asked[3]["ranges"] == [[start, start + 4096]]
    assert "hint" not in asked[3]
