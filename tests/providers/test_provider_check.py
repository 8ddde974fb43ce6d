"""``partage check --provider``: every rule of every provider, right and wrong."""

import json
from itertools import chain
from typing import Any

import pytest
from msgspec.structs import replace

from partage.cli.main import run
from partage.codec.yaml_document import read_document
from partage.edges.files.catalogue import provider_tables
from partage.edges.files.policy import parse_policy
from partage.errors import InputError
from partage.kubernetes.manifests.pods import POD_SPEC_AT
from partage.providers.check import ProviderContext, judge_cluster, judge_manifest, judge_policy
from partage.providers.files import (
    find_provider,
    layout_tables,
    provider_names,
    read_provider,
    read_worker_groups,
)

H100 = {"gpu": "h100-sxm5-80gb"}
SINGLE = {**H100, "mig": "single", "layout": "all-1g.10gb"}
WHOLE = {**H100, "mig": "none-with-operator"}
SLICED, MPS = {"sharing": "time-slicing", "replicas": 4}, {"sharing": "mps", "replicas": 4}


def _pod(limits, selector=None, *, ipc=False):
    containers = [{"name": "main", "resources": {"limits": limits}}]
    spec = {"containers": containers, "nodeSelector": selector or {}, "hostIPC": ipc}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}


def _entry(**sharing):
    return {"version": "partage/v1", "gpus": [{"select": "all", **sharing}]}


NATIVE_PART = {"version": "partage/v1", "gpus": [{"select": {"index": [0, 1]}, "mps": {"replicas": 2}}]}
NATIVE_UNEQUAL = _entry(
    mps={"clients": [{"name": "nvidia.com/a", "memory": "4Gi"}, {"name": "nvidia.com/b", "memory": "8Gi"}]}
)
MIXED_SLICED = {
    "version": "v1",
    "flags": {"migStrategy": "mixed"},
    "sharing": {"timeSlicing": {"resources": [{"name": "nvidia.com/mig-3g.40gb", "replicas": 2}]}},
}
GPU, SHARED, ONE = "nvidia.com/gpu", "nvidia.com/gpu.shared", {"nvidia.com/gpu": 1}
STRATEGY, CLIENTS = (
    "cloud.google.com/gke-gpu-sharing-strategy",
    "cloud.google.com/gke-max-shared-clients-per-gpu",
)
PARTITION, ACK = "cloud.google.com/gke-gpu-partition-size", "ack.node.gpu.schedule"
GKE_MPS = {STRATEGY: "mps"}
GKE_SLICED = {STRATEGY: "time-sharing"}
MEM, CORE = "aliyun.com/gpu-mem", "aliyun.com/gpu-core.percentage"
CAPABLE = {"nvidia.com/mps.capable": "true"}

