"""``partage explain`` for manifests and shares: simulated nodes, and reports of agents."""

import json

import pytest
from msgspec import Raw
from msgspec.structs import replace

from partage.agent.status.readiness import ReadinessReason
from partage.cli.main import run
from partage.codec.values import encode_replacing
from partage.explain.pod_needs import pods_of
from partage.model.ids import MEMORY_RESOURCE, ResourceName
from tests.answers.reports import a_document, a_report


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    """Cells of a table that are folded cannot be found in its text."""
    monkeypatch.setenv("COLUMNS", "220")


POLICY = """\
version: partage/v1
gpus:
  - {select: {index: [0]}, time-slicing: {replicas: 4}}
  - {select: {index: [1]}, time-slicing: {replicas: 2}, name: nvidia.com/gpu.slow}
  - {select: rest, exclusive: {}}
"""
UNITS = "version: partage/v1\ngpus: [{select: all, time-slicing: {unit: 1Gi}}]\n"
SHARED, WHOLE = ResourceName("nvidia.com/gpu.shared"), ResourceName("nvidia.com/gpu")
MEMORY = MEMORY_RESOURCE


def manifest(tmp_path, *limits, kind="Pod", **spec):
    containers = [
        {"name": f"c{n}", "image": "x", "resources": {"limits": one}} for n, one in enumerate(limits)
    ]
    pod = {"containers": containers, **spec}
    shown = pod if kind == "Pod" else {"template": {"spec": pod}}
    document = {
        "apiVersion": "v1",
        "kind": kind,
        "metadata": {"name": "new", "namespace": "team"},
        "spec": shown,
    }
    path = tmp_path / "pod.yaml"
    path.write_text(json.dumps(document))
    return str(path)


def explained(capsys, *words):
    """Exit code and document."""
    code = run(["explain", *words, "-o", "json"])
    return code, json.loads(capsys.readouterr().out)


def texts(rows):
    return [row["text"] for row in rows]


@pytest.fixture
def policy(tmp_path):
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY)
    return ["--machine", "4xh100-sxm5-80gb", "--policy", str(path)]


@pytest.fixture
def reports(tmp_path):
    """n1: all shares of GPU 0 are held, GPU 3 has a fault. n2: memory by amounts."""
    folder = tmp_path / "reports"
    (folder / "n2").mkdir(parents=True)
    holders = [("a", "one", "main"), ("a", "one", "main"), ("a", "two", "main"), ("a", "three", "main")]
    first = a_report(
        "4xh100-sxm5-80gb",
        POLICY,
        held={SHARED: range(4), WHOLE: [0]},
        pods=[*holders, ("b", "big", "main")],
        faults={3: 79},
    )
    (folder / "n1.json").write_bytes(encode_replacing(a_document(first)))
    second = a_report(
        "2xh100-sxm5-80gb",
        UNITS,
        held={MEMORY: [*range(50), *range(79, 120)]},
        pods=[("c", "p1", "main")] * 50 + [("c", "p2", "main")] * 41,
    )
    (folder / "n2" / "report.json").write_bytes(encode_replacing(a_document(second)))
    return ["--reports", str(folder)]


