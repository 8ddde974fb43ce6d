"""What other systems publish as examples, as it is, on a real Kubernetes: whatever asks only for numbers,
memory, percentages, cores, GPU types or UUIDs runs.

``PARTAGE_E2E_PUBLISHED`` is a folder with copies of the repositories, OWNER+NAME/repo each (git); they are
not part of Partage. ``docs/reference/other-systems.md`` has what was seen.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from tests.e2e.claims import devices, make_device_files, remove_installed, skip_without_claims
from tests.e2e.cluster import Cluster, Json
from tests.e2e.published import REPOSITORIES, Published, commit_of, fitted, published
from tests.e2e.webhook import TRANSLATED, create

FOLDER = os.environ.get("PARTAGE_E2E_PUBLISHED", "")
pytestmark = pytest.mark.skipif(not FOLDER, reason="no copies of other systems' repositories")
_UUIDS = ("GPU-03f69c50-207a-2038-9b45-23cac89cb67d", "GPU-03f69c50-207a-2038-9b45-23cac89cb67e")
"""That HAMi's examples name."""
_KINDS = (
    (14, "exclusive: {}"),
    (1, "time-slicing: {replicas: 4}"),
    (2, "mig: {layout: [3g.20gb, 1g.10gb, 1g.10gb]}"),
    (6, "via: claims, exclusive: {}"),
    (8, "via: claims, mps: {unit: 1Gi}"),
    (14, "via: claims, time-slicing: {unit: 1Gi}"),
    (2, "via: claims, mig: {layout: [2g.10gb, 2g.10gb, 2g.10gb]}"),
)
_KINDS_OF_CLAIMS = (
    (2, "via: claims, mps: {unit: 1Gi}"),
    (3, "via: claims, time-slicing: {replicas: 4}"),
    (1, "via: claims, exclusive: {}"),
)
"""Where no device plugin lists nvidia.com/gpu."""
KAI, HAMI_VOLCANO = "kai-scheduler/KAI-Scheduler", "Project-HAMi/volcano-vgpu-device-plugin"
TOGETHER = "which the default scheduler does not do"
OTHERS_CLAIM = "imex-channel-0"
"""A claim for NVIDIA's other driver, which is not there."""
NOT_RUN = {
    (HAMI_VOLCANO, "README.md"): "asks for a library inside the container",
    (KAI, "batch-job-min-member.yaml"): TOGETHER,
    (KAI, "external-podgroup-job.yaml"): TOGETHER,
    (KAI, "multi-topology-jobs.yaml"): TOGETHER,
    (KAI, "topology-aliases.yaml"): TOGETHER,
    (KAI, "gpu-imex-pod.yaml"): OTHERS_CLAIM,
    ("AliyunContainerService/gpushare-scheduler-extender", "4.yaml"): "16276Gi",  # meant in MiB
}
"""By repository and name of the file: what is said."""
_AT_ONCE = 14
"""GPUs that the objects of one turn ask for."""


class _Outcome(NamedTuple):
    """result: ``claims``, ``as it is``, ``kind``, ``refused`` or ``waits``."""

    found: Published
    result: str
    said: str = ""


def _expected(found: Published) -> str | None:
    return NOT_RUN.get((found.repository, Path(found.file).name))


def all_published() -> list[Published]:
    folders = {repository: Path(FOLDER, repository.replace("/", "+"), "repo") for repository in REPOSITORIES}
    return [found for repository, folder in folders.items() for found in published(folder, repository)]


def machine_of(kinds: Sequence[tuple[int, str]]) -> tuple[str, Json]:
    """The policy, and the machine."""
    lines, gpus = ["version: partage/v1", "gpus:"], list[Json]()
    for count, kind in kinds:
        places = list(range(len(gpus), len(gpus) + count))
        lines.append(f"  - {{select: {{index: {places}}}, {kind}}}")
        named = zip(places, _UUIDS, strict=False) if kind == "via: claims, exclusive: {}" else ()
        uuids = dict(named)
        gpus += (
            {"name": "NVIDIA A100-SXM4-40GB", **({"uuid": uuids[place]} if place in uuids else {})}
            for place in places
        )
    return "\n".join(lines) + "\n", {"gpus": gpus}


def installed(cluster: Cluster, kinds: Sequence[tuple[int, str]], **admission: str) -> None:
    policy, machine = machine_of(kinds)
    assert cluster.folder is not None
    file = cluster.folder / "published.json"
    file.write_text(json.dumps(machine))
    cluster.install(
        hardware={"machine": f"/driver-root{file}"},
        config={"map": {"default": policy}},
        cdi={"enabled": True},
        dra={"enabled": True},
        admission={"enabled": True, **admission},
    )
    through = sum(count * kind.count("via: claims") for count, kind in kinds)
    cluster.until("slices", lambda: len(_gpus_for_claims(cluster)) == through, 120)
    make_device_files(cluster)


def _gpus_for_claims(cluster: Cluster) -> set[str]:
    named = ("parentUUID", "uuid")  # a MIG device has both
    rows = [device["attributes"] for device in devices(cluster).values()]
    return {next(row[name]["string"] for name in named if name in row) for row in rows}


@pytest.fixture
def node(cluster: Cluster) -> Iterator[Cluster]:
    skip_without_claims(cluster)
    try:
        yield cluster
    finally:
        remove_installed(cluster)