RIGHT = [
    ("ack", [], [], _entry(mps={"unit": "1Gi"})),
    ("fpt", [{"gpu": "A100", "mig": "single", "layout": "all-2g.20gb"}], [], None),  # the title of its table
    ("fpt", [{**SINGLE, **SLICED}], [_pod(ONE)], None),
    (
        "fpt",
        [
            {**SINGLE, "sharing": "time-slicing", "replicas": 48},
            {**SINGLE, "gpu": "H200 SXM", "layout": "all-1g.18gb"},
        ],
        [],
        None,
    ),
    ("fpt", [{**WHOLE, "sharing": "mps", "replicas": 2}], [_pod(ONE, ipc=True)], None),
    ("fpt", [{**WHOLE, "sharing": "mps", "replicas": 48}, {**H100, "mig": "none"}], [], None),
    ("fpt", [{**WHOLE, "sharing": "time-slicing", "replicas": 2}], [_pod(ONE)], None),
    (
        "fpt",
        [{**H100, "mig": "mixed", "layout": "all-balanced"}],
        [_pod({"nvidia.com/mig-3g.40gb": 1})],
        None,
    ),
    ("fpt", [{**WHOLE}], [_pod({GPU: 8})], None),
    ("fpt", [{"gpu": "rtx-4090", "mig": "none-with-operator", **MPS}], [_pod(ONE, ipc=True)], None),
    ("fpt", [], [], _entry(mps={"replicas": 48})),
    ("ack", [{**H100, **MPS, "labels": {ACK: "mps"}}], [_pod({MEM: 79}, ipc=True)], None),
    ("ack", [{**H100, **SLICED, "labels": {ACK: "core_mem"}}], [_pod({MEM: 8, CORE: 25})], None),
    ("ack", [{**H100, "labels": {ACK: "default"}}, {**H100}], [_pod({GPU: 2}, {ACK: "default"})], None),
    ("ack", [], [_pod({MEM: 4}, {ACK: "mps"}, ipc=True)], None),
    (
        "gke",
        [{**H100, **MPS, "gpus": 1, "labels": {**GKE_MPS, CLIENTS: "4"}}],
        [_pod({GPU: 2}, ipc=True)],
        None,
    ),
    (
        "gke",
        [
            {
                **SINGLE,
                "sharing": "time-slicing",
                "replicas": 48,
                "labels": {**GKE_SLICED, PARTITION: "1g.10gb"},
            }
        ],
        [_pod(ONE)],
        None,
    ),
    ("gke", [], [_pod(ONE, {**GKE_MPS, CLIENTS: "48"}, ipc=True)], None),
    ("nvidia", [{**H100, **MPS, "labels": CAPABLE}], [_pod(ONE)], None),
    ("nvidia", [{**SINGLE, "sharing": "time-slicing", "replicas": 100}], [_pod({SHARED: 1})], None),
    ("nvidia", [], [], _entry(**{"time-slicing": {"replicas": 2}})),
    ("kubernetes", [{**WHOLE, **SLICED}], [_pod({SHARED: 1}), _pod(ONE)], None),
    ("kubernetes", [], [_pod({"cpu": 2})], NATIVE_PART),
]