@pytest.mark.parametrize(
    ("limits", "reason", "change"),
    [
        (
            [{WHOLE: 5}],
            "the pod asks for 5 x nvidia.com/gpu; the node has 2",
            "nvidia.com/gpu: 2 in place of 5",
        ),
        ([{SHARED: 2}], "more shares give it no more", "ask for nvidia.com/gpu.shared: 1 in place of 2"),
        ([{"nvidia.com/gpu.share": 1}], "nothing here is offered as", "ask for nvidia.com/gpu.shared: 1"),
        ([{SHARED: 1}] * 5, "asks for 5 x nvidia.com/gpu.shared", "raise replicas from 4 to 5 in gpus[0]"),
        ([{"nvidia.com/mig-2g.20gb": 1}], "nothing here is offered as nvidia.com/mig-2g.20gb", "ask for"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_on_a_simulated_node(capsys, tmp_path, policy, limits, reason, change):
    code, document = explained(capsys, manifest(tmp_path, *limits), *policy)
    (node,) = document["pods"][0]["nodes"]
    assert code == 1
    assert reason in node["reason"]["text"]
    assert change in node["changes"][0]["text"]
    assert node["enough"]


def test_a_pod_that_fits_is_exit_code_0(capsys, tmp_path, policy):
    code = run(["explain", manifest(tmp_path, {WHOLE: 2}, kind="Deployment"), *policy])
    out = " ".join(capsys.readouterr().out.split())
    assert code == 0
    asks = "Deployment/new (namespace team) asks for 2 x nvidia.com/gpu (container c0)"
    assert out == f"{asks}, and fits on 4xh100-sxm5-80gb."
    run(["explain", manifest(tmp_path, {WHOLE: 2}, kind="Deployment"), *policy, "-o", "wide"])
    out = " ".join(capsys.readouterr().out.split())
    assert f"{asks}. It fits on 4xh100-sxm5-80gb." in out
    assert "0 it is offered as nvidia.com/gpu.shared" in out


def test_what_is_wrong_with_other_nodes_is_short_where_the_pod_fits(capsys, tmp_path):
    """Faults of four nodes, and a file that is no report: which node each is of."""
    folder = tmp_path / "reports"
    folder.mkdir()
    for number in range(4):
        sick = ReadinessReason("gpu-unhealthy", f"GPU {number} is sick")
        made = replace(a_document(a_report("4xh100-sxm5-80gb", POLICY)), degraded=(sick,))
        (folder / f"node-{number}.json").write_bytes(encode_replacing(made))
    (folder / "broken.json").write_text("{")
    asked = manifest(tmp_path, {WHOLE: 1})
    assert run(["explain", asked, "--reports", str(folder)]) == 0
    said = capsys.readouterr()
    assert sum(line.startswith("!") for line in said.out.splitlines()) == 3
    assert "more remarks about nodes: -o wide" in said.out
    assert "warning: broken: its report cannot be read" in said.err
    assert run(["explain", asked, "--reports", str(folder), "-o", "wide"]) == 0
    wide = capsys.readouterr().out
    assert all(f"node-{number}: GPU {number} is sick" in wide for number in range(4))


def test_a_pod_that_fits_one_of_thirty_nodes_is_one_line(capsys, tmp_path, policy):
    many = [word for _ in range(29) for word in ("--machine", "3xh100-sxm5-80gb")]
    assert run(["explain", manifest(tmp_path, {WHOLE: 2}), *policy, *many]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.endswith("and fits on 4xh100-sxm5-80gb, 1 of 30 nodes.")


def test_nobody_has_to_end_where_the_pod_fits(capsys, tmp_path, reports):
    code, document = explained(capsys, manifest(tmp_path, {MEMORY: 20}), *reports)
    fitting = [node for node in document["pods"][0]["nodes"] if node["fits"]]
    assert code == 0
    assert fitting
    assert [gpu["change"] for node in fitting for gpu in node["gpus"] if gpu["change"]] == []


def test_one_share_does_not_stand_for_several_gpus(capsys, tmp_path, policy):
    _, document = explained(capsys, manifest(tmp_path, {WHOLE: 4}), *policy)
    (node,) = document["pods"][0]["nodes"]
    ways = [texts(node["changes"]), *(texts(way) for way in node["others"])]
    assert ways == [["ask for nvidia.com/gpu: 2 in place of 4 in container c0"]]


@pytest.mark.parametrize(
    ("word", "form"),
    [
        ("notebook", "partage explain pod notebook"),
        ("team-a/notebook", "partage explain pod team-a/notebook"),
        ("pod/notebook", "partage explain pod notebook"),
        ("3", "partage explain share 3"),
        ("GPU-5d0f", "partage explain share GPU-5d0f"),
    ],
)
def test_a_name_alone_is_told_the_right_form(capsys, word, form):
    assert run(["explain", word]) == 2
    assert form in capsys.readouterr().err


def test_labels_that_nobody_knows_here_are_said(capsys, tmp_path, policy):
    selector = {"nvidia.com/gpu.count": "4", "pool": "a"}
    file = manifest(tmp_path, {WHOLE: 1}, nodeSelector=selector)
    code, document = explained(capsys, file, *policy)
    assert (code, document["pods"][0]["nodes"][0]["assumed"]) == (0, ["pool=a"])
    code, document = explained(capsys, file, *policy, "--node-labels", "pool=b")
    (node,) = document["pods"][0]["nodes"]
    assert node["reason"]["text"] == "the pod wants a node with the label pool=a; this one has pool=b"
    assert node["changes"][0]["text"].startswith("kubectl label node 4xh100-sxm5-80gb pool=a")
    selector["nvidia.com/gpu.count"] = "8"
    _, document = explained(capsys, manifest(tmp_path, {WHOLE: 1}, nodeSelector=selector), *policy)
    assert "the label nvidia.com/gpu.count=8" in document["pods"][0]["nodes"][0]["reason"]["text"]


def test_who_has_to_end(capsys, tmp_path, reports):
    _, document = explained(capsys, manifest(tmp_path, {SHARED: 1}), *reports)
    near, far = document["pods"][0]["nodes"]
    assert (near["name"], far["name"]) == ("n1", "n2")
    assert near["reason"]["kind"] == "all-held"
    assert texts(near["changes"]) == ["wait until pod a/three has ended, or end it"]
    assert near["gpus"][0]["reason"]["text"] == "none of 4 is free; held by a/one, a/two, a/three"
    assert near["gpus"][1]["reason"]["text"] == "it is offered as nvidia.com/gpu.slow"
    assert far["reason"]["kind"] == "not-offered"


def test_a_gpu_with_a_fault_and_one_that_is_held(capsys, tmp_path, reports):
    _, document = explained(capsys, manifest(tmp_path, {WHOLE: 2}), *reports)
    node = document["pods"][0]["nodes"][0]
    assert [one["kind"] for one in node["changes"]] == ["wait-for-pods", "repair-gpu"]
    assert "XID 79" in node["gpus"][3]["reason"]["text"]
    assert node["gpus"][2]["reason"]["text"] == "held by b/big"


def test_an_amount_that_no_single_gpu_has(capsys, tmp_path, reports):
    _, document = explained(capsys, manifest(tmp_path, {MEMORY: 40}), *reports)
    node = document["pods"][0]["nodes"][0]
    assert (node["name"], node["refusedAtNode"]) == ("n2", True)
    assert "38 GiB free (67 GiB on all GPUs together)" in node["reason"]["text"]
    assert texts(node["changes"]) == ["wait until pod c/p2 has ended, or end it"]
    assert "ask for aliyun.com/gpu-mem: 38 (38 GiB)" in node["others"][0][0]["text"]
    code, document = explained(capsys, manifest(tmp_path, {MEMORY: 38}, {MEMORY: 29}), *reports)
    assert code == 0, document


def test_an_init_container_that_binds_the_pod_to_a_gpu_without_room(capsys, tmp_path, reports):
    """The kubelet gives its units again; less for the main container would be poor advice."""
    init = {"name": "load", "image": "x", "resources": {"limits": {MEMORY: 3}}}
    code, document = explained(capsys, manifest(tmp_path, {MEMORY: 38}, initContainers=[init]), *reports)
    node = document["pods"][0]["nodes"][0]
    assert (code, node["refusedAtNode"]) == (1, True)
    assert f"ask for no {MEMORY} in init container load" in str(node["changes"] + node["others"])


# --- shares -----------------------------------------------------------------------------------------


def test_who_holds_a_share(capsys, reports):
    code, document = explained(capsys, "share", "a/one", *reports)
    (row,) = document["shares"]
    assert (code, row["node"], row["gpu"], len(row["shares"])) == (0, "n1", 0, 2)
    assert row["holders"] == ["a/one/main"]
    assert row["standing"].startswith("held by a/one since 2023-11-14 22:13:10 UTC (10 s): the kubelet names")
    assert row["guarantee"] == "none"
    assert "a neighbour can use all of it" in row["whyGuarantee"]
    assert row["next"] == "kubectl describe pod -n a one"
    for name in (row["shares"][0], row["shares"][0].partition("::")[0], SHARED):
        assert "a/one/main" in str(explained(capsys, "share", name, *reports)[1])


def test_a_share_that_nobody_gets(capsys, reports):
    rows = explained(capsys, "share", "3", *reports)[1]["shares"]
    assert [(row["node"], row["state"], row["guarantee"]) for row in rows] == [("n1", "not given", "hard")]
    assert "XID 79" in rows[0]["standing"]
    assert run(["explain", "share", "0", *reports]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "none: a neighbour can use all of it; time slices share out the processors" in out


MIG_AND_MPS = """\
version: partage/v1
gpus:
  - {select: {index: [0]}, mps: {replicas: 4}}
  - {select: {index: [1]}, mig: {layout: [3g.40gb, 1g.10gb]}}
  - {select: rest, exclusive: {}}
"""


def test_gpus_that_offer_nothing_yet(capsys, tmp_path):
    """GPU 0 has a holder from before it was shared, GPU 1 waits for its layout."""
    holder = [("a", "one", "main")]
    report = a_report("4xh100-sxm5-80gb", MIG_AND_MPS, held={SHARED: [0]}, pods=holder, served=False)
    (tmp_path / "n1.json").write_bytes(encode_replacing(a_document(report)))
    there = ["--reports", str(tmp_path)]
    (row,) = explained(capsys, "share", "a/one", *there)[1]["shares"]
    assert (row["gpu"], row["state"], row["guarantee"]) == (0, "held", None)
    assert row["standing"].endswith("nothing like it is offered now, and it is kept until its pod ends")
    (row,) = explained(capsys, "share", "1", *there)[1]["shares"]
    assert (row["state"], row["resource"]) == ("not offered", None)
    assert "the layout has still to be made" in row["standing"]
    assert run(["explain", "share", "1", *there]) == 0
    assert "nothing is offered, so nothing is guaranteed" in capsys.readouterr().out
    _, document = explained(capsys, manifest(tmp_path, {"nvidia.com/mig-3g.40gb": 1}), *there)
    node = document["pods"][0]["nodes"][0]
    assert texts(node["changes"]) == ["wait until GPU 1 has changed; partage show says how far it is"]
    assert node["gpus"][0]["reason"]["text"] == "it is not offered"


def test_the_agent_of_this_node_is_asked_first(capsys, tmp_path):
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    report = a_report("4xh100-sxm5-80gb", POLICY, held={WHOLE: [0, 1]}, pods=[("b", "big", "main")] * 2)
    (run_dir / "report.json").write_bytes(encode_replacing(a_document(report)))
    here = ["--machine", "4xh100-sxm5-80gb", "--run-dir", str(run_dir)]
    code, document = explained(capsys, manifest(tmp_path, {WHOLE: 1}), *here)
    assert (code, texts(document["pods"][0]["nodes"][0]["changes"])) == (
        1,
        ["wait until pod b/big has ended, or end it"],
    )
    assert run(["explain", "share", "b/big", *here]) == 0
    capsys.readouterr()
    (tmp_path / "free.yaml").write_text("version: partage/v1\n")
    assert (
        run(["explain", manifest(tmp_path, {WHOLE: 4}), *here, "--policy", str(tmp_path / "free.yaml")]) == 0
    )


def test_a_report_of_another_version_says_less_and_no_wrong(capsys, tmp_path):
    report = a_report("4xh100-sxm5-80gb", POLICY, held={SHARED: [0]}, pods=[("a", "one", "main")])
    document = replace(a_document(report), planned_from=Raw(b"null"))
    (tmp_path / "n1.json").write_bytes(encode_replacing(document))
    there = ["--reports", str(tmp_path)]
    assert explained(capsys, manifest(tmp_path, {SHARED: 1}, {SHARED: 1}, {SHARED: 1}), *there)[0] == 0
    assert explained(capsys, manifest(tmp_path, *[{SHARED: 1}] * 4), *there)[0] == 1


def test_nodes_that_are_alike_are_one_row(capsys, tmp_path, policy):
    assert run(["explain", manifest(tmp_path, {WHOLE: 4}), *policy[:2], *policy]) == 1
    out = capsys.readouterr().out
    assert out.count("the pod asks for 4") == 1
    assert out.count("offered as nvidia.com/gpu.slow") == 1


# --- wrong input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["pod"], "say which pod"),
        (["node", "x"], "is none of pod, share, job"),
        (["share", "nobody/here"], "no pod of that name holds a share"),
        (["missing.yaml"], "missing.yaml"),
        (["job", "1"], "goes without nodes"),
        (["share", "0", "--cluster"], "only agents know"),
        (["x.yaml", "-n", "a"], "--namespace goes with pod"),
        (["share", "0", "--machine", "1xl40s"], "--reports goes without"),
    ],
)
def test_wrong_words(capsys, reports, words, said):
    assert run(["explain", *words, *reports]) == 2
    assert said in capsys.readouterr().err


def test_wrong_files(capsys, tmp_path, policy):
    assert run(["explain", manifest(tmp_path, {"cpu": 1}), *policy]) == 2
    assert "no container asks for a GPU" in capsys.readouterr().err
    assert run(["explain", manifest(tmp_path, {WHOLE: "1.5"}), *policy]) == 2
    assert "spec.containers[0].resources.limits.nvidia.com/gpu" in capsys.readouterr().err
    (tmp_path / "policy.yaml").read_text()
    assert run(["explain", str(tmp_path / "policy.yaml"), *policy]) == 2
    assert "is no Kubernetes manifest" in capsys.readouterr().err
    assert run(["explain", "share", "0", "--machine", "1xl40s"]) == 4


def test_a_pod_as_kubernetes_counts_it():
    (pod,) = pods_of(
        {
            "kind": "Pod",
            "spec": {
                "initContainers": [
                    {"name": "i", "resources": {"limits": {WHOLE: 3, "cpu": "1500m"}}},
                    {"name": "s", "restartPolicy": "Always", "resources": {"limits": {WHOLE: "1"}}},
                ],
                "containers": [
                    {
                        "name": "c",
                        "resources": {"limits": {WHOLE: 1, "memory": "2Gi"}, "requests": {"memory": "1Gi"}},
                    }
                ],
                "overhead": {"cpu": "250m"},
            },
        }
    )
    assert pod.totals == {WHOLE: 3, "cpu": 1750, "memory": 2**30}


def test_what_a_pod_asks_for_as_a_whole_counts_in_place_of_its_containers():
    """Kubernetes 1.34: resources of a pod."""
    containers = [{"name": name, "resources": {"requests": {"cpu": 1}}} for name in "ab"]
    whole = {"requests": {"cpu": 3}, "limits": {"cpu": 9, "memory": "1Gi"}}
    (pod,) = pods_of({"kind": "Pod", "spec": {"containers": containers, "resources": whole}})
    assert pod.totals == {"cpu": 3000, "memory": 2**30}


@pytest.mark.parametrize(
    ("resources", "said"),
    [
        ({"requests": {SHARED: 1}}, "needs a limit"),
        ({"requests": {SHARED: 1}, "limits": {SHARED: 2}}, "differ"),
    ],
)
def test_a_pod_that_kubernetes_refuses_is_not_said_to_fit(capsys, tmp_path, policy, resources, said):
    path = tmp_path / "refused.yaml"
    pod = {"containers": [{"name": "c", "image": "x", "resources": resources}]}
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "Pod", "spec": pod}))
    assert run(["explain", str(path), *policy]) == 2
    assert said in capsys.readouterr().err


