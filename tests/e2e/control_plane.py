"""etcd, kube-apiserver and kube-scheduler alone: no kubelet, no controller; a test makes the nodes.

All on ports of their own, with everything that they write in one folder, so it runs beside any cluster.
"""

from __future__ import annotations

import http.client
import json
import re
import socket
import ssl
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TextIO

from partage.values import Frozen

Json = dict[str, Any]

TOKEN = "token-of-the-tests"
PROGRAMS = ("etcd", "kube-apiserver", "kube-scheduler")
KIND_LABEL = "kind"
_PODS, _NODES = "/api/v1/namespaces/default/pods", "/api/v1/nodes"

_SCHEDULER = """\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection: {kubeconfig: KUBECONFIG, qps: 1000, burst: 2000}
leaderElection: {leaderElect: false}
# Hours of a trace pass in seconds here, and no pod is to be held back for what was minutes ago.
podInitialBackoffSeconds: 1
podMaxBackoffSeconds: 1
"""
_EXTENDER = """\
extenders:
  - urlPrefix: URL
    prioritizeVerb: prioritize
    weight: 40
    nodeCacheCapable: true
    ignorable: true
    httpTimeout: 2s
"""
"""As docs/how-to/waste-less.md has it, with more time on a machine that others use, too."""
_ATTEMPT = re.compile(r'"Attempting to schedule pod" pod="default/([^"]+)"')
_SCORE = re.compile(
    r'"Calculated node\'s final score for pod" pod="default/([^"]+)" node="([^"]+)" score=(\d+)'
)


class Bound(Frozen):
    """The scheduler has bound a pod. scores: of all nodes on which it fitted; empty where it looked at one
    only (one was left, or it had the answer of an equal pod).
    """

    pod: str
    node: str
    scores: Mapping[str, int]