UNITS = _entry(mps={"unit": "1Gi"})
WRONG = [
    ("fpt", [], [], UNITS, "error: gpus[0]: makes equal shares only"),
    ("gke", [], [], UNITS, "error: gpus[0]: makes equal shares only"),
    ("fpt", [], [], NATIVE_UNEQUAL, "error: gpus[0]: makes equal shares only"),
    # The names of MIG devices are judged by the model that a policy selects.
    (
        "gke",
        [],
        [],
        {"version": "partage/v1", "gpus": [{"select": {"model": "l4"}, "mig": {"layout": ["1g.10gb"]}}]},
        "error: gpus[0]: l4 has no MIG",
    ),
    (
        "kubernetes",
        [],
        [],
        {
            "version": "partage/v1",
            "gpus": [{"select": {"model": "h200-141gb"}, "mig": {"layout": ["2g.25gb"]}}],
        },
        "error: gpus[0]: h200-141gb has no MIG profile 2g.25gb",
    ),
    # A list of profiles that each exist, and do not fit together; one without MIG.
    (
        "gke",
        [{**SINGLE, "layout": ["3g.40gb", "3g.40gb", "3g.40gb"]}],
        [],
        None,
        "error: groups[0].layout: h100-sxm5-80gb has no room for it",
    ),
    ("gke", [{**WHOLE, "layout": ["1g.10gb"]}], [], None, "error: groups[0].layout: has a layout, but"),
    (
        "fpt",
        [{**WHOLE, "sharing": "mps", "replicas": 49}],
        [],
        None,
        "error: groups[0]: allows 2 to 48 shares under MPS, not 49",
    ),
    (
        "fpt",
        [{**WHOLE, "sharing": "mps", "replicas": 1}],
        [],
        None,
        "error: groups[0]: allows 2 to 48 shares under MPS, not 1",
    ),
    (
        "fpt",
        [{**SINGLE, "sharing": "time-slicing", "replicas": 49}],
        [],
        None,
        "error: groups[0]: 2 to 48 shares under time-slicing, not 49",
    ),
    ("fpt", [], [], _entry(**{"time-slicing": {"replicas": 49}}), "error: gpus[0]: not 49"),
    (
        "fpt",
        [SINGLE, {**H100, "mig": "mixed", "layout": "all-1g.10gb"}],
        [],
        None,
        "error: groups[1].mig: one kind of MIG",
    ),
    ("fpt", [SINGLE, WHOLE], [], None, "error: groups[1].mig: one kind of MIG"),
    (
        "fpt",
        [{**H100, "mig": "mixed", "layout": "all-balanced", **SLICED}],
        [],
        None,
        "error: groups[0]: no time-slicing with MIG type mixed",
    ),
    (
        "fpt",
        [],
        [],
        MIXED_SLICED,
        "error: sharing.timeSlicing.resources[0]: no time-slicing with MIG type mixed",
    ),
    ("fpt", [{**H100, "mig": "none", **MPS}], [], None, "warning: groups[0]: no MPS with MIG type none"),
    ("fpt", [], [], NATIVE_PART, "error: gpus[0]: shares all GPUs of a node in one way"),
    (
        "fpt",
        [{"gpu": "a30-24gb", "mig": "single", "layout": "all-1g.6gb"}],
        [],
        None,
        "error: groups[0].gpu: no MIG on a30-24gb",
    ),
    ("fpt", [{"gpu": "rtx-4090", "mig": "single"}], [], None, "error: groups[0].mig: rtx-4090 has no MIG"),
    (
        "fpt",
        [{**SINGLE, "layout": "all-1g.18gb"}],
        [],
        None,
        "error: groups[0].layout: no layout all-1g.18gb",
    ),
    ("fpt", [{**SINGLE, "layout": ["1g.18gb"]}], [], None, "error: groups[0]: no MIG profile 1g.18gb"),
    ("fpt", [{**WHOLE, "layout": "all-1g.10gb"}], [], None, "error: groups[0].layout: has a layout, but"),
    (
        "fpt",
        [{**SINGLE, "gpu": "h200-141gb", "layout": "all-2g.25gb"}],
        [],
        None,
        "warning: groups[0].layout: all-2g.25gb is a misprint",
    ),
    (
        "fpt",
        [{**SINGLE, "gpu": "a100-80gb", "layout": "all-1g.20gb"}],
        [],
        None,
        "warning: groups[0].layout: all-1g.20gb is a misprint",
    ),
    (
        "fpt",
        [{**SINGLE, "gpu": "a100-80gb", "layout": "all-7g.80gb"}],
        [],
        None,
        "warning: groups[0].layout: does not list all-7g.80gb",
    ),
    ("fpt", [{**SINGLE, "layout": "all-balanced"}], [], None, "error: groups[0]: several profiles"),
    (
        "fpt",
        [{**WHOLE, **MPS}],
        [_pod({GPU: 2}, ipc=True)],
        None,
        "error: spec.containers[0].resources.limits.nvidia.com/gpu: asks for exactly 1",
    ),
    (
        "fpt",
        [{**SINGLE, **SLICED}],
        [_pod({GPU: 2})],
        None,
        "warning: spec.containers[0].resources.limits.nvidia.com/gpu: asks for exactly 1",
    ),
    ("fpt", [{**WHOLE, **MPS}], [_pod(ONE)], None, "error: spec: no hostIPC: true"),
    ("fpt", [{**WHOLE, **MPS}, WHOLE], [_pod(ONE)], None, "warning: spec: no hostIPC: true"),
    (
        "fpt",
        [{**H100, "mig": "mixed", "layout": "all-balanced"}],
        [_pod(ONE)],
        None,
        "error: spec.containers[0].resources.limits.nvidia.com/gpu: no worker group that it can run on",
    ),
    (
        "fpt",
        [{**WHOLE, "labels": {"pool": "a"}}],
        [_pod(ONE, {"pool": "b"})],
        None,
        "error: spec.nodeSelector: would stay pending",
    ),
    ("ack", [{**H100, **MPS}], [], None, "error: groups[0].labels: no label ack.node.gpu.schedule"),
    (
        "ack",
        [{**H100, **MPS, "labels": {ACK: "cgpu"}}],
        [],
        None,
        "error: groups[0].labels.ack.node.gpu.schedule: means time-slicing",
    ),
    (
        "ack",
        [{**H100, "labels": {ACK: "exclusive"}}],
        [],
        None,
        "error: groups[0].labels.ack.node.gpu.schedule: 'exclusive' is no value",
    ),
    (
        "ack",
        [{**H100, "labels": {"ack.node.gpu.placement": "pack"}}],
        [],
        None,
        "error: groups[0].labels.ack.node.gpu.placement: 'pack' is no value",
    ),
    ("ack", [], [], NATIVE_PART, "error: gpus[0]: in one way"),
    (
        "ack",
        [],
        [_pod({MEM: "5.5"}, {ACK: "share"})],
        None,
        "error: spec.containers[0].resources.limits.aliyun.com/gpu-mem: no whole number",
    ),
    (
        "ack",
        [],
        [_pod({MEM: 0}, {ACK: "share"})],
        None,
        "error: spec.containers[0].resources.limits.aliyun.com/gpu-mem: has to be 1 or more",
    ),
    (
        "ack",
        [{**H100, **MPS, "labels": {ACK: "mps"}}],
        [_pod({MEM: 81}, ipc=True)],
        None,
        "error: spec.containers[0].resources.limits.aliyun.com/gpu-mem: the largest has",
    ),
    (
        "ack",
        [],
        [_pod({MEM: 4, CORE: 7}, {ACK: "core_mem"})],
        None,
        "error: spec.containers[0].resources.limits.aliyun.com/gpu-core.percentage: a multiple of 5",
    ),
    (
        "ack",
        [],
        [_pod({MEM: 4, CORE: 25}, {ACK: "mps"}, ipc=True)],
        None,
        "error: spec.containers[0].resources.limits.aliyun.com/gpu-core.percentage: core_mem",
    ),
    (
        "ack",
        [],
        [_pod({MEM: 4}, {ACK: "default"})],
        None,
        "error: spec.containers[0].resources.limits.aliyun.com/gpu-mem: is offered by nodes with",
    ),
    (
        "ack",
        [],
        [_pod(ONE, {ACK: "mps"}, ipc=True)],
        None,
        "error: spec.containers[0].resources.limits.nvidia.com/gpu: is offered by nodes with",
    ),
    ("ack", [], [_pod({MEM: 4, GPU: 1})], None, "error: spec: which no node of ACK offers together"),
    ("ack", [], [_pod({MEM: 4}, {ACK: "mps"})], None, "error: spec: no hostIPC: true"),
    (
        "ack",
        [{**H100, **MPS, "labels": {ACK: "mps"}}],
        [_pod({"nvidia.com/gpu.shared": 1}, ipc=True)],
        None,
        "error: spec.containers[0].resources.limits.nvidia.com/gpu.shared: offers",
    ),
    ("ack", [{**SINGLE, "layout": "all-1g.5gb"}], [], None, "error: groups[0].layout: no layout"),
    (
        "gke",
        [{**H100, "sharing": "mps", "replicas": 49, "labels": GKE_MPS}],
        [],
        None,
        "error: groups[0]: 2 to 48 shares under MPS",
    ),
    (
        "gke",
        [{**H100, "sharing": "time-slicing", "replicas": 49, "labels": GKE_SLICED}],
        [],
        None,
        "error: groups[0]: 2 to 48 shares under time-slicing",
    ),
    ("gke", [{**H100, **MPS}], [], None, "error: groups[0].labels: no label"),
    (
        "gke",
        [],
        [_pod(ONE, {STRATEGY: "time-slicing"})],
        None,
        f"error: spec.nodeSelector.{STRATEGY}: no value",
    ),
    (
        "gke",
        [],
        [_pod(ONE, {CLIENTS: "49"})],
        None,
        f"error: spec.nodeSelector.{CLIENTS}: has to be 2 to 48, not 49",
    ),
    (
        "gke",
        [{**H100, **MPS, "labels": {**GKE_MPS, CLIENTS: "5"}}],
        [],
        None,
        f"error: groups[0].labels.{CLIENTS}: says 5 shares",
    ),
    (
        "gke",
        [{**SINGLE, "labels": {PARTITION: "1g.5gb"}}],
        [],
        None,
        f"error: groups[0].labels.{PARTITION}: no MIG profile 1g.5gb",
    ),
    ("gke", [], [], NATIVE_PART, "error: gpus[0]: in one way"),
    ("gke", [], [], NATIVE_UNEQUAL, "error: gpus[0]: equal shares only"),
    (
        "gke",
        [],
        [_pod({GPU: 2}, GKE_SLICED)],
        None,
        "error: spec.containers[0].resources.limits.nvidia.com/gpu: exactly 1",
    ),
    (
        "gke",
        [{**H100, **MPS, "gpus": 2, "labels": GKE_MPS}],
        [_pod({GPU: 2}, ipc=True)],
        None,
        "error: spec.containers[0].resources.limits.nvidia.com/gpu: exactly 1",
    ),
    (
        "gke",
        [],
        [_pod({GPU: 2}, GKE_MPS, ipc=True)],
        None,
        "warning: spec.containers[0].resources.limits.nvidia.com/gpu: exactly 1",
    ),
    ("gke", [], [_pod(ONE, GKE_MPS)], None, "error: spec: no hostIPC: true"),
    (
        "gke",
        [{**H100}],
        [_pod({SHARED: 1})],
        None,
        "error: spec.containers[0].resources.limits.nvidia.com/gpu.shared: offers",
    ),
    ("gke", [{**SINGLE, "layout": "all-1g.5gb"}], [], None, "error: groups[0].layout: no layout"),
    ("gke", [{**SINGLE, "layout": "all-balanced"}], [], None, "error: groups[0]: several profiles"),
    (
        "nvidia",
        [{**H100, "sharing": "time-slicing", "replicas": 1}],
        [],
        None,
        "error: groups[0]: 2 or more shares",
    ),
    (
        "nvidia",
        [{**H100, "sharing": "mps", "replicas": 61, "labels": CAPABLE}],
        [],
        None,
        "error: groups[0]: 2 to 60 shares",
    ),
    (
        "nvidia",
        [{**H100, "sharing": "mps", "replicas": 49, "labels": CAPABLE}],
        [],
        None,
        "warning: groups[0]: newer drivers only",
    ),
    ("nvidia", [], [], NATIVE_UNEQUAL, "error: gpus[0]: equal shares only"),
    ("nvidia", [], [], NATIVE_PART, "error: gpus[0]: in one way"),
    (
        "nvidia",
        [{**SINGLE, **MPS, "labels": CAPABLE}],
        [],
        None,
        "error: groups[0]: no MPS with MIG type single",
    ),
    ("nvidia", [{**SINGLE, "layout": "all-balanced"}], [], None, "error: groups[0]: several profiles"),
    ("nvidia", [{**SINGLE, "layout": "all-1g.5gb"}], [], None, "error: groups[0].layout: no layout"),
    ("nvidia", [{**H100, **MPS}], [], None, "error: groups[0].labels: nvidia.com/mps.capable=true"),
    (
        "nvidia",
        [{**H100, "labels": {"nvidia.com/gpu.sharing-strategy": "mps"}}],
        [],
        None,
        "error: groups[0].labels.nvidia.com/gpu.sharing-strategy: means MPS",
    ),
    (
        "nvidia",
        [{**H100, **MPS, "labels": CAPABLE}],
        [_pod({GPU: 2})],
        None,
        "error: spec.containers[0].resources.limits.nvidia.com/gpu: exactly 1",
    ),
    (
        "nvidia",
        [{**H100, **SLICED}],
        [_pod({GPU: 2})],
        None,
        "warning: spec.containers[0].resources.limits.nvidia.com/gpu: exactly 1",
    ),
    (
        "nvidia",
        [{**H100}],
        [_pod({SHARED: 1})],
        None,
        "error: spec.containers[0].resources.limits.nvidia.com/gpu.shared: offers",
    ),
    (
        "kubernetes",
        [],
        [_pod({GPU: "0.5"})],
        None,
        "error: spec.containers[0].resources.limits.nvidia.com/gpu: no whole number",
    ),
    (
        "kubernetes",
        [],
        [_pod({SHARED: "0.5"})],
        None,
        "error: spec.containers[0].resources.limits.nvidia.com/gpu.shared: no whole number",
    ),
    (
        "kubernetes",
        [{**H100, "sharing": "time-slicing", "replicas": 1}],
        [],
        None,
        "error: groups[0]: 2 or more",
    ),
    ("kubernetes", [{**H100, "sharing": "mps", "replicas": 61}], [], None, "error: groups[0]: 2 to 60"),
    ("kubernetes", [{**SINGLE, "layout": "all-balanced"}], [], None, "error: groups[0]: several profiles"),
    ("kubernetes", [{**SINGLE, "layout": "all-1g.5gb"}], [], None, "error: groups[0].layout: no layout"),
    (
        "kubernetes",
        [{**H100}],
        [_pod({SHARED: 1})],
        None,
        "error: spec.containers[0].resources.limits.nvidia.com/gpu.shared: offers",
    ),
]


