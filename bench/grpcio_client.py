"""What ``goclient`` does, on grpcio: for machines without Go. Slower by itself, so not to be compared."""

from __future__ import annotations

import base64
import json
import sys
import time
from typing import Any

import grpc as _grpc

grpc: Any = _grpc  # it brings no types


def answer(channels: dict[str, Any], asked: dict[str, Any]) -> dict[str, Any]:
    """Do what one line asks for."""
    socket = asked["socket"]
    if socket not in channels:
        options = [("grpc.use_local_subchannel_pool", 1)]
        channels[socket] = grpc.insecure_channel(f"unix://{socket}", options=options)
    methods = [
        (channels[socket].unary_unary(row["method"]), base64.b64decode(row["body"])) for row in asked["calls"]
    ]
    nanoseconds = []
    bodies: list[bytes] = []
    try:
        for turn in range(asked["warm"] + asked["repeat"]):
            began = time.perf_counter_ns()
            bodies = [method(body) for method, body in methods]
            if turn >= asked["warm"]:
                nanoseconds.append(time.perf_counter_ns() - began)
    except grpc.RpcError as error:
        channels.pop(socket).close()
        return {"nanoseconds": [], "bodies": [], "error": f"{error.code().name}: {error.details()}"}
    said = [base64.b64encode(body).decode() for body in bodies]
    return {"nanoseconds": nanoseconds, "bodies": said, "error": ""}


def main() -> None:
    """Answer lines until they end."""
    channels: dict[str, Any] = {}
    for line in sys.stdin:
        sys.stdout.write(json.dumps(answer(channels, json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
