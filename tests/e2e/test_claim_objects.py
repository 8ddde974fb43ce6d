"""What a node publishes, at a real API server and scheduler without any kubelet: nothing is dropped, and
what the scheduler gives to claims is granted.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from partage.claims.decide.allocation import grant
from partage.claims.decide.devices import claim_devices
from partage.claims.decide.slices import slices_of
from partage.claims.model.claim import Claim, parse_claim
from partage.claims.model.grant import Granted
from partage.claims.model.names import OWN_NAMES
from partage.claims.model.slices import ServerVersion, SliceSpec, slice_of_json
from partage.edges.files.catalogue import geometry_of
from partage.model.share import DeviceOffer
from partage.plan.serve.claim_offer import Closed
from partage.units import GIB, MIB
from tests.claims.offers import amounts, machine, mig, offers, replicas, whole
from tests.e2e.control_plane import PROGRAMS, ControlPlane, Json, control_plane, until

DRIVER = OWN_NAMES.driver

ROOT = Path(__file__).parents[2]
API = "/apis/resource.k8s.io/v1"
CLAIMS = f"{API}/namespaces/default/resourceclaims"
PODS = "/api/v1/namespaces/default/pods"
ROWS = (whole(0), amounts(1, 79), replicas(2, 4), mig(3, 0), mig(3, 1), amounts(4, 5, 1536 * MIB))
ODD = (amounts(0, 1, 40 * GIB), replicas(1, 1), replicas(2, 1000), amounts(3, 79 * 1024, MIB))


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """The node node-a with the slices of ``ROWS``, a slice of another driver, and the chart's classes."""
    programs = os.environ.get("PARTAGE_E2E_BIN")
    if not programs:
        pytest.skip("no API server: make e2e builds one")
    assert all(Path(programs, name).exists() for name in PROGRAMS)
    with control_plane(Path(programs), tmp_path_factory.mktemp("control-plane")) as found:
        if version(found).too_old:
            pytest.skip(version(found).too_old)
        rendered = (ROOT / "tests" / "deploy" / "rendered" / "all.yaml").read_text()
        for made in filter(None, yaml.safe_load_all(rendered)):
            if made["kind"] == "DeviceClass":
                found.ask("POST", f"{API}/deviceclasses", made)
        found.add_node("node-a", 0, {"cpu": 64, "memory": "512Gi", "pods": 110})
        for number, spec in enumerate(published(found, ROWS)):
            post_slice(found, f"ours-{number}", spec.to_json())
        pool = {"name": "node-a", "generation": 1, "resourceSliceCount": 1}
        foreign = {
            "driver": "gpu.example.com",
            "nodeName": "node-a",
            "pool": pool,
            "devices": [{"name": "bare"}],
        }
        post_slice(found, "foreign", foreign)
        yield found


@pytest.fixture
def claims(plane: ControlPlane) -> Iterator[None]:
    """Removes what a test asked for: pods first, and claims as their controller would."""
    yield
    plane.ask("DELETE", PODS, {"gracePeriodSeconds": 0})
    for found in plane.ask("GET", CLAIMS)["items"]:
        found["status"] = {}
        place = f"{CLAIMS}/{found['metadata']['name']}"
        freed = plane.ask("PUT", f"{place}/status", found)
        freed["metadata"]["finalizers"] = []
        plane.ask("PUT", place, freed)
    plane.ask("DELETE", CLAIMS)
    until("no claim is left", lambda: not plane.ask("GET", CLAIMS)["items"])


def version(plane: ControlPlane) -> ServerVersion:
    return ServerVersion.parse(plane.ask("GET", "/version")["gitVersion"])


def published(plane: ControlPlane, rows: tuple[DeviceOffer, ...], **closed: Closed) -> tuple[SliceSpec, ...]:
    """The slices of a node with these rows. closed: by the name of a device, with _ for -."""
    inventory = machine(*rows)
    devices = claim_devices(offers(*rows), inventory, "node-a", geometry_of, OWN_NAMES)
    shut = {devices.rows[name.replace("_", "-")].device: why for name, why in closed.items()}
    return slices_of(devices, inventory, shut, version(plane), geometry_of)


def post_slice(plane: ControlPlane, name: str, spec: Json) -> Json:
    """What the API server has made of it."""
    answer = plane.ask("POST", f"{API}/resourceslices", {"metadata": {"name": name}, "spec": spec})
    kept: Json = answer["spec"]
    return kept


def ask_for(plane: ControlPlane, name: str, **request: object) -> None:
    """A claim with one request, and a pod that names it."""
    devices = {"requests": [{"name": "gpu", **request}]}
    plane.ask("POST", CLAIMS, {"metadata": {"name": name}, "spec": {"devices": devices}})
    resources = {"claims": [{"name": "gpu"}]}
    spec = {
        "containers": [{"name": "main", "image": "none", "resources": resources}],
        "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
    }
    plane.ask("POST", PODS, {"metadata": {"name": name}, "spec": spec})


def read(plane: ControlPlane, name: str) -> Claim:
    return parse_claim(json.dumps(plane.ask("GET", f"{CLAIMS}/{name}")).encode(), DRIVER)


def allocated(plane: ControlPlane, name: str) -> Claim:
    """The claim, once the scheduler has given it devices."""
    until(f"claim {name} has devices", lambda: read(plane, name).allocated, 20)
    return read(plane, name)


