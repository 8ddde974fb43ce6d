"""What agents serve, publish and write: with and without a kubelet, on a Node, and for Slurm."""

from __future__ import annotations

import json
import re
import shutil
import signal
import ssl
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO

from tools.freeze.place import INPUTS, Checkout, keep

_LIMIT_S = 60
_CALM_S = 5.0
"""So long an agent has said nothing new: then it has done what it does by itself."""

_STATES = {
    "exclusive": "examples/01-whole-gpus/policy.yaml",
    "time-slicing": "examples/02-time-slicing/ten.yaml",
    "mps": "examples/04-mps-on-two-of-eight/policy.yaml",
    "mig": "examples/06-mig/mixed.yaml",
    "memory": "examples/14-gpu-memory/policy.yaml",
    "cordoned": "examples/02-time-slicing/ten.yaml",
    "broken": "wrong/02-time-slicing-policy-yaml-all.yaml",
}
_STORIES = ("01-whole-gpus", "04-mps-on-two-of-eight", "07-mixed-node", "14-gpu-memory")
_PAGES = ("/metrics", "/report.json", "/history.json", "/healthz", "/livez", "/")
_MACHINE = "8xh100-sxm5-80gb"
_MACHINES = {"mig": "examples/06-mig/balanced.json", "memory": "examples/14-gpu-memory/machine.yaml"}
_MORE = {"memory": ("--node-labels", "ack.node.gpu.schedule=mps")}
_CDI = """\
version: partage/v1
gpus:
  - {select: rest, time-slicing: {replicas: 2}}
resources: {device-list-strategy: [cdi-annotations]}
"""
_SLURM_ANSWERS = {
    "scontrol": '#!/bin/sh\ncase "$*" in *version*|*-V*) echo slurm 24.11.5;; '
    '*"show node"*) cat "$(dirname "$0")/node.json";; esac\n',
    "squeue": "#!/bin/sh\necho '{\"jobs\": []}'\n",
}
_NODE = {
    "nodes": [{"name": "g1", "hostname": "g1", "state": ["IDLE"], "gres": "gpu:h100:8", "gres_used": ""}]
}


def agents(checkout: Checkout, folder: Path) -> None:
    """All of them, one after the other."""
    home = Path(checkout.environment["HOME"])
    (home / "cdi.yaml").write_text(_CDI, encoding="utf-8")
    for name, policy in (*_STATES.items(), ("cdi", "cdi.yaml")):
        _alone(checkout, folder, home, name, policy)
    for story in _STORIES:
        words = ("simulate", f"examples/{story}/story.yaml", "--http", "127.0.0.1:0", "--serve")
        _pages(checkout, folder / "agents" / f"story-{story}", words)
    _on_node(checkout, folder, home)
    _for_slurm(checkout, folder, home)


def _alone(checkout: Checkout, folder: Path, home: Path, name: str, policy: str) -> None:
    here = home / "node"
    (here / "dp").mkdir(parents=True)
    if name == "cordoned":
        checkout.run("cordon", "1", "2", "--machine", _MACHINE, "--state-dir", str(here / "state"))
    features = ("--features-file", str(here / "features"), "--cluster", "off", "--dcgm-names", "both")
    _pages(
        checkout,
        folder / "agents" / name,
        ("agent", "-f", policy, *_where(here, name), *features, *_MORE.get(name, ())),
    )
    for path in sorted(path for path in here.rglob("*") if path.is_file() and "lock" not in path.name):
        text = path.read_text(encoding="utf-8", errors="backslashreplace")
        keep(
            folder,
            f"agents/{name}/files/{path.relative_to(here)}",
            [settled(line) for line in text.splitlines()],
        )
    shutil.rmtree(here)


def _where(here: Path, name: str = "") -> tuple[str, ...]:
    named = {"kubelet-dir": "dp", "state-dir": "state", "run-dir": "run", "cdi-dir": "cdi"}
    paths = [f"--{option}={here / folder}" for option, folder in named.items()]
    return ("--machine", _MACHINES.get(name, _MACHINE), "--http", "127.0.0.1:0", *paths)


