"""What claims hold of each GPU, watched from outside: by their allocations, as the API server tells them."""

from __future__ import annotations

import json
import subprocess
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from partage.units import parse_quantity
from tests.e2e.claims import DRIVER, devices
from tests.e2e.cluster import Cluster, Json

_CLAIMS = "/apis/resource.k8s.io/v1/resourceclaims?watch=1&allowWatchBookmarks=false"


class ClaimSums:
    """Every change of a claim is looked at, so no interleaving is missed. memory_bytes: of each device."""

    def __init__(self, memory_bytes: dict[str, int]) -> None:
        self._memory_bytes = memory_bytes
        self._held: dict[str, list[Json]] = {}
        self.wrong: list[str] = []
        self.most_bytes: defaultdict[str, int] = defaultdict(int)
        """The largest sum that was seen on each device."""
        self.changes = 0

    def seen(self, change: Json) -> None:
        claim = change["object"]
        results = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
        if change["type"] == "DELETED":
            results = []
        self._held[claim["metadata"]["uid"]] = [one for one in results if one["driver"] == DRIVER]
        self.changes += 1
        sums: defaultdict[str, int] = defaultdict(int)
        for rows in self._held.values():
            for row in rows:
                sums[row["device"]] += int(parse_quantity(row["consumedCapacity"]["memory"]))
        for device, held_bytes in sums.items():
            self.most_bytes[device] = max(self.most_bytes[device], held_bytes)
            if held_bytes > self._memory_bytes[device]:
                self.wrong.append(f"{device}: {held_bytes} of {self._memory_bytes[device]} bytes")

    def begin_again(self) -> None:
        """A new watch tells of everything that is there."""
        self._held.clear()


@contextmanager
def watched_sums(cluster: Cluster) -> Iterator[ClaimSums]:
    """Until the end of the block, also while the API server is away for a moment."""
    published = devices(cluster)
    sizes = {
        name: int(parse_quantity(device["capacity"]["memory"]["value"])) for name, device in published.items()
    }
    sums, ended = ClaimSums(sizes), threading.Event()
    running: list[subprocess.Popen[str]] = []

    def watch() -> None:
        while not ended.is_set():
            sums.begin_again()
            command = ["kubectl", "--kubeconfig", str(cluster.kubeconfig), "get", "--raw", _CLAIMS]
            with subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            ) as asked:
                running[:] = [asked]
                assert asked.stdout is not None
                for line in asked.stdout:
                    try:
                        change = json.loads(line)
                    except ValueError:
                        break  # the API server has ended in the middle of a line
                    if change["type"] == "ERROR":
                        break
                    sums.seen(change)
                asked.terminate()
            ended.wait(0.2)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield sums
    finally:
        ended.set()
        for one in running:
            one.terminate()
        watching.join(30)
