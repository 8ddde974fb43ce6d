"""A running kube-scheduler gives more of the GPUs away with the extender, about as much as the what-if says.

Nodes, slices and claims are objects: no kubelet and no agent. Pods of a made-up workload come in the same
order, once without and once with ``partage scheduler``, which is killed in the middle and started again.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import pytest

from partage.plan.placement.mix import WHOLE_MILLI, PodType
from partage.plan.placement.room import Room
from partage.whatif.decide.placements import PlacementPolicy, arrivals, place_all
from tests.e2e.control_plane import PROGRAMS, ControlPlane, control_plane, until
from tests.scheduler.objects import MEMORY, claim, classes, device, pod, slices

NODES = int(os.environ.get("PARTAGE_E2E_NODES", "200"))
GPUS = 4
CPU_MILLI, MEMORY_MIB = 64_000, 400_000
LOAD, SEED = 105, 5
CLOSE = 0.5
"""Points of allocation between the running scheduler and the what-if: it learns what pods ask for as they
come, scores by what was written a moment ago, and draws otherwise. Five runs: 0.22 at most."""
_API = "/apis/resource.k8s.io/v1"
_TEAM = "/api/v1/namespaces/team/pods"


def workload() -> list[PodType]:
    """Parts of many sizes, whole GPUs, and some that need all GPUs of a node."""
    random = Random(SEED)
    found = []
    for _ in range(NODES * GPUS * 2):
        gpus = random.choices((0, 1, 2, 4), (10, 84, 3, 3))[0]
        milli = random.choice((120, 250, 340, 470, 530, 810, 1000)) if gpus == 1 else WHOLE_MILLI * bool(gpus)
        cpu = random.choice((2000, 4000, 8000, 12_000)) * max(gpus, 1)
        found.append(PodType(cpu, 2048, gpus, milli))
    return found


def rooms() -> list[Room]:
    model = f"A/memory-{MEMORY}"
    return [
        Room(model, CPU_MILLI, MEMORY_MIB, [WHOLE_MILLI] * GPUS, CPU_MILLI, MEMORY_MIB) for _ in range(NODES)
    ]


@pytest.fixture(scope="module")
def programs() -> Path:
    folder = os.environ.get("PARTAGE_E2E_BIN")
    if not folder:
        pytest.skip("no scheduler: make e2e builds one")
    assert all(Path(folder, name).exists() for name in PROGRAMS)
    return Path(folder)


@contextlib.contextmanager
def extender(kubeconfig: Path, port: int) -> Iterator[None]:
    """The verb, as it is shipped."""
    command = [
        sys.executable,
        "-m",
        "partage",
        "scheduler",
        f"--kubeconfig={kubeconfig}",
        f"--http=127.0.0.1:{port}",
    ]
    with (kubeconfig.parent / "extender.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            until("the extender is ready", lambda: _asked(port, "/healthz")[0] == 200)
            yield
        finally:
            process.kill()
            process.wait()


def _asked(port: int, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    except OSError:
        return 0, ""
    finally:
        connection.close()


def make_cluster(plane: ControlPlane) -> None:
    plane.ask("POST", "/api/v1/namespaces", {"metadata": {"name": "team"}})
    for one in classes():
        plane.ask("POST", f"{_API}/deviceclasses", one)
    for number in range(NODES):
        name = f"n{number:03}"
        amounts: dict[str, int | str] = {"cpu": f"{CPU_MILLI}m", "memory": f"{MEMORY_MIB}Mi", "pods": 200}
        plane.add_node(name, 0, amounts)
        devices = [device(gpu) for gpu in range(GPUS)]
        plane.ask("POST", f"{_API}/resourceslices", slices(name, devices))


def make_pods(plane: ControlPlane, pods: Sequence[PodType], start: int) -> None:
    for number, wants in enumerate(pods, start):
        key = f"p{number:05}"
        claims = []
        if wants.gpus:
            found = claim(key, wants.gpus, wants.milli * MEMORY // WHOLE_MILLI)
            found.pop("status")
            plane.ask("POST", f"{_API}/namespaces/team/resourceclaims", found)
            claims = [key]
        made = pod(key, wants.cpu_milli, wants.memory_mib, claims)
        made["spec"]["containers"][0]["image"] = "none"
        plane.ask("POST", _TEAM, made)


def given(plane: ControlPlane, pods: Sequence[PodType]) -> float:
    """Percent of the GPUs that pods with a node have, once the scheduler has tried all of them."""
    deadline = time.monotonic() + 300
    while True:
        found = plane.ask("GET", _TEAM)["items"]
        bound = [int(one["metadata"]["name"][1:]) for one in found if one["spec"].get("nodeName")]
        tried = [
            one
            for one in found
            if one["spec"].get("nodeName")
            or any(row["type"] == "PodScheduled" for row in one["status"].get("conditions", ()))
        ]
        if len(tried) == len(found):
            break
        assert time.monotonic() < deadline, f"{len(found) - len(tried)} pods were never tried"
        time.sleep(1)
    return 100 * sum(pods[number].demand for number in bound) / (NODES * GPUS * WHOLE_MILLI)


@pytest.mark.timeout(900)
def test_more_of_the_gpus_is_given_away(programs: Path, tmp_path: Path) -> None:
    kinds = workload()
    order, _ = arrivals(kinds, NODES, NODES * GPUS * WHOLE_MILLI * LOAD // 100, SEED)
    pods = [kinds[number] for number in order]
    figures: dict[str, float] = {}
    for name in ("stock", "extender"):
        (folder := tmp_path / name).mkdir()
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        url = f"http://127.0.0.1:{port}" if name == "extender" else ""
        with control_plane(programs, folder, url) as plane, contextlib.ExitStack() as stack:
            make_cluster(plane)
            kubeconfig, half = folder / "scheduler.conf", len(pods) // 2
            if not url:
                make_pods(plane, pods, 0)
                figures[name] = given(plane, pods)
                continue
            with extender(kubeconfig, port):
                make_pods(plane, pods[:half], 0)
                given(plane, pods)
                before = _answers(port)
            # It was killed: pods go on, and one that is started anew knows the same.
            make_pods(plane, pods[half : half + 10], half)
            given(plane, pods)
            stack.enter_context(extender(kubeconfig, port))
            make_pods(plane, pods[half + 10 :], half + 10)
            figures[name] = given(plane, pods)
            after = _answers(port)
            recorded = recording(kubeconfig, folder / "recording")
    expected = place_all(PlacementPolicy.SSP, kinds, rooms(), load=LOAD, seed=SEED).allocation[LOAD]
    print({**figures, "what-if": expected}, "answers before and after the kill:", before, after)
    # Pods that run, as `partage record --cluster` reads them of the same API server.
    assert abs(recorded - figures["extender"]) < 0.05, recorded
    assert before["scored"] > 0
    assert after["scored"] > 0
    assert figures["extender"] > figures["stock"]
    assert abs(figures["extender"] - expected) < CLOSE


def recording(kubeconfig: Path, folder: Path) -> float:
    """Percent of the GPUs that pods have, as a recording of the cluster is simulated."""
    partage = [sys.executable, "-m", "partage"]
    record = ["record", "--cluster", f"--kubeconfig={kubeconfig}", "--to", str(folder)]
    subprocess.run([*partage, *record], check=True, timeout=120)
    files = ["--trace", str(folder / "PODS.csv"), "--nodes", str(folder / "NODES.csv")]
    simulate = ["simulate", *files, "--placement", "today", "-o", "json"]
    answer = json.loads(subprocess.run([*partage, *simulate], check=True, timeout=120, stdout=-1).stdout)
    first: float = next(iter(answer["placements"][0]["allocation"].values()))
    return first


def _answers(port: int) -> dict[str, float]:
    """How many so far, by result."""
    text = _asked(port, "/metrics")[1]
    found = re.findall(r'^partage_extender_requests_total\{result="(\w+)"\} (\S+)$', text, re.MULTILINE)
    return {result: float(count) for result, count in found}