def _found(provider, groups, pods, policy):
    """The problems of the documents, as ``severity: path: message``."""
    context = ProviderContext(provider, layout_tables(provider))
    document = read_document(json.dumps({"kind": "WorkerGroups", "groups": groups}).encode(), "c")
    read, _ = read_worker_groups(document, "c")
    found = [*judge_cluster(read, document.value, "c", document.line, context)]
    context = replace(context, groups=read)
    found += chain.from_iterable(judge_manifest(pod, "p", "", lambda *_: None, context) for pod in pods)
    if policy is not None:
        found += judge_policy(parse_policy(json.dumps(policy).encode(), "y", None, {}).policy, "y", context)
    return [f"{one.problem.severity}: {one.problem.path}: {one.problem.message}" for one in found]


@pytest.mark.parametrize(("provider", "groups", "pods", "policy"), RIGHT)
def test_what_a_provider_allows_is_left_in_peace(provider, groups, pods, policy):
    assert _found(find_provider(provider), groups, pods, policy) == []


@pytest.mark.parametrize(("provider", "groups", "pods", "policy", "said"), WRONG)
def test_what_a_provider_does_not_allow_is_named_with_its_place(provider, groups, pods, policy, said):
    severity, path, message = said.split(": ", 2)
    found = _found(find_provider(provider), groups, pods, policy)
    assert any(one.startswith(f"{severity}: {path}: ") and message in one for one in found), found


