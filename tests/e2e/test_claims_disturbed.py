"""Claims on a real cluster while something of it ends: helper, API server, a pod by force, the chart."""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from partage.doctor.decide.diagnose import diagnose
from partage.doctor.decide.finding import Finding
from partage.doctor.gather import see
from partage.doctor.gather_policy import GivenPolicy
from partage.doctor.host.root import DoctorPlace, NodeRoot
from partage.doctor.repair import carry_out
from tests.e2e.claims import DRIVER, EVEN, WHOLE, claimed, claiming, devices, part, template
from tests.e2e.cluster import MACHINE, NAMESPACE, Cluster, Json
from tests.e2e.test_claims import POLICY
from tests.e2e.test_claims import claims as claims  # noqa: PLC0414 - a fixture
from tests.e2e.test_claims import node as node  # noqa: PLC0414 - a fixture
from tests.e2e.test_forced_deletion import _delete_by_force, _stuck

pytestmark = pytest.mark.usefixtures("tenants", "claims")

VALUES: Json = {
    "hardware": {"machine": MACHINE},
    "config": {"map": {"default": POLICY}},
    "cdi": {"enabled": True},
    "dra": {"enabled": True},
}
FORGOTTEN_S = 30.0
"""A kubelet that does not reach a driver for so long deletes its slices."""


def parts(node: Cluster, *names: str) -> None:
    """Pods with 5 GiB of GPU 0 each."""
    node.apply(template("five", part("5Gi")), *(claiming(name, "five") for name in names))


def until_run(node: Cluster, *names: str) -> None:
    for name in names:
        node.until_phase(name, "Running", timeout_s=120)
    node.nothing_is_given_twice()


def claim_files(node: Cluster) -> list[str]:
    found = node.path_on_node("/run/partage/cdi").glob("gpu.partage.dev-claim_*")
    return sorted(path.name for path in found)


def records(node: Cluster) -> list[str]:
    return sorted(path.name for path in node.path_on_node("/var/lib/partage/claims").iterdir())


def test_the_helper_is_killed_while_claims_come(node: Cluster) -> None:
    parts(node, "before")
    until_run(node, "before")
    node.kill_container(node.component("hardware"), "hardware")
    parts(node, "during", "beside")
    until_run(node, "before", "during", "beside")
    assert len(claimed(node)) == 3


def test_the_api_server_is_killed_while_claims_come(node: Cluster) -> None:
    parts(node, "a", "b", "c", "d")
    node.stop_api_server()
    try:
        time.sleep(3)
    finally:
        node.start_api_server()
    until_run(node, "a", "b", "c", "d")
    node.until("the slices are as before", lambda: len(devices(node)) == 5)
    node.kubectl("delete", "pods", "a", "b", "--wait")
    node.until("two claims are left", lambda: len(claimed(node)) == 2)
    assert len(claim_files(node)) == len(records(node)) == 2


def test_a_gpu_of_a_pod_that_was_deleted_by_force_is_given_when_its_process_has_ended(node: Cluster) -> None:
    """The scheduler gives it at once (Kubernetes #141471); the node refuses."""
    node.apply(template("whole", WHOLE), claiming("left", "whole"))
    node.until_phase("left", "Running")
    (first,) = claimed(node)
    with _stuck(node, "left"):
        _delete_by_force(node, "left")
        node.apply(claiming("next", "whole"))
        said = node.until("it is refused", lambda: node.events("FailedPrepareDynamicResources", "next"))
        assert f"held by claim {first}" in said[-1] or f"claim {first} has the rest" in said[-1], said
        assert node.pod("next")["status"]["phase"] == "Pending"
    node.until_phase("next", "Running", timeout_s=180)
    node.nothing_is_given_twice()