def remove_all(cluster: Cluster) -> None:
    cluster.remove_tenants()
    cluster.until(
        "nothing is left", lambda: not cluster.get("pods", "-l", "partage-e2e=tenant")["items"], 120
    )
    cluster.until("nothing is held", lambda: not cluster.get("resourceclaims")["items"], 120)


def turns(rows: Iterable[Published]) -> Iterator[list[Published]]:
    """Objects that find room beside each other."""
    turn, gpus = list[Published](), 0
    for found in rows:
        asked = _gpus(found)
        if turn and gpus + asked > _AT_ONCE:
            yield turn
            turn, gpus = [], 0
        turn.append(found)
        gpus += asked
    if turn:
        yield turn


def _gpus(found: Published) -> int:
    if not found.is_own_kind:
        return 0
    text = yaml.safe_dump(found.document)
    numbers = map(int, re.findall(r"nvidia\.com/gpu: '?(\d+)", text))
    return _pods(found.document) * max([1, *numbers])


def _pods(document: Json) -> int:
    spec = document["spec"]
    return int(spec.get("replicas") or spec.get("parallelism") or 1)


def outcomes(cluster: Cluster, rows: Sequence[Published]) -> list[_Outcome]:
    """All at once; those that stay wait are given some time."""
    names = {f"published-{number}": found for number, found in enumerate(rows)}
    made = {name: create(cluster, fitted(found, name)) for name, found in names.items() if found.is_own_kind}
    seen: dict[str, _Outcome] = {}

    def all_seen() -> bool:
        for name, found in names.items():
            if name not in seen and (outcome := _seen(cluster, found, name, made)) is not None:
                seen[name] = outcome
        return len(seen) == len(names)

    try:
        cluster.until("all are judged", all_seen, 100)
    except AssertionError:
        for name in names.keys() - seen.keys():
            events = cluster.get("events")["items"]
            said = {
                event["message"] for event in events if event["involvedObject"]["name"].startswith(f"{name}")
            }
            seen[name] = _Outcome(names[name], "waits", " | ".join(sorted(said)))
    return [seen[name] for name in names]


def _seen(cluster: Cluster, found: Published, name: str, made: dict[str, str]) -> _Outcome | None:
    if not found.is_own_kind:
        said = create(cluster, found.document)
        assert "no matches for kind" in said, said
        return _Outcome(found, "kind", found.document["kind"])
    if "created" not in made[name]:
        return _Outcome(found, "refused", made[name])
    pods = cluster.get("pods", "-l", f"app={name}")["items"]
    if len(pods) == _pods(found.document) and all(pod["status"]["phase"] == "Running" for pod in pods):
        claims = {
            TRANSLATED in pod["metadata"].get("annotations", {}) and "resourceClaims" in pod["spec"]
            for pod in pods
        }
        (one,) = claims
        return _Outcome(found, "claims" if one else "as it is")
    refused = [
        event["message"]
        for event in cluster.get("events", "--field-selector=reason=FailedCreate")["items"]
        if event["involvedObject"]["name"].startswith(name) and "admission.partage.dev" in event["message"]
    ]
    return _Outcome(found, "refused", refused[-1]) if refused and not pods else None


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_what_they_publish_runs(node: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    installed(node, _KINDS)
    judged: list[_Outcome] = []
    for turn in turns(all_published()):
        judged += outcomes(node, turn)
        remove_all(node)
    with capsys.disabled():
        _print(judged)
    wrong = []
    for outcome in judged:
        expected = _expected(outcome.found)
        runs = outcome.result in ("claims", "as it is", "kind")
        if runs is (expected is not None) or (expected and expected not in outcome.said):
            wrong.append(f"{outcome.found.where}: {outcome.result}: {outcome.said}")
    assert wrong == []
    assert sum(outcome.result == "claims" for outcome in judged) > 30


def _print(judged: Iterable[_Outcome]) -> None:
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for outcome in judged:
        counts[outcome.found.repository][outcome.result] += 1
        if outcome.result not in ("claims", "as it is"):
            print(f"{outcome.found.repository} {outcome.found.where}: {outcome.result}: {outcome.said[:400]}")
    for repository, results in counts.items():
        folder = Path(FOLDER, repository.replace("/", "+"), "repo")
        print(f"{repository} {commit_of(folder)}: {results.total()} objects, {dict(results)}")


def test_check_and_migrate_say_the_same_of_the_files(tmp_path: Path) -> None:
    """Without a cluster."""
    policy, machine = machine_of(_KINDS)
    tmp_path.joinpath("policy.yaml").write_text(policy)
    tmp_path.joinpath("machine.json").write_text(json.dumps(machine))
    wrong: list[str] = []
    for number, found in enumerate(one for one in all_published() if one.is_own_kind):
        file = tmp_path / f"{number}.yaml"
        file.write_text(yaml.safe_dump(fitted(found, f"published-{number}")))
        terms = ("--policy", tmp_path / "policy.yaml", "--machine", tmp_path / "machine.json")
        said = {}
        for verb in ("migrate", "check"):
            partage = [sys.executable, "-m", "partage", verb, file, *terms]
            done = subprocess.run(partage, capture_output=True, text=True, check=False)
            said[verb] = done.returncode, done.stdout + done.stderr
        expected = _expected(found)
        if expected in (OTHERS_CLAIM, ""):
            continue
        wrong += (
            f"{found.where}: {verb}: {code}: {text}"
            for verb, (code, text) in said.items()
            if (code == 0) is (expected is not None) or (expected and expected not in text)
        )
    assert wrong == []