@pytest.mark.parametrize("name", provider_names())
def test_every_rule_of_a_provider_has_a_wrong_example_that_only_it_finds(name):
    provider = find_provider(name)
    for number, rule in enumerate(provider.rules):
        without = replace(provider, rules=(*provider.rules[:number], *provider.rules[number + 1 :]))
        cases = [case[1:4] for case in WRONG if case[0] == name]
        assert any(_found(provider, *case) != _found(without, *case) for case in cases), rule


@pytest.mark.parametrize("name", provider_names())
def test_every_rule_says_where_it_is_from(name):
    assert all(rule.source for rule in find_provider(name).rules)


@pytest.mark.parametrize(
    "table", [t for t in provider_tables() if t.provider == "FPT"], ids=lambda t: t.title
)
def test_every_row_of_fpts_tables_is_allowed_and_misprints_are_said(table):
    for row in table.rows:
        kind = "mixed" if len(set(row.right)) > 1 else "single"
        found = _found(
            find_provider("fpt"), [{"gpu": table.models[0], "mig": kind, "layout": row.name}], [], None
        )
        assert [one.split(":")[0] for one in found] == ["warning"] * row.wrong, row


@pytest.mark.parametrize("kind", POD_SPEC_AT)
def test_pods_of_every_kind_of_object_are_judged(kind):
    spec = _pod({GPU: 2}, GKE_SLICED)["spec"]
    body: dict[str, Any] = {}
    here = body
    for key in POD_SPEC_AT[kind][:-1]:
        here = here.setdefault(key, {})
    here["spec"] = spec
    document = {"apiVersion": "v1", "kind": kind, "metadata": {"name": "p"}, **body}
    [said] = _found(find_provider("gke"), [], [document], None)
    assert ".".join(POD_SPEC_AT[kind]) in said