@contextmanager
def gaps(node: Cluster) -> Iterator[list[float]]:
    """For how long nobody listened at any socket of the driver, in seconds, each time."""
    folder = node.path_on_node(f"/var/lib/kubelet/plugins/{DRIVER}")
    handle = os.open(folder, os.O_PATH)  # a path of the folder may be too long for a socket
    found, ended = list[float](), threading.Event()

    def answers() -> bool:
        for path in folder.glob("dra*.sock"):
            with socket.socket(socket.AF_UNIX) as one:
                try:
                    one.connect(f"/proc/self/fd/{handle}/{path.name}")
                except OSError:
                    continue
                return True
        return False

    def watch() -> None:
        last_s = time.monotonic()
        while not ended.wait(0.02):
            if answers():
                now_s = time.monotonic()
                if now_s - last_s > 0.2:
                    found.append(now_s - last_s)
                last_s = now_s

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()
        os.close(handle)


def test_an_upgrade_under_load(node: Cluster) -> None:
    """Pods come and go meanwhile. No slice is lost, and the kubelet reaches the driver again in time."""
    parts(node, "stays")
    until_run(node, "stays")
    shares, before = node.environment("stays")["PARTAGE_SHARES"], devices(node)
    agent = node.component("agent")["metadata"]["name"]
    with gaps(node) as found:
        node.install(**VALUES, agent={"logLevel": "debug"}, wait=False)
        for number in range(8):
            parts(node, f"load-{number}")
            if number >= 3:
                node.kubectl("delete", "pod", f"load-{number - 3}", "--wait=false")
        until_run(node, "stays", "load-5", "load-6", "load-7")
        node.until("another agent", lambda: node.component("agent")["metadata"]["name"] != agent)
        node.until("it serves", lambda: len(claimed(node)) == 4, timeout_s=90)
        node.until("the kubelet reaches it again", lambda: found, timeout_s=90)
    print(f"gaps: {[round(gap, 2) for gap in found]} s")
    assert len(found) == 1
    assert found[0] < FORGOTTEN_S
    assert node.environment("stays")["PARTAGE_SHARES"] == shares
    assert devices(node) == before
    assert len(claim_files(node)) == len(records(node)) == 4


def test_uninstalled_a_claims_cdi_file_stays_for_its_pod_and_the_doctor_names_it(node: Cluster) -> None:
    """A container that is started again needs it. The pod ends without a driver, and the file stays."""
    assert node.folder is not None
    made = claiming("stays", "even")
    made["spec"]["restartPolicy"] = "Always"
    node.apply(template("even", EVEN), made)
    node.until_phase("stays", "Running")
    told = node.environment("stays")
    (claim,) = claimed(node)
    node.run("helm", "uninstall", "partage", "-n", NAMESPACE, "--wait")
    node.until("its pods are gone", lambda: not node.get("pods", "-n", NAMESPACE)["items"])
    (left,) = claim_files(node)

    node.kill_container(node.pod("stays"), "main")
    node.until("it is started again", lambda: _restarts(node, "stays") == 1, timeout_s=90)
    assert node.environment("stays") == told

    place = DoctorPlace(
        NodeRoot(node.folder / "node"),
        "/var/lib/kubelet/device-plugins",
        "/var/lib/partage",
        "/run/partage",
        machine=MACHINE,
    )
    finding = _of_claims(place)
    assert finding.evidence == (f"/run/partage/cdi/{left}: of claim {claim}, which pod default/stays has",)
    assert finding.repairs == ()

    node.kubectl("delete", "pod", "stays", "--wait")
    (repair,) = node.until("nobody needs it", lambda: _of_claims(place).repairs)
    assert carry_out(place, repair).left == ""
    assert claim_files(node) == []
    node.install(**VALUES)
    node.until("nothing is left", lambda: not records(node))
    node.until("the slices are back", lambda: len(devices(node)) == 5)
    assert claimed(node) == set()


def _of_claims(place: DoctorPlace) -> Finding:
    found = diagnose(see(place, GivenPolicy())).findings
    return next(finding for finding in found if finding.code == "claim-files-left")


def _restarts(node: Cluster, name: str) -> int:
    (status,) = node.pod(name)["status"]["containerStatuses"]
    return int(status["restartCount"]) if status["ready"] else 0


def test_nothing_of_the_claims_is_logged_as_a_fault_of_ours(node: Cluster) -> None:
    """After all of the above."""
    logged = node.kubectl("logs", "-n", NAMESPACE, "-l", "app.kubernetes.io/component=agent", "--tail=-1")
    assert not re.search(r"Traceback|a call for claims failed", logged), logged
