"""Two nodes of one cluster, and what a rollout over them says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.e2e.cluster import MACHINE, NAMESPACE, Cluster, Json

REPLICAS = "version: partage/v1\ngpus:\n  - select: all\n    time-slicing: {replicas: %d}\n"
POLICIES = "fleet-policies"
LEASE = "partage-rollout-0"
NOTE = "partage.dev/rollout"


class Fleet:
    """Two nodes with the chart. Of ``nodes`` the second is the canary."""

    def __init__(self, first: Cluster, second: Cluster) -> None:
        self.first, self.second = first, second
        self.nodes = (first, second)

    def install(self, canary: dict[str, str], max_changing: int = 1) -> None:
        self.first.install(
            hardware={"machine": MACHINE},
            config={"name": POLICIES},
            cluster={"drain": True},
            rollout={"maxChanging": max_changing, "canary": canary},
        )

    def edit(self, policy: str) -> None:
        """The one edit for both nodes."""
        metadata = {"name": POLICIES, "namespace": NAMESPACE}
        config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
        self.first.apply(config_map | {"data": {"default": policy}})

    def until_allocatable(self, expected: dict[str, int]) -> None:
        for node in self.nodes:
            node.until_allocatable(expected)

    def note(self, node: Cluster) -> Json:
        """What a node says of itself."""
        found: Json = json.loads(node.get("node", node.node)["metadata"]["annotations"][NOTE])
        return found

    def rollout(self) -> tuple[int, dict[str, Any]]:
        command = [sys.executable, "-m", "partage", "rollout", "-n", NAMESPACE, "-o", "json"]
        environment = {**os.environ, "KUBECONFIG": str(self.first.kubeconfig)}
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=60, env=environment
        )
        assert not done.stderr, done.stderr
        return done.returncode, json.loads(done.stdout)

    def until_done(self) -> None:
        """No node waits or changes, and the slot is free."""
        self.first.until("the rollout is done", lambda: self.rollout()[0] == 0)

    @contextmanager
    def watched(self, *what: str) -> Iterator[Path]:
        """Every version of an object, or of all of a kind, from now on: a file with a line for each."""
        command = ["kubectl", "--kubeconfig", str(self.first.kubeconfig), "get", *what, "--watch"]
        with tempfile.NamedTemporaryFile(suffix=".watch") as seen:
            watch = subprocess.Popen(command, stdout=seen)
            try:
                self.first.until("the watch has begun", lambda: Path(seen.name).stat().st_size > 0)
                yield Path(seen.name)
            finally:
                watch.kill()
                watch.wait()

    def holder(self, slot: int = 0) -> str:
        """The node that holds a slot; empty: none does."""
        lease = f"partage-rollout-{slot}"
        return str(self.first.get("lease", lease, "-n", NAMESPACE).get("spec", {}).get("holderIdentity", ""))

    def give_slot(self, holder: str | None) -> None:
        """What a person does who frees the slot (None), or gives it to somebody else."""
        patch = Cluster.json({"spec": {"holderIdentity": holder}})
        self.first.kubectl("patch", "lease", LEASE, "-n", NAMESPACE, "--type=merge", "-p", patch)

    def holders(self) -> Any:
        """Who holds the Lease, in the order in which the API server has had it."""
        return self.watched("lease", LEASE, "-n", NAMESPACE, "-o", r"jsonpath=[{.spec.holderIdentity}]{'\n'}")

    def notes(self) -> Any:
        """What the nodes say, in the order in which the API server has had it."""
        shown = r"jsonpath={.metadata.name} {.metadata.annotations.partage\.dev/rollout}{'\n'}"
        return self.watched("nodes", "-o", shown)


def changes(seen: Path) -> list[str]:
    """Lines that differ from the one before."""
    lines = [line.strip("[]") for line in seen.read_text().splitlines()]
    return [line for number, line in enumerate(lines) if number == 0 or line != lines[number - 1]]