def test_a_provider_is_one_file_also_one_of_the_operators_own(tmp_path, capsys):
    own = tmp_path / "house.yaml"
    own.write_text(
        "name: house\ntitle: the house\nrules:\n"
        "  - {type: replicas, sharing: mps, least: 2, most: 4, source: our own handbook}\n"
    )
    cluster = tmp_path / "c.yaml"
    cluster.write_text("kind: WorkerGroups\ngroups: [{name: a, gpu: l4, sharing: mps, replicas: 5}]\n")
    assert run(["check", "-o", "json", "--provider", str(own), str(cluster)]) == 2
    [problem] = json.loads(capsys.readouterr().out)["problems"]
    assert (problem["file"], problem["path"]) == (str(cluster), "groups[0]")
    assert "line 2: the house allows 2 to 4 shares under MPS, not 5" in problem["message"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: x\ntitle: x\nrules: [{type: nonsense, source: x}]", "nonsense"),
        ("name: x\ntitle: x\nrules: [{type: host-ipc, sharing: mps}]", "source"),
        ("name: x\ntitle: x\nrules: [{type: host-ipc, sharing: mps, source: x, most: 3}]", "most"),
        ("[]", "array"),
    ],
)
def test_rules_that_do_not_exist_are_refused(text, said):
    with pytest.raises(InputError, match=said):
        read_provider(text.encode(), "own.yaml")


def test_an_unknown_provider_is_named_with_those_that_exist(capsys, tmp_path):
    policy = tmp_path / "p.yaml"
    policy.write_text(json.dumps(NATIVE_PART))
    assert run(["check", "--provider", "ftp", str(policy)]) == 2
    assert "fpt" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("group", "path"),
    [
        ({"gpu": "h100-sxm5-80gb", "mig": "all"}, "groups[0].mig"),
        ({"gpu": "h1000"}, "groups[0].gpu"),
        ({"gpu": "h100"}, "groups[0].gpu"),
        ({}, "groups[0]"),
        ({"gpu": "l4", "replicas": 3}, "groups[0].replicas"),
        ({"gpu": "l4", "layout": "all-nothing"}, "groups[0].layout"),
        ({"gpu": "l4", "label": {}}, "groups[0].label"),
        ({"gpu": "l4", "labels": {"a": 1}}, "groups[0].labels.a"),
    ],
)
def test_a_cluster_file_is_read_strictly(group, path):
    document = read_document(json.dumps({"kind": "WorkerGroups", "groups": [group]}).encode(), "c")
    with pytest.raises(InputError) as refused:
        read_worker_groups(document, "c")
    assert path in [problem.path for problem in refused.value.problems]