def test_each_kind_of_pod_of_a_foreign_object_is_tried(capsys, tmp_path, policy):
    def template(resource):
        container = {"name": "c", "image": "x", "resources": {"limits": {resource: 1}}}
        return {"template": {"spec": {"containers": [container]}}}

    job = {"pytorchReplicaSpecs": {"Master": template(SHARED), "Worker": template("nvidia.com/gpu.other")}}
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps({"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "spec": job}))
    code, document = explained(capsys, str(path), *policy)
    assert code == 1
    assert [(pod["name"], pod["nodes"][0]["fits"]) for pod in document["pods"]] == [
        ("PyTorchJob, spec.pytorchReplicaSpecs.Master.template.spec", True),
        ("PyTorchJob, spec.pytorchReplicaSpecs.Worker.template.spec", False),
    ]


REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"affinity": {"podAntiAffinity": {REQUIRED: [{"topologyKey": "zone"}]}}}, "podAntiAffinity"),
        ({"affinity": {"podAffinity": {REQUIRED: [{"topologyKey": "zone"}]}}}, "podAffinity"),
        ({"topologySpreadConstraints": [{"whenUnsatisfiable": "DoNotSchedule"}]}, "topologySpread"),
        ({"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "d"}}]}, "volumes"),
        ({"schedulingGates": [{"name": "quota"}]}, "scheduling gates (quota)"),
        ({"schedulerName": "volcano"}, "the scheduler volcano"),
        ({"runtimeClassName": "kata"}, "runtime class kata"),
    ],
)
def test_what_is_not_looked_at_is_said(capsys, tmp_path, policy, spec, said):
    file = manifest(tmp_path, {SHARED: 1}, **spec)
    code, document = explained(capsys, file, *policy)
    (line,) = document["pods"][0]["notJudged"]
    assert (code, said in line) == (0, True)
    assert run(["explain", file, *policy]) == 0
    assert f"! not looked at: {line}" in capsys.readouterr().out


def test_preferences_and_plain_volumes_are_no_reason_to_warn(capsys, tmp_path, policy):
    spec = {
        "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}},
        "topologySpreadConstraints": [{"whenUnsatisfiable": "ScheduleAnyway"}],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
        "schedulerName": "default-scheduler",
    }
    _, document = explained(capsys, manifest(tmp_path, {SHARED: 1}, **spec), *policy)
    assert document["pods"][0]["notJudged"] == []