class ControlPlane:
    """The API server, as a kubelet and a user see it, and what the scheduler decides.

    url, certificate: of the API server, for clients of their own.
    """

    def __init__(self, server: int, scheduler: int, certificate: Path, log: TextIO) -> None:
        self.url, self.certificate = f"https://127.0.0.1:{server}", certificate
        verified = ssl.create_default_context(cafile=str(certificate))
        self._api, self._watched = _Http(server, verified), _Http(server, verified, None)
        self._closed = False
        unverified = ssl._create_unverified_context()  # its own certificate is in its memory only
        self._metrics = _Http(scheduler, unverified)
        self._log = log
        self._rest = ""
        self._scores: dict[str, dict[str, int]] = {}
        self._attempted: dict[str, int] = {}
        self._attempts = 0
        self._handled: Counter[str] = Counter()
        """Events that the scheduler has to have handled, by the name of its metric."""
        self._node_count = 0
        self._seen = threading.Condition()
        self._nodes: dict[str, str] = {}
        """Node of each pod that is there, empty while it has none."""
        self._new: list[str] = []

    def ask(self, method: str, path: str, body: Json | None = None) -> Json:
        """Any request of an admin, and its answer."""
        found: Json = json.loads(self._api.ask(method, path, body))
        return found

    # --- what users and kubelets do -------------------------------------------------------------------

    def add_node(self, name: str, kind: int, allocatable: Mapping[str, int | str]) -> None:
        amounts = {key: str(value) for key, value in allocatable.items()}
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
        node = {
            "metadata": {"name": name, "labels": {KIND_LABEL: str(kind)}},
            "status": {"capacity": amounts, "allocatable": amounts, "conditions": [ready]},
        }
        self._api.ask("POST", _NODES, node)
        self._handled["NodeAdd"] += 1
        self._node_count += 1

    def set_allocatable(self, name: str, amounts: Mapping[str, int]) -> None:
        """As a kubelet does whose device plugin lists more or fewer devices."""
        texts = {key: str(value) for key, value in amounts.items()}
        patch = {"status": {"capacity": texts, "allocatable": texts}}
        self._api.ask("PATCH", f"{_NODES}/{name}/status", patch)
        self._handled["NodeUpdateNodeAllocatable"] += 1

    def add_pod(self, name: str, requests: Mapping[str, int | str], kinds: Sequence[int]) -> None:
        """kinds: of the nodes that its node selector takes."""
        amounts = {key: str(value) for key, value in requests.items()}
        expression = {
            "key": KIND_LABEL,
            "operator": "In",
            "values": [str(kind) for kind in kinds] or ["none"],
        }
        terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
        pod = {
            "metadata": {"name": name},
            "spec": {
                "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}},
                "containers": [
                    {"name": "main", "image": "none", "resources": {"requests": amounts, "limits": amounts}}
                ],
                "terminationGracePeriodSeconds": 0,
            },
        }
        self._api.ask("POST", _PODS, pod)
        self._until_seen(f"pod {name} is there", lambda: name in self._nodes)

    def end_pod(self, name: str) -> None:
        """A pod that was bound is gone."""
        self._api.ask("DELETE", f"{_PODS}/{name}", {"gracePeriodSeconds": 0})
        self._until_seen(f"pod {name} is gone", lambda: name not in self._nodes)
        self._handled["AssignedPodDelete"] += 1

    def remove_all(self) -> None:
        """Every pod and node, for the next trace."""
        with self._seen:
            bound = sum(map(bool, self._nodes.values()))
        self._api.ask("DELETE", _PODS, {"gracePeriodSeconds": 0})
        self._until_seen("no pod is left", lambda: not self._nodes)
        self._handled["AssignedPodDelete"] += bound
        self._api.ask("DELETE", _NODES)
        self._handled["NodeDelete"] += self._node_count
        self._node_count = 0
        self.settle()

    # --- what the scheduler does ------------------------------------------------------------------------

    def settle(self) -> list[Bound]:
        """Wait until the scheduler has decided on all pods; those that it has bound meanwhile, in order."""
        deadline = time.monotonic() + 30
        heard = False
        while True:
            found = self._read_metrics()
            with self._seen:
                unbound = sum(not node for node in self._nodes.values())
                settled = found.waiting == (0, 0, unbound)
                if heard and settled:
                    new, self._new = self._new, []
                    nodes = [self._nodes[name] for name in new]
                    break
            # The metrics are not of one moment: only the next ones are surely of after the event.
            heard = all(found.handled.get(name, 0) >= count for name, count in self._handled.items())
            assert time.monotonic() < deadline, f"{found} with {unbound} pods unbound, {self._handled}"
        self._read_log()
        bound = [Bound(name, node, self._scores.pop(name, {})) for name, node in zip(new, nodes, strict=True)]
        return sorted(bound, key=lambda one: self._attempted[one.pod])

    def _read_metrics(self) -> _Metrics:
        text = self._metrics.ask("GET", "/metrics").decode()
        queues = dict(re.findall(r'^scheduler_pending_pods\{queue="(\w+)"\} (\d+)', text, re.MULTILINE))
        name = r'^scheduler_event_handling_duration_seconds_count\{event="(\w+)"\} (\d+)'
        handled = {event: int(count) for event, count in re.findall(name, text, re.MULTILINE)}
        active, backoff, waiting = (int(queues.get(key, 0)) for key in ("active", "backoff", "unschedulable"))
        return _Metrics((active, backoff, waiting), handled)

    def _read_log(self) -> None:
        """What the scheduler has logged since the last time: which pod it tried when, and the scores."""
        *lines, self._rest = (self._rest + self._log.read()).split("\n")
        for line in lines:
            if found := _ATTEMPT.search(line):
                self._attempts += 1
                self._attempted[found[1]] = self._attempts
                self._scores.pop(found[1], None)
            elif found := _SCORE.search(line):
                self._scores.setdefault(found[1], {})[found[2]] = int(found[3])

    # --- the pods as the API server tells them ------------------------------------------------------------

    def close(self) -> None:
        """End all connections, and with them ``watch``."""
        self._closed = True
        self._api.close()
        self._metrics.close()
        self._watched.hang_up()

    def watch(self) -> None:
        """Follow the pods until the connection ends; run by a thread of its own."""
        try:
            for line in self._watched.lines(f"{_PODS}?watch=1"):
                change = json.loads(line)
                pod = change["object"]
                name, node = pod["metadata"]["name"], pod["spec"].get("nodeName", "")
                with self._seen:
                    if change["type"] == "DELETED":
                        self._nodes.pop(name, None)
                    else:
                        if node and not self._nodes.get(name):
                            self._new.append(name)
                        self._nodes[name] = node
                    self._seen.notify_all()
        except (OSError, ValueError, http.client.HTTPException):
            if not self._closed:
                raise
        finally:
            self._watched.close()

    def _until_seen(self, what: str, question: Callable[[], bool]) -> None:
        with self._seen:
            assert self._seen.wait_for(question, 30), f"not within 30 s: {what}"


class _Metrics(Frozen):
    """waiting: pods in the active queue, in the one that backs off, and in that of those that fit nowhere."""

    waiting: tuple[int, int, int]
    handled: Mapping[str, int]


