"""``partage rightsize``: from a trace and from a server that speaks Prometheus' API."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
import yaml
from msgspec.structs import replace

from partage.cli.main import run
from partage.edges.files.policy import parse_policy
from partage.edges.files.usage_days import UsageDays
from partage.model.usage_day import GpuSeen, UsageDay, WorkloadDay
from partage.units import GIB

LINES = [
    f"{at},team,{pod},main,{(4 if at % 120 else 8) * GIB},0.2,{40 * GIB},guarded"
    for pod in ("train-0", "train-1", "train-2")
    for at in range(0, 3600, 60)
]
FLAT = [f"{at},team,llm-x2x4k,vllm,{int(0.9 * 80 * GIB)},0.5,,none" for at in range(0, 3600, 60)]
HEAD = "time,namespace,pod,container,memory_bytes,sm,share_bytes,guarantee"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text("\n".join([HEAD, *LINES, *FLAT]) + "\n")
    return path


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert run(["rightsize", *arguments, "-o", "json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_trace_gives_sizes_and_says_where_it_cannot_tell(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = answer(capsys, "--trace", str(trace), "--gpu", "h100-sxm5-80gb")
    llm, train = found["workloads"]
    assert (train["name"], train["runs"], train["needBytes"], train["mps"]) == (
        "team/train/main",
        3,
        int(9.75 * GIB),
        4,
    )
    assert train["nowBytes"] == 40 * GIB
    assert train["mig"] == "2g.20gb", "a seventh of the GPU is too little for a fifth of its time"
    assert (llm["doubt"], llm["mps"], llm["needBytes"]) == ("preallocates", None, None)
    assert found["fleet"] == {"containers": 4, "gpusNow": None, "gpusThen": None}


def test_the_table_and_the_plot_can_be_looked_at(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from matplotlib import image  # half a second, which each worker would pay for

    picture = tmp_path / "plot.png"
    assert run(["rightsize", "--trace", str(trace), "--gpu", "h100-sxm5-80gb", "--plot", str(picture)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "team/train/main" in said
    assert "cannot tell" in said
    assert "XLA_PYTHON_CLIENT_PREALLOCATE" in said
    assert image.imread(picture).shape[0] > 200


def test_a_name_is_no_formula_in_the_plot(trace: Path, tmp_path: Path) -> None:
    odd = tmp_path / "odd.csv"
    odd.write_text(trace.read_text().replace("train", "$x^{$"))
    assert "$x^{$" in odd.read_text()
    picture = tmp_path / "plot.svg"
    assert run(["rightsize", "--trace", str(odd), "--gpu", "h100-sxm5-80gb", "--plot", str(picture)]) == 0
    assert picture.stat().st_size > 1000


@pytest.mark.parametrize(
    ("strategy", "entry", "resource"),
    [
        ("mps", {"mps": {"replicas": 4}}, "nvidia.com/gpu.shared"),
        ("time-slicing", {"time-slicing": {"replicas": 4}}, "nvidia.com/gpu.shared"),
        ("mig", {"mig": {"layout": ["2g.20gb"] * 3}}, "nvidia.com/mig-2g.20gb"),
    ],
)
def test_a_policy_that_partage_reads_and_patches_that_fit_it(
    trace: Path, capsys: pytest.CaptureFixture[str], strategy: str, entry: dict[str, object], resource: str
) -> None:
    arguments = ["rightsize", "--trace", str(trace), "--gpu", "h100-sxm5-80gb", "--strategy", strategy]
    assert run([*arguments, "-o", "policy"]) == 0
    text = capsys.readouterr().out
    assert yaml.safe_load(text)["gpus"] == [{"select": "all", **entry}]
    assert "# not counted, since its need is not known (preallocates): team/llm/vllm" in text
    assert "# those that are not counted have no GPU in this policy" in text
    parse_policy(text, "policy.yaml")
    assert run([*arguments, "-o", "patch"]) == 0
    (patch,) = yaml.safe_load_all(capsys.readouterr().out)
    (container,) = patch["spec"]["template"]["spec"]["containers"]
    assert container == {"name": "main", "resources": {"limits": {resource: 1}}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("time,pod\n1,a\n", "lacks the columns namespace, container, memory_bytes"),
        (f"{HEAD}\n1,a,b,c,many,,,\n", "line 2: memory_bytes is 'many'"),
        (f"{HEAD}\n1,a,b,c,-5,,,\n", "line 2: memory_bytes is '-5'"),
        (f"{HEAD}\n1,a,b,c,5,40,,\n", "line 2: sm is 40"),
        (f"{HEAD}\n,a,b,c,5,,,\n", "line 2: time is empty"),
        (f"{HEAD}\n1763860000000,a,b,c,5,,,\n", "line 2: time is 1763860000000; seconds are needed"),
        (f"{HEAD}\n1,a,b,c,5,,,\n1,a,b,c,5,,,\n", "line 3: time 1 is there twice for this container"),
        (f"{HEAD}\n1,a,b,c,nan,,,\n", "no workload"),
        (HEAD + "\n", "no workload"),
    ],
)
def test_a_wrong_trace_is_said_with_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    assert run(["rightsize", "--trace", str(path), "--gpu", "l4"]) == 2
    assert message in capsys.readouterr().err


def test_processes_are_added_up_gaps_are_gaps_and_peaks_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.csv"
    lines = ["time,namespace,pod,container,pid,memory_bytes,sm,peak_bytes"]
    for at in range(0, 600, 10):
        missing = "" if at % 100 == 50 else "NaN"
        if at % 50:
            lines += [f"{at},team,web,main,{pid},{(2 + at % 3) * GIB},0.1,{9 * GIB}" for pid in (7, 8)]
        else:
            lines.append(f"{at},team,web,main,7,{missing},{missing},")
    path.write_text("\n".join(lines) + "\n")
    (web,) = answer(capsys, "--trace", str(path), "--gpu", "h100-sxm5-80gb")["workloads"]
    assert web["samples"] == 48
    assert web["smP95"] == 0.2
    assert web["peakBytes"] == 9 * GIB, "between two samples"
    assert any("2 processes" in risk for risk in web["risks"])
    assert not any("may be missing" in risk for risk in web["risks"])
    text = path.read_text().replace(f",{9 * GIB}", ",")
    path.write_text(text)
    (web,) = answer(capsys, "--trace", str(path), "--gpu", "h100-sxm5-80gb")["workloads"]
    assert web["peakBytes"] == 8 * GIB, "two processes of 4 GiB"


def test_memory_is_taken_in_advance_of_the_gpu_on_which_it_ran_and_of_a_cap(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.csv"
    lines = ["time,namespace,pod,container,memory_bytes,device_bytes,share_bytes,guarantee"]
    for at in range(0, 600, 10):
        lines.append(f"{at},team,small-gpu,main,{int(0.9 * 24 * GIB)},{24 * GIB},,none")
        lines.append(f"{at},team,capped,main,{int(0.96 * 20 * GIB)},,{20 * GIB},advisory")
    path.write_text("\n".join(lines) + "\n")
    found = answer(capsys, "--trace", str(path), "--gpu", "h100-sxm5-80gb")["workloads"]
    assert {one["name"]: one["doubt"] for one in found} == {
        "team/small-gpu/main": "preallocates",
        "team/capped/main": "preallocates",
    }


def test_who_needs_a_gpu_of_its_own_gets_one_and_the_others_share_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.csv"
    lines = ["time,namespace,pod,container,memory_bytes"]
    for at in range(0, 600, 10):
        high = at % 20
        lines.append(f"{at},team,large,main,{(30 if high else 48) * GIB}")
        lines.append(f"{at},team,small[red],main,{(2 if high else 4) * GIB}")
    path.write_text("\n".join(lines) + "\n")
    arguments = ["rightsize", "--trace", str(path), "--gpu", "h100-sxm5-80gb"]
    assert run([*arguments, "-o", "policy"]) == 0
    text = capsys.readouterr().out
    assert yaml.safe_load(text)["gpus"] == [
        {"select": {"index": [0]}, "exclusive": {}},
        {"select": "rest", "mps": {"replicas": 15}},
    ]
    assert "# needs a GPU of its own: team/large/main: needs 64000Mi" in text
    (tmp_path / "policy.yaml").write_text(text)
    machine = ["--machine", "2xh100-sxm5-80gb"]
    assert run(["plan", "-f", str(tmp_path / "policy.yaml"), *machine, "-o", "name"]) == 0
    assert capsys.readouterr().out.split() == ["nvidia.com/gpu", "nvidia.com/gpu.shared"]
    assert run([*arguments, "-o", "patch"]) == 0
    patched = list(yaml.safe_load_all(capsys.readouterr().out))
    limits = [one["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"] for one in patched]
    assert limits == [{"nvidia.com/gpu": 1}, {"nvidia.com/gpu.shared": 1}]
    assert run(arguments) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "team/large/main, team/small[red]/main: only 1 run" in said
    assert "At most 2 containers ran at the same time. With these sizes they fit on 2 GPUs." in said


def test_wrong_options_are_said(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, code, message in (
        (["--trace", str(trace), "--gpu", "h1000"], 2, "no GPU model is called"),
        (["--gpu", "l4"], 2, "one of --prometheus, --trace and --history"),
        (["--prometheus", "prometheus:9090", "--gpu", "l4"], 2, "is no URL of a Prometheus"),
        (["--prometheus", "http://127.0.0.1:9", "--gpu", "l4", "--window", "5 weeks"], 2, "is not a time"),
        (["--prometheus", "http://127.0.0.1:9", "--gpu", "l4"], 5, "does not answer"),
    ):
        assert run(["rightsize", *arguments]) == code, arguments
        assert message in capsys.readouterr().err


# --- Prometheus ----------------------------------------------------------------------------------


class Api(BaseHTTPRequestHandler):
    """Answers as Prometheus does: one container with a spike that only the exporter has seen."""

    def do_POST(self) -> None:
        asked = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        query, start, step = asked["query"][0], float(asked["start"][0]), float(asked["step"][0])
        if 'namespace="no\\"body"' in query:
            self.answer(400, {"status": "error", "errorType": "bad_data", "error": "parse error: unexpected"})
            return
        labels = {
            "namespace": "team",
            "pod": "train-0",
            "container": "main",
            "gpu": "GPU-1",
            "device": "GPU-1",
        }
        values = {
            "memory_used_bytes": lambda n: (4 if n % 2 else 5) * GIB,
            "memory_peak_bytes": lambda n: 12 * GIB,
            "sm_utilization_ratio": lambda n: 0.1,
            "memory_share_bytes": lambda n: 20 * GIB,
        }
        result = [
            {"metric": labels, "values": [[start + n * step, str(of(n))] for n in range(100)]}
            for name, of in values.items()
            if f"partage_container_{name}" in query
        ]
        if "partage_mig_memory_total_bytes" in query:
            result = [{"metric": {"device": "GPU-1"}, "values": [[start, str(80 * GIB)]]}]
        if "sum(partage_gpu_memory_used_bytes)" in query:
            result = [{"metric": {}, "values": [[start, str(100 * GIB)]]}]
        if "sum(partage_unattributed_memory_bytes)" in query:
            result = [{"metric": {}, "values": [[start, str(10 * GIB)], [start + step, "NaN"]]}]
        self.answer(200, {"status": "success", "data": {"resultType": "matrix", "result": result}})

    def answer(self, status: int, document: object) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def prometheus() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Api)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_prometheus_is_asked_and_the_exporters_peak_counts(
    prometheus: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = answer(capsys, "--prometheus", prometheus, "--gpu", "h100-sxm5-80gb", "--window", "36h")
    (train,) = found["workloads"]
    assert train["peakBytes"] == 12 * GIB
    assert train["needBytes"] == int(15.75 * GIB), "30 % more: less than a day, one run"
    assert train["peakAt"] is not None
    assert found["unattributed"] == 0.1
    assert any("10%" in risk for risk in train["risks"])


def test_what_prometheus_says_of_a_query_is_passed_on(
    prometheus: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["rightsize", "--prometheus", prometheus, "--gpu", "l4", "--namespace", 'no"body']) == 5
    assert "parse error: unexpected" in capsys.readouterr().err


# --- the agents' history -------------------------------------------------------------------------


def days(node: str, product: str, left_out: int = 0) -> tuple[UsageDay, ...]:
    """Two days of a node, with a workload of a namespace and a job of Slurm."""
    row = WorkloadDay(
        workload="team/train/main", first_s=1_795_000_000, last_s=1_795_040_000, seen_s=40_000, run_s=40_000,
        samples=1333, runs=2, started=2, at_once=2, peak_bytes=8 * GIB, peak_at_s=1_795_000_000, spread=0.5,
        longest_s=40_000, growing=False, full=0.1, exact=True, processes=1, share_bytes=20 * GIB,
        busy=(0, 0, 9),
    )  # fmt: skip
    rows = (row, replace(row, workload="slurm:anna/train"))
    gpus = (GpuSeen(product, 80 * GIB),)
    one = UsageDay("2026-11-20", node, 30.0, gpus, workloads=rows, left_out=left_out)
    return one, replace(one, date="2026-11-21")


def histories(tmp_path: Path, *some: tuple[UsageDay, ...]) -> str:
    for number, of_node in enumerate(some):
        for day in of_node:
            assert UsageDays(tmp_path / f"node-{number}", 14).write(day) == ""
    return str(tmp_path)


H100, L4 = "NVIDIA H100 80GB HBM3", "NVIDIA L4"


def test_the_histories_of_a_fleet_are_one_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = histories(tmp_path, days("a", H100, left_out=3), days("b", H100))
    found = answer(capsys, "--history", where)
    assert "history of 2 nodes, 2026-11-20 to 2026-11-21" in found["source"]
    assert "6 were left out" in found["source"]
    assert [one["name"] for one in found["workloads"]] == ["slurm:anna/train", "team/train/main"]
    assert (found["workloads"][1]["runs"], found["workloads"][1]["confidence"]) == (8, "medium")
    assert found["fleet"]["containers"] == 8, "two workloads, two at a time on each of two nodes"
    (train,) = answer(capsys, "--history", where, "--namespace", "team", "--gpu", "l4")["workloads"]
    assert train["name"] == "team/train/main"
    assert run(["rightsize", "--history", where, "-o", "patch"]) == 0
    said = capsys.readouterr().out
    assert len([one for one in yaml.safe_load_all(said) if one]) == 1, "a job has no manifest"
    assert "sbatch --gres" in said


def test_a_history_of_several_models_needs_to_know_which(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = histories(tmp_path, days("a", H100), days("b", L4))
    assert run(["rightsize", "--history", where]) == 2
    assert "several GPU models: NVIDIA H100 80GB HBM3, NVIDIA L4" in capsys.readouterr().err
    assert answer(capsys, "--history", where, "--gpu", "l4")["gpu"] == "L4"


@pytest.mark.parametrize("where", ["none", "empty"])
def test_where_there_is_no_history_it_says_how_to_get_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], where: str
) -> None:
    (tmp_path / "empty").mkdir()
    assert run(["rightsize", "--history", str(tmp_path / where)]) == 2
    assert "--history 0" in capsys.readouterr().err