def why_not(plane: ControlPlane, name: str) -> str:
    """What the scheduler says of a pod that it cannot place."""
    conditions = plane.ask("GET", f"{PODS}/{name}").get("status", {}).get("conditions", [])
    said = [one.get("message", "") for one in conditions if one["type"] == "PodScheduled"]
    return said[0] if said else ""


def granted(claim: Claim, *kept: Granted) -> Granted:
    """What the node gives for it."""
    devices = claim_devices(offers(*ROWS), machine(*ROWS), "node-a", geometry_of, OWN_NAMES)
    found = grant(claim, claim.ref, devices, kept)
    assert isinstance(found, Granted), found
    return found


def exactly(device_class: str, capacity: Json | None = None, expression: str = "") -> Json:
    found: Json = {"deviceClassName": device_class}
    if capacity:
        found["capacity"] = {"requests": capacity}
    if expression:
        found["selectors"] = [{"cel": {"expression": expression}}]
    return found


@pytest.mark.parametrize("rows", [ROWS, ODD], ids=["usual", "odd"])
def test_the_api_server_keeps_all_that_is_published(
    plane: ControlPlane, rows: tuple[DeviceOffer, ...]
) -> None:
    ill = Closed("unhealthy", "is not healthy: XID 79", "79")
    for number, spec in enumerate(published(plane, rows, gpu_00000000=ill)):
        assert any(device.taints for device in spec.devices)
        name = f"tried-{number}"
        pool = {**spec.to_json()["pool"], "name": "another-pool"}
        sent = {**spec.to_json(), "nodeName": "node-b", "pool": pool}
        try:
            kept = slice_of_json(post_slice(plane, name, sent))
        finally:
            plane.ask("DELETE", f"{API}/resourceslices/{name}")
        # The API server writes when a taint was added.
        assert kept == slice_of_json(sent)


AMOUNTS = f"device.attributes['{DRIVER}'].mode == 'amounts'"
"""Else a whole GPU is as good for an amount: it has more memory than is asked for."""
LARGE = f"{AMOUNTS} && device.capacity['{DRIVER}'].memory.isGreaterThan(quantity('60Gi'))"
PROFILE = f"device.attributes['{DRIVER}'].profile == '1g.10gb'"
VERSION = f"device.attributes['{DRIVER}'].driverVersion.isGreaterThan(semver('500.0.0'))"
WHOLE = f"device.attributes['{DRIVER}'].mode == 'whole'"


@pytest.mark.parametrize(
    ("request_", "gpu", "ids", "cores"),
    [
        (exactly(DRIVER, expression=WHOLE), 0, 1, 0),
        (exactly(DRIVER, {"memory": "10Gi", "cores": "25"}), 1, 10, 25),
        (exactly(DRIVER, {"memory": "9.5Gi"}, LARGE), 1, 10, 0),
        (exactly(DRIVER, {"memory": "2Gi"}, LARGE.replace("isGreater", "isLess")), 4, 2, 0),
        (exactly("share.partage.dev"), 2, 1, 0),
        (exactly("share.partage.dev", {"shares": "3"}, VERSION), 2, 3, 0),
        (exactly("mig.partage.dev", expression=PROFILE), 3, 1, 0),
    ],
    ids=["whole", "amount", "rounded up", "odd unit", "even", "three of four", "mig"],
)
@pytest.mark.usefixtures("claims")
def test_what_the_scheduler_gives_is_granted(
    plane: ControlPlane, request_: Json, gpu: int, ids: int, cores: int
) -> None:
    ask_for(plane, "asks", exactly=request_)
    (share,) = granted(allocated(plane, "asks")).shares
    assert share.gpu.startswith(f"GPU-{gpu:08d}")
    assert (len(share.ids), share.cores) == (ids, cores)


@pytest.mark.usefixtures("claims")
def test_the_scheduler_and_the_node_count_the_same(plane: ControlPlane) -> None:
    """40 + 30 of 79 GiB: no whole GPU is left of it, nor 10 GiB, but 9."""
    kept: list[Granted] = []
    for name, memory in (("forty", "40Gi"), ("thirty", "30Gi")):
        ask_for(plane, name, exactly=exactly(DRIVER, {"memory": memory}, LARGE))
        kept.append(granted(allocated(plane, name), *kept))
    for name, capacity in (("whole", None), ("ten", {"memory": "10Gi"})):
        ask_for(plane, name, exactly=exactly(DRIVER, capacity, LARGE))
        until(f"{name} waits", lambda name=name: "cannot allocate all claims" in why_not(plane, name), 20)  # type: ignore[misc]
    ask_for(plane, "nine", exactly=exactly(DRIVER, {"memory": "9Gi"}, LARGE))
    kept.append(granted(allocated(plane, "nine"), *kept))
    ids = [id_ for one in kept for share in one.shares for id_ in share.ids]
    assert len(ids) == len(set(ids)) == 79


@pytest.mark.usefixtures("claims")
def test_the_first_that_is_there_of_several(plane: ControlPlane) -> None:
    hard = {"name": "hard", **exactly("mig.partage.dev", expression=PROFILE)}
    soft = {"name": "soft", **exactly(DRIVER, {"memory": "10Gi"}, LARGE)}
    kept: list[Granted] = []
    for name in ("first", "second", "third"):
        ask_for(plane, name, firstAvailable=[hard, soft])
        kept.append(granted(allocated(plane, name), *kept))
    assert [one.shares[0].request for one in kept] == ["gpu/hard", "gpu/hard", "gpu/soft"]