class _Http:
    """Requests over one connection that stays open."""

    def __init__(self, port: int, tls: ssl.SSLContext, timeout_s: float | None = 30) -> None:
        self._connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=timeout_s, context=tls)

    def ask(self, method: str, path: str, body: Json | None = None) -> bytes:
        kind = "application/strategic-merge-patch+json" if method == "PATCH" else "application/json"
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": kind}
        self._connection.request(method, path, json.dumps(body) if body else None, headers)
        answer = self._connection.getresponse()
        content = answer.read()
        assert answer.status < 300, f"{method} {path}: {answer.status} {content[:300]!r}"
        return content

    def lines(self, path: str) -> Iterator[bytes]:
        """Of an answer that does not end."""
        self._connection.request("GET", path, headers={"Authorization": f"Bearer {TOKEN}"})
        with self._connection.getresponse() as answer:
            yield from answer

    def close(self) -> None:
        self._connection.close()

    def hang_up(self) -> None:
        """For another thread than the one that waits for lines: they end."""
        if self._connection.sock is not None:
            self._connection.sock.shutdown(socket.SHUT_RDWR)


@contextmanager
def control_plane(programs: Path, folder: Path, extender: str = "") -> Iterator[ControlPlane]:
    """Start the three programs, and end them. Some seconds. extender: URL of one that prioritizes."""
    clients, peers, server, scheduler = _free_ports(4)
    here = "127.0.0.1"
    (folder / "tokens.csv").write_text(f'{TOKEN},admin,admin,"system:masters"\n')
    key = folder / "accounts.key"
    subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
    certificate = folder / "certificates" / "apiserver.crt"
    with ExitStack() as stack:

        def start(name: str, *options: str) -> subprocess.Popen[bytes]:
            log = stack.enter_context((folder / f"{name}.log").open("wb"))
            process = subprocess.Popen(
                [programs / name, *options], stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
            stack.callback(_end, process)
            return process

        start(
            "etcd", f"--data-dir={folder / 'etcd'}", "--unsafe-no-fsync",
            f"--listen-client-urls=http://{here}:{clients}", f"--advertise-client-urls=http://{here}:{clients}",
            f"--listen-peer-urls=http://{here}:{peers}",
            f"--initial-advertise-peer-urls=http://{here}:{peers}",
            f"--initial-cluster=default=http://{here}:{peers}",
        )  # fmt: skip
        start(
            "kube-apiserver", f"--etcd-servers=http://{here}:{clients}", f"--bind-address={here}",
            f"--secure-port={server}", f"--cert-dir={certificate.parent}",
            f"--token-auth-file={folder / 'tokens.csv'}", "--authorization-mode=RBAC",
            "--service-account-issuer=https://kubernetes.default.svc", f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}", "--service-cluster-ip-range=10.0.0.0/24",
            # no controller makes accounts, and no kubelet takes the taint of new nodes away
            "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
        )  # fmt: skip
        until("the API server answers", lambda: _answers(server, "/readyz"))
        kubeconfig = folder / "scheduler.conf"
        kubeconfig.write_text(json.dumps(kubeconfig_of(f"https://{here}:{server}", certificate)))
        configuration = folder / "scheduler.yaml"
        extenders = _EXTENDER.replace("URL", extender) if extender else ""
        configuration.write_text(_SCHEDULER.replace("KUBECONFIG", str(kubeconfig)) + extenders)
        start(
            "kube-scheduler", f"--config={configuration}", f"--bind-address={here}",
            f"--secure-port={scheduler}", "--authorization-always-allow-paths=/readyz,/metrics",
            "--vmodule=schedule_one=10",
        )  # fmt: skip
        until("the scheduler answers", lambda: _answers(scheduler, "/readyz"))
        log = stack.enter_context((folder / "kube-scheduler.log").open(encoding="utf-8", errors="replace"))
        found = ControlPlane(server, scheduler, certificate, log)
        watching = threading.Thread(target=found.watch)
        watching.start()
        try:
            yield found
        finally:
            found.close()
            watching.join(10)


def until(what: str, question: Callable[[], bool], timeout_s: float = 60) -> None:
    """Ask until it is true. Raises AssertionError."""
    deadline = time.monotonic() + timeout_s
    while not question():
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
        time.sleep(0.1)


def _answers(port: int, path: str) -> bool:
    tls = ssl._create_unverified_context()
    asked = _Http(port, tls)
    try:
        asked.ask("GET", path)
    except (OSError, http.client.HTTPException, AssertionError):
        return False
    finally:
        asked.close()
    return True


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()


def kubeconfig_of(server: str, certificate: Path) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": "here", "cluster": {"server": server, "certificate-authority": str(certificate)}}
        ],
        "users": [{"name": "me", "user": {"token": TOKEN}}],
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
        "current-context": "here",
    }
