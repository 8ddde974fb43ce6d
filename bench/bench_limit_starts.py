"""What the hook of memory limits costs a start on the real Kubernetes.

``python -m bench.bench_limit_starts FOLDER [STARTS]``. FOLDER: of a cluster that ``tests/cluster/up`` has
started, with the image of this source (PATH and PARTAGE_E2E_BIN as for the tests in tests/e2e). Pods of eight
shares of a simulated GPU start (100, 8 at a time), by turns with our hook, in front of the stand-in for NVML,
and with one that does nothing in its place. A start is what containerd says: from the container's creation to
the start of its task. On a machine that has cgroup v2 beside v1, both are behind a program that shows them v2
alone, which costs both the same.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from tests.e2e.cluster import SHARED, Cluster
from tests.e2e.conftest import IMAGE
from tests.e2e.tenants import pod
from tests.e2e.test_driver_limits import HOOK, LimitedNode, install_limited
from tests.edges.cdi.limit_hook.node import hook_in_cgroup2

BUDGET = 1.1
AT_ONCE = 8
HOOKS = "a hook that does nothing", "Partage's hook"
_EVENT = re.compile(r"^(\S+ \S+) \+0000 UTC \S+ (/containers/create|/tasks/start) (.*)$")


def main() -> None:
    """Measure and print."""
    folder, starts = Path(sys.argv[1]), int([*sys.argv, "100"][2])
    cluster = Cluster(folder / "admin.conf", IMAGE, folder)
    cluster.load(Path(os.environ["PARTAGE_E2E_BIN"]) / "partage.tar")
    node = LimitedNode(cluster)
    install_limited(node)
    times: dict[str, list[float]] = {what: [] for what in HOOKS}
    try:
        for turn in range(-(-starts // AT_ONCE) + 1):
            for what in HOOKS[:: -1 if turn % 2 else 1]:
                measured = _batch(node, what, f"t{turn}")
                times[what] += measured if turn else []
    finally:
        cluster.remove_tenants()
        cluster.uninstall()
    load = os.getloadavg()[0]
    print(f"{len(times[HOOKS[0]])} starts of each, {AT_ONCE} at a time, by turns; load {load:.1f}")
    p99 = {what: sorted(each)[min(len(each) - 1, len(each) * 99 // 100)] for what, each in times.items()}
    for what, each in times.items():
        print(f"  {what:26}  median {statistics.median(each):7.1f} ms   p99 {p99[what]:7.1f} ms")
    print(f"  p99 is {p99[HOOKS[1]] / p99[HOOKS[0]]:.2f} times as long (at most {BUDGET})")


def _batch(node: LimitedNode, what: str, turn: str) -> list[float]:
    """Milliseconds of each start."""
    program = node.program if what == HOOKS[1] else Path("/bin/true")
    hook_in_cgroup2(program, node.cluster.path_on_node(HOOK))
    names = [f"{turn}-{number}-{'own' if what == HOOKS[1] else 'none'}" for number in range(AT_ONCE)]
    with _events(node.cluster) as lines:
        node.cluster.apply(*(pod(name, {SHARED: 1}) for name in names))
        ids = set()
        for name in names:
            found = node.cluster.until_phase(name, "Running", timeout_s=120)
            (status,) = found["status"]["containerStatuses"]
            ids.add(status["containerID"].removeprefix("containerd://"))
    node.cluster.remove_tenants()
    node.cluster.until("no container is left", lambda: not node.cluster.given())
    began, took = {}, []
    for line in lines:
        if (event := _EVENT.match(line)) is None:
            continue
        at, told = datetime.fromisoformat(event[1][:26]), json.loads(event[3])
        if event[2] == "/containers/create":
            began[told["id"]] = at
        elif (id_ := told["container_id"]) in ids:
            took.append((at - began[id_]).total_seconds() * 1000)
    assert len(took) == AT_ONCE, lines
    return took


@contextmanager
def _events(cluster: Cluster) -> Iterator[list[str]]:
    """What containerd says meanwhile; complete afterwards."""
    words = "ctr", "-a", f"{cluster.folder}/containerd.sock", "-n", "k8s.io", "events"
    watching = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    lines: list[str] = []
    try:
        yield lines
    finally:
        watching.terminate()
        said, _ = watching.communicate()
        lines += said.splitlines()


if __name__ == "__main__":
    main()