def _pages(checkout: Checkout, folder: Path, words: Sequence[str]) -> None:
    with _service(checkout, words) as (url, lines):
        if url:
            for page in _PAGES:
                code, text = _get(url + page)
                said = _metrics(text) if page == "/metrics" else [settled(line) for line in text.splitlines()]
                keep(folder, (page.strip("/") or "page.html"), [f"HTTP {code}", *said])
    keep(folder, "log", _log(lines))


@contextmanager
def _service(checkout: Checkout, words: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """A service that has come to rest: where its pages are (empty: it has ended), what it wrote so far."""
    home = checkout.environment["HOME"]
    service = subprocess.Popen(
        checkout.program(*words), env=checkout.environment, cwd=home,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    lines: list[str] = []
    news = threading.Event()

    def read(stream: IO[str]) -> None:
        for line in stream:
            lines.append(line.rstrip("\n"))
            news.set()

    readers = [
        threading.Thread(target=read, args=(stream,)) for stream in (service.stdout, service.stderr) if stream
    ]
    for reader in readers:
        reader.start()
    try:
        news.wait(_LIMIT_S)
        for _ in range(_LIMIT_S):
            news.clear()
            if not news.wait(_CALM_S) or service.poll() is not None:
                break
        urls = re.findall(r"http://[\d.]+:\d+", "\n".join(lines))
        yield (urls[0] if urls and service.poll() is None else ""), lines
    finally:
        if service.poll() is None:
            service.send_signal(signal.SIGINT if "simulate" in words else signal.SIGTERM)
        lines.append(f"exit {service.wait(_LIMIT_S)}")
        for reader in readers:
            reader.join()


def _get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - ours
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def _metrics(text: str) -> list[str]:
    """Names, HELP, TYPE and labels; values are moments."""
    rows = [line if line.startswith("#") else line.rpartition(" ")[0] for line in text.splitlines()]
    families: list[list[str]] = []
    for row in map(settled, rows):
        if row.startswith("# HELP") or not families:
            families.append([])
        families[-1].append(row)
    return [row for family in families for row in (*family[:2], *sorted(family[2:]))]


def _log(lines: Sequence[str]) -> list[str]:
    """Each kind of line once, with its logger: what users filter by. Tasks run side by side, so no order."""
    kinds = set()
    for line in lines:
        if not line.startswith("{"):
            kinds.add(settled(line))
            continue
        row = json.loads(line)
        keys = ",".join(key for key in row if key not in ("time", "level", "logger", "event"))
        kinds.add(f"{row.get('level')} {row.get('logger')} {row.get('event')}: {keys}")
    return sorted(kinds)


def settled(line: str) -> str:
    """Without what no option of ours decides: moments, durations, ids of processes, ports, the boot."""
    line = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+(Z|\+00:00)", "TIME", line)
    line = re.sub(r"\b\d{10}(\.\d+)?\b", "TIME", line)
    line = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", "TIME", line)
    line = re.sub(r"\b\d\d:\d\d\b", "HH:MM", line)  # the axis of the last hour
    line = re.sub(r"/tmp/partage-\w{8}/", "/tmp/STORY/", line)  # noqa: S108 - where a story is played
    line = re.sub(r'("turns": ?)\d+', r"\g<1>0", line)
    line = re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:PORT", line)
    line = re.sub(r'("pid": ?|pid[ =])\d+', r"\g<1>0", line)
    line = re.sub(r'("name": ?"n1\.)[0-9a-f]+"', r'\1EVENT"', line)
    line = re.sub(r'("(?:bootId|boot_id)": ?)"[^"]*"', r'\1"BOOT"', line)
    return re.sub(r'("\w*(?:Seconds|Version)": ?)\d+(\.\d+)?(e-?\d+)?', r"\g<1>0", line)


def _on_node(checkout: Checkout, folder: Path, home: Path) -> None:
    """Every request that changes something at a scripted API server."""
    here = home / "node"
    (here / "dp").mkdir(parents=True)
    with ExitStack() as stack:
        requests, kubeconfig = stack.enter_context(_api_server(home))
        words = ("agent", "-f", "examples/14-gpu-memory/policy.yaml", *_where(here, "memory"))
        named = (
            "--cluster",
            str(kubeconfig),
            "--node-name",
            "n1",
            "--taint",
            "not-ready",
            "--taint",
            "gpu-unhealthy",
        )
        _pages(checkout, folder / "agents" / "node", (*words, *named))
    keep(folder, "agents/node/requests", sorted({settled(line) for line in requests}))
    shutil.rmtree(here)


@contextmanager
def _api_server(home: Path) -> Iterator[tuple[list[str], Path]]:
    requests: list[str] = []
    labels = {"ack.node.gpu.schedule": "mps"}
    metadata = {"name": "n1", "uid": "u", "resourceVersion": "1", "labels": labels}
    ended = threading.Event()
    node = {
        "metadata": metadata,
        "spec": {},
        "status": {},
    }

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0)).decode()
            kind = self.headers.get("content-type", "")
            if self.command != "GET":
                requests.append(f"{self.command} {self.path} {kind} {body}")
            if "watch=true" in self.path:
                self._hold()
                return
            rows = [node] if "/nodes?" in self.path else []
            listed = {"metadata": {"resourceVersion": "1"}, "items": rows}
            text = json.dumps(node if "/nodes/n1" in self.path else listed).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def _hold(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.flush()
            ended.wait(_LIMIT_S)
            self.close_connection = True

        do_GET = do_PATCH = do_POST = do_PUT = do_DELETE = _answer  # noqa: N815

    (pki,) = {path.parent for path in (INPUTS / "tests").rglob("pki/ca.crt")}
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pki / "server.crt", pki / "server.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield requests, _kubeconfig(home, server.server_port)
    finally:
        ended.set()
        server.shutdown()
        server.server_close()


def _kubeconfig(home: Path, port: int) -> Path:
    path = home / "kubeconfig"
    cluster = {"server": f"https://127.0.0.1:{port}", "insecure-skip-tls-verify": True}
    path.write_text(
        json.dumps(
            {
                "current-context": "c",
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                "clusters": [{"name": "c", "cluster": cluster}],
                "users": [{"name": "u", "user": {"token": "t"}}],
            }
        ),
        encoding="utf-8",
    )
    return path


def _for_slurm(checkout: Checkout, folder: Path, home: Path) -> None:
    """The agent of a compute node, with scripts in place of Slurm's programs."""
    here = home / "slurm"
    (here / "bin").mkdir(parents=True)
    (here / "etc").mkdir()
    for name, text in _SLURM_ANSWERS.items():
        (here / "bin" / name).write_text(text, encoding="utf-8")
        (here / "bin" / name).chmod(0o755)
    (here / "bin" / "node.json").write_text(json.dumps(_NODE), encoding="utf-8")
    slurm = (
        "--slurm",
        "--slurm-node",
        "g1",
        "--slurm-bin",
        str(here / "bin"),
        "--slurm-dir",
        str(here / "etc"),
    )
    files = (
        "--slurm-devices",
        str(here / "devices.json"),
        "--slurm-version",
        "24.11.5",
        "--slurmd-restart",
        "true",
    )
    policy = ("-f", "examples/06-mig/mixed.yaml")
    where = [word for word in _where(here) if "kubelet" not in word and "cdi" not in word]
    _pages(checkout, folder / "agents" / "slurm", ("agent", *slurm, *files, *policy, *where))
    for path in sorted(path for path in here.rglob("*") if path.is_file()):
        if "lock" in path.name or "bin" in path.parts:
            continue
        text = path.read_text(encoding="utf-8", errors="backslashreplace")
        keep(
            folder,
            f"agents/slurm/files/{path.relative_to(here)}",
            [settled(line) for line in text.splitlines()],
        )
    shutil.rmtree(here)
