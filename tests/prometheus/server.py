"""A real Prometheus (Debian's package, by ``prepare.sh``) in a directory of its own."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import yaml

from tests.kubelet_script import wait_for

PROMETHEUS, PROMTOOL = shutil.which("prometheus"), shutil.which("promtool")
needs_prometheus = pytest.mark.skipif(
    not (PROMETHEUS and PROMTOOL), reason="no Prometheus: tests/prometheus/prepare.sh installs it"
)
ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "partage.rules.yaml"


@dataclass(frozen=True)
class Server:
    """A Prometheus that answers."""

    url: str

    def get(self, path: str, **parameters: str) -> Any:
        """The ``data`` of an answer of its API; what it says of a wrong query is the complaint."""
        try:
            with urllib.request.urlopen(
                f"{self.url}/api/v1/{path}?{urlencode(parameters)}", timeout=10
            ) as got:
                return json.load(got)["data"]
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(f"{parameters}: {json.load(error)['error']}") from None

    def ask(self, query: str) -> list[Any]:
        """The series of a query, now."""
        found: list[Any] = self.get("query", query=query)["result"]
        return found

    def values(self, query: str, *labels: str) -> dict[tuple[str, ...], float]:
        """Their values, by some labels."""
        return {
            tuple(one["metric"].get(label, "") for label in labels): float(one["value"][1])
            for one in self.ask(query)
        }

    def alerts(self) -> dict[str, Any]:
        """The alert rules as it evaluated them last, by name."""
        groups = self.get("rules")["groups"]
        return {rule["name"]: rule for group in groups for rule in group["rules"]}


@contextmanager
def prometheus(directory: Path, config: Any = None) -> Iterator[Server]:
    """A server with its data in ``directory / "data"``, which may be there already."""
    assert PROMETHEUS is not None
    (directory / "prometheus.yaml").write_text(yaml.safe_dump(config or {}))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    log = directory / "log"
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [
                PROMETHEUS,
                f"--config.file={directory / 'prometheus.yaml'}",
                f"--storage.tsdb.path={directory / 'data'}",
                f"--web.listen-address={address}",
            ],
            stdout=stderr,
            stderr=stderr,
        )
    try:
        wait_for(lambda: process.poll() is not None or _is_ready(address), 30, "Prometheus")
        assert process.poll() is None, log.read_text()
        yield Server(f"http://{address}")
    finally:
        process.terminate()
        process.wait(20)


def _is_ready(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{address}/-/ready", timeout=1) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def promtool(*arguments: str | Path) -> str:
    """What it says; the test fails if it finds a mistake."""
    assert PROMTOOL is not None
    ended = subprocess.run(
        [PROMTOOL, *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout
