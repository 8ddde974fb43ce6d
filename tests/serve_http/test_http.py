"""What a scraper and a probe get: over real HTTP, from a report that a real turn made."""

from __future__ import annotations

import contextlib
import gc
import http.client
import json
import os
import resource
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from partage.agent.options import Intervals
from partage.agent.status.readiness import kubelet_trouble
from partage.agent.status.status import AgentStatus, RequestCounts
from partage.answers.documents.report import ReportDocument
from partage.answers.report import ReportFile
from partage.codec.values import decode, encode
from partage.edges.hardware.supervisor import HelperState
from partage.edges.kubelet.port import EndpointState
from partage.errors import InputError, Problem
from partage.model.gpu import NoDriver
from partage.model.ids import ResourceName
from partage.plan.reconcile.known_node import UNSEEN, with_observed
from partage.plan.report import (
    DependencyProblems,
    PolicyReport,
    PolicyState,
    Report,
    ReportTime,
)
from partage.serve_http.agent_pages import agent_pages
from partage.serve_http.http import (
    MOST_CLIENTS,
    MOST_STREAMS,
    RESERVED_DESCRIPTORS,
    HttpServer,
    Page,
    PageRequest,
    Stream,
    json_answer,
)
from partage.serve_http.http_access import listen, say_url
from tests.answers.reports import a_report

GPU = ResourceName("nvidia.com/gpu")
SHARED = ResourceName("nvidia.com/gpu.shared")
POLICY = "version: partage/v1\ngpus:\n  - {select: {index: [0, 1]}, time-slicing: {replicas: 4}}\n"
INTERVALS = Intervals()


@dataclass
class Clock:
    now_s: float = 1000.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Agent:
    """A status as the loop of an agent leaves it, and the pages over it."""

    clock: Clock = field(default_factory=Clock)
    helper: HelperState = field(default_factory=lambda: HelperState(up=True, restarts=2, pid=7))

    def __post_init__(self) -> None:
        self.status = AgentStatus(self.clock, pulse_s=self.clock.now_s)
        self.pages = agent_pages(self.status, INTERVALS, lambda: self.helper)
        self.states = [EndpointState(name, serving=True, registered=True) for name in (SHARED, GPU)]
        self.status.endpoints = lambda: self.states
        self.status.counts.asked = lambda: {SHARED: RequestCounts(3, 1)}
        self.report = two_shared(self.clock.now_s)
        self.status.publish(self.report)

    def say(self, **changes: Any) -> None:
        self.status.publish(replace(self.report, **changes))

    def get(self, path: str) -> tuple[int, Any]:
        answer = self.pages[path](PageRequest(path))
        assert not isinstance(answer, Stream)
        status, _, body = answer
        return int(status), json.loads(body)

    def text(self, path: str) -> str:
        answer = self.pages[path](PageRequest(path))
        assert not isinstance(answer, Stream)
        return answer[2].decode()

    def samples(self) -> dict[str, dict[tuple[str, ...], float]]:
        """Name to label values, in order of the labels' names, to value; read by the official parser."""
        found: dict[str, dict[tuple[str, ...], float]] = {}
        for family in text_string_to_metric_families(self.text("/metrics")):
            for sample in family.samples:
                values = tuple(value for _, value in sorted(sample.labels.items()))
                found.setdefault(sample.name, {})[values] = sample.value
        return found


def two_shared(now_s: float) -> Report:
    """Four GPUs, two of them shared; a share of the first is held, the last has a fault."""
    return a_report(
        "4xa100-sxm4-40gb",
        POLICY,
        now_s,
        held={SHARED: (0, 1)},
        pods=[("default", "pod", "main")],
        faults={3: 79},
    )


@pytest.fixture
def agent() -> Agent:
    return Agent()


# --- health ------------------------------------------------------------------------------------


def test_all_is_well_and_what_is_not_quite_is_told(agent: Agent) -> None:
    status, document = agent.get("/healthz")
    assert (status, document["kind"], document["healthy"], document["reasons"]) == (200, "Health", True, [])
    assert [reason["code"] for reason in document["degraded"]] == ["gpu-unhealthy"]
    assert agent.get("/livez")[0] == 200


def _unregister(agent: Agent, *, attempts: int, since: float) -> None:
    agent.states[0] = EndpointState(
        SHARED, serving=True, attempts=attempts, since=since, last_error="no answer"
    )


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (lambda agent: _unregister(agent, attempts=0, since=999.0), "not-registered"),
        (lambda agent: _unregister(agent, attempts=3, since=900.0), "kubelet-silent"),
        (lambda agent: agent.states.clear(), "not-registered"),
        (
            lambda agent: agent.say(dependencies=DependencyProblems(hardware="the helper is away")),
            "helper-down",
        ),
        (lambda agent: setattr(agent.status, "helper_trouble", lambda: "it has ended"), "helper-down"),
        (lambda agent: agent.say(node=UNSEEN), "helper-down"),
        (lambda agent: agent.say(node=without_driver(agent)), "driver-missing"),
        (lambda agent: setattr(agent.clock, "now_s", 1000.0 + INTERVALS.stalled_s + 1), "loop-stalled"),
        (lambda agent: setattr(agent.status, "report", None), "starting"),
    ],
    ids=[
        "not yet registered",
        "kubelet silent",
        "not served",
        "helper",
        "helper just now",
        "not seen",
        "driver",
        "stalled",
        "start",
    ],
)
def test_what_keeps_gpus_from_pods_is_503_with_its_reason(
    agent: Agent, spoil: Callable[[Agent], None], code: str
) -> None:
    spoil(agent)
    status, document = agent.get("/healthz")
    assert status == 503
    assert code in {reason["code"] for reason in document["reasons"]}
    assert all(reason["message"] for reason in document["reasons"])
    assert agent.samples()["partage_healthy"] == {(): 0.0}


def without_driver(agent: Agent) -> Any:
    return with_observed(
        agent.report.node,
        replace(agent.report.node.inventory, driver=NoDriver("driver-missing", "no driver", "load it")),
    )


def test_a_resource_that_the_kubelet_does_not_watch_is_told(agent: Agent) -> None:
    agent.states[0] = replace(agent.states[0], unwatched_since=999.0)
    assert agent.get("/healthz")[0] == 200
    agent.clock.now_s += 2
    status, document = agent.get("/healthz")
    (reason,) = document["reasons"]
    assert (status, reason["code"], reason["message"]) == (
        503,
        "not-watched",
        f"the kubelet accepted {SHARED} and has read no device list for 3 s",
    )


def test_what_a_restart_of_the_kubelet_settles_is_no_trouble_of_the_node(agent: Agent) -> None:
    resources = agent.report.resources
    said = []
    _unregister(agent, attempts=3, since=agent.clock.now_s)
    for _ in range(3):
        said.append(kubelet_trouble(agent.status, resources, INTERVALS))
        agent.clock.now_s += INTERVALS.silent_s / 2 + 1
    assert said[0] == said[1] == ""
    assert f"{SHARED} is not registered" in said[2]
    agent.clock.now_s += 100
    assert kubelet_trouble(agent.status, resources, INTERVALS) == said[2], "the same sentence: no new report"


def test_a_socket_that_the_kubelet_keeps_is_told(agent: Agent) -> None:
    agent.states[0] = replace(agent.states[0], kept=("nvidia-gpu_partage-0a1b2c.sock",))
    status, document = agent.get("/healthz")
    (reason,) = [one for one in document["degraded"] if one["code"] == "kubelet-keeps-socket"]
    assert status == 200
    assert "keeps nvidia-gpu_partage-0a1b2c.sock" in reason["message"]


def test_only_a_loop_that_hangs_is_worth_a_restart(agent: Agent) -> None:
    agent.say(dependencies=DependencyProblems(hardware="away"))
    assert agent.get("/livez")[0] == 200
    agent.clock.now_s += INTERVALS.stalled_s + 1
    assert agent.get("/livez")[0] == 503


def test_a_task_that_cannot_be_kept_running_is_worth_a_restart(agent: Agent) -> None:
    agent.status.ended_tasks = lambda: "the task serve nvidia.com/gpu ended 8 times in a row: it returned"
    for page in ("/livez", "/healthz"):
        status, document = agent.get(page)
        assert (status, document["reasons"][0]["code"]) == (503, "task-ended")


def test_a_refused_policy_is_for_people_not_for_probes(agent: Agent) -> None:
    problem = Problem("policy.yaml", "gpus[0]", "error", "is wrong", "mend it")
    agent.say(policy=PolicyReport(PolicyState.LAST_GOOD, "policy.yaml", problems=(problem,)))
    status, document = agent.get("/healthz")
    assert status == 200
    assert {"code": "policy-refused", "message": str(problem)} in document["degraded"]
    assert agent.samples()["partage_policy_valid"] == {(): 0.0}


# --- metrics -------------------------------------------------------------------------------------


def test_metrics_are_what_the_official_parser_reads(agent: Agent) -> None:
    agent.status.counts.xids.update([("GPU-x", 79), ("", 13)])
    samples = agent.samples()
    assert samples["partage_devices"] == {
        ("healthy", GPU): 1.0,
        ("unhealthy", GPU): 1.0,
        ("healthy", SHARED): 8.0,
        ("unhealthy", SHARED): 0.0,
    }
    assert samples["partage_shares_held"][("observed", SHARED)] == 1.0
    assert samples["partage_shares_held"][("tentative", SHARED)] == 1.0
    assert samples["partage_shares_held"][("proven", GPU)] == 0.0
    assert samples["partage_allocations_total"] == {(SHARED,): 3.0}
    assert samples["partage_allocations_refused_total"] == {(SHARED,): 1.0}
    xids = samples["partage_xids_total"]
    assert {who: number for who, number in xids.items() if number} == {("GPU-x", "79"): 1.0, ("", "13"): 1.0}
    assert xids[agent.report.gpus[0].uuid, "79"] == 0.0  # born before its first event
    assert samples["partage_helper_restarts_total"] == {(): 2.0}
    assert samples["partage_registered"] == {(SHARED,): 1.0, (GPU,): 1.0}
    assert samples["partage_driver_up"] == {(): 1.0}
    assert "process_resident_memory_bytes" in samples


def test_each_gpu_is_in_one_state_of_health_and_serves_one_strategy(agent: Agent) -> None:
    samples = agent.samples()
    for name, word in (("partage_gpu_health", "unhealthy"), ("partage_gpu_strategy", "exclusive")):
        rows = samples[name]
        by_gpu: dict[str, list[str]] = {}
        for (gpu, _, value), number in rows.items():
            if number:
                by_gpu.setdefault(gpu, []).append(value)
        assert all(len(values) == 1 for values in by_gpu.values())
        assert by_gpu[agent.report.gpus[3].uuid] == [word]


def test_metrics_can_be_had_before_the_first_turn(agent: Agent) -> None:
    agent.status.report = None
    samples = agent.samples()
    assert samples["partage_healthy"] == {(): 0.0}
    assert "partage_devices" not in samples


def test_seconds_since_the_last_turn_are_counted_when_asked(agent: Agent) -> None:
    agent.clock.now_s += 7
    assert agent.samples()["partage_seconds_since_turn"] == {(): 7.0}


# --- the report ----------------------------------------------------------------------------------


def test_the_report_says_everything_in_camel_case(agent: Agent) -> None:
    status, document = agent.get("/report.json")
    assert status == 200
    assert (document["apiVersion"], document["kind"]) == ("partage/v1", "Report")
    assert document["at"] == "2023-11-14T22:13:20.000Z"
    rows = {row["name"]: row for row in document["resources"]}
    shared = rows[SHARED]
    assert (shared["count"], shared["listed"], shared["held"], shared["registered"]) == (8, 8, 2, True)
    assert rows[GPU]["healthy"] == 1
    assert document["gpus"][3]["health"]["state"] == "unhealthy"
    assert document["held"][0] == {
        "resource": SHARED,
        "id": f"{agent.report.gpus[0].uuid}::0",
        "certainty": "observed",
        "holders": [{"namespace": "default", "pod": "pod", "container": "main"}],
        "since": "2023-11-14T22:13:10.000Z",
        "endedAt": None,
        "left": [],
        "formerPods": [],
        "unseen": None,
        "unseenAt": None,
        "claim": None,
        "limit": None,
    }
    assert not [key for key in _keys(document) if "_" in key]


def test_a_resource_that_is_offered_no_more_stays_in_the_report_while_it_is_listed(agent: Agent) -> None:
    agent.say(offer={})
    _, document = agent.get("/report.json")
    row = next(row for row in document["resources"] if row["name"] == SHARED)
    assert (row["count"], row["strategy"], row["guarantee"], row["gpus"]) == (0, None, None, [])
    assert (row["listed"], row["held"]) == (8, 2)


def test_the_report_file_is_read_back_as_it_was_written(agent: Agent, tmp_path: Path) -> None:
    assert ReportFile(agent.status, INTERVALS, tmp_path / "report.json").renew() == ""
    content = (tmp_path / "report.json").read_bytes()
    document = decode(ReportDocument, content)
    assert encode(document) == content.rstrip()
    assert document.held[0].pods == "default/pod"
    assert document.troubles.keys() == {agent.report.gpus[3].uuid}


def _keys(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from _keys(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _keys(inner)


def test_the_report_file_is_written_when_it_says_something_new(agent: Agent, tmp_path: Path) -> None:
    path = tmp_path / "run" / "report.json"
    file = ReportFile(agent.status, INTERVALS, path)
    assert file.renew() == ""
    first = path.stat().st_mtime_ns, path.stat().st_ino
    made = agent.report.made
    agent.say(made=ReportTime(made.at_s + 5, made.clock_s + 5, 13, 0.001))
    assert file.renew() == ""
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == first
    agent.states[0] = replace(agent.states[0], registered=False)
    assert file.renew() == ""
    assert json.loads(path.read_text(encoding="utf-8"))["healthy"] is False
    assert [one.name for one in path.parent.iterdir()] == ["report.json"]


def test_a_report_file_that_cannot_be_written_says_why(agent: Agent, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert (
        "Not a directory"
        in ReportFile(agent.status, INTERVALS, tmp_path / "file" / "run" / "report.json").renew()
    )


def test_bytes_in_a_path_that_are_not_utf_8_are_replaced(agent: Agent, tmp_path: Path) -> None:
    agent.say(dependencies=DependencyProblems(state_dir=os.fsdecode(b"cannot write /a\xffb/state")))
    path = tmp_path / "report.json"
    assert ReportFile(agent.status, INTERVALS, path).renew() == ""
    told = {"code": "state-not-saved", "message": "cannot write /a?b/state"}
    assert told in json.loads(path.read_bytes())["degraded"]
    with served(dict(agent.pages)) as port:
        assert told in json.loads(ask(port, "GET", "/healthz")[2])["degraded"]


# --- over the wire -------------------------------------------------------------------------------


@contextmanager
def served(pages: dict[str, Page]) -> Iterator[int]:
    listening = listen("127.0.0.1:0")
    server = HttpServer(listening, pages)
    try:
        yield listening.getsockname()[1]
    finally:
        server.close()


def ask(port: int, method: str, path: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


def test_pages_are_served_with_and_without_their_body(agent: Agent) -> None:
    with served(dict(agent.pages)) as port:
        status, headers, body = ask(port, "GET", "/healthz?verbose=1")
        assert (status, headers["Content-Type"]) == (200, "application/json; charset=utf-8")
        assert json.loads(body)["healthy"] is True
        status, headers, nothing = ask(port, "HEAD", "/healthz")
        assert (status, headers["Content-Length"], nothing) == (200, str(len(body)), b"")
        assert ask(port, "GET", "/metrics")[1]["Content-Type"].startswith("text/plain; version=0.0.4")
        status, _, body = ask(port, "GET", "/nothing")
        assert (status, json.loads(body)["paths"]) == (404, sorted(agent.pages))
        assert ask(port, "POST", "/healthz")[0] == HTTPStatus.NOT_IMPLEMENTED


def statuses(port: int, content: bytes) -> list[int]:
    """Of all answers to what is sent at once on one connection, until the server closes it."""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as client:
        client.sendall(content)
        answers = client.makefile("rb").read()
    return [int(line.split()[1]) for line in answers.splitlines() if line.startswith(b"HTTP/1.1 ")]


HEAD = b"HEAD / HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (HEAD + HEAD + b"GET /no HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", [200, 200, 421]),
        (HEAD + b"garbage\r\n\r\n" + HEAD, [200, 400]),
        (b"GET / HTTP/1.1\r\n\r\n", [400]),
        (b"GET / HTTP/1.0\r\n\r\n" + HEAD, [200]),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + 65536 * b"x" + b"\r\n\r\n", [431]),
        (b"PUT / HTTP/1.1\r\nHost: localhost\r\n\r\n" + HEAD, [501]),
    ],
    ids=["in order", "garbage", "no host", "1.0", "too long", "method"],
)
def test_requests_of_one_connection_are_answered_in_order_until_one_is_wrong(
    content: bytes, expected: list[int]
) -> None:
    with served({"/": lambda _: json_answer({})}) as port:
        assert statuses(port, content) == expected


def test_a_stream_that_ends_ends_as_http_says() -> None:
    with served({"/": lambda _: Stream(lambda _: iter(["first", ""]))}) as port:
        assert ask(port, "GET", "/")[2] == b"data: first\n\n:\n\n"
        assert ask(port, "HEAD", "/")[2] == b""


def test_a_client_that_dawdles_holds_up_nobody() -> None:
    with (
        served({"/": lambda _: json_answer({})}) as port,
        socket.create_connection(("127.0.0.1", port)) as slow,
    ):
        slow.sendall(b"GET / HT")
        assert ask(port, "GET", "/")[0] == 200


def test_clients_that_are_silent_make_room_for_new_ones() -> None:
    with served({"/": lambda _: json_answer({})}) as port, contextlib.ExitStack() as clients:
        before = threading.active_count()
        kept = clients.enter_context(socket.create_connection(("127.0.0.1", port), timeout=5))
        silent = []
        for _ in range(3 * MOST_CLIENTS):
            silent.append(clients.enter_context(socket.create_connection(("127.0.0.1", port), timeout=5)))
            kept.sendall(b"HEAD / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert kept.recv(4096).startswith(b"HTTP/1.1 200 "), "a client that asks is not silent"
        assert ask(port, "GET", "/")[0] == 200
        assert silent[0].recv(1) == b"", "cut off"
        assert threading.active_count() <= before + MOST_CLIENTS


def test_a_client_whose_answer_is_being_made_is_not_cut_off() -> None:
    """Also where it is the one that was silent for longest."""
    asked, go_on = threading.Semaphore(0), threading.Event()

    def page(request: PageRequest) -> tuple[HTTPStatus, str, bytes]:
        asked.release()
        assert go_on.wait(20)
        return json_answer({"was": len(request.body)})

    listening = listen("127.0.0.1:0")
    port = listening.getsockname()[1]
    server = HttpServer(listening, {"/": page}, posts=["/"], most_clients=2)
    try:
        with ThreadPoolExecutor() as threads:
            first = threads.submit(_posted, port, b"12345")
            assert asked.acquire(timeout=10)
            with contextlib.ExitStack() as clients:
                for _ in range(4):  # each makes room for the next one
                    place = ("127.0.0.1", port)
                    clients.enter_context(socket.create_connection(place, timeout=5))
                second = threads.submit(_posted, port, b"1")
                assert asked.acquire(timeout=10)
                go_on.set()
                assert json.loads(first.result(10)) == {"was": 5}
                assert json.loads(second.result(10)) == {"was": 1}
    finally:
        go_on.set()
        server.close()


def _posted(port: int, body: bytes) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request("POST", "/", body)
        return connection.getresponse().read()
    finally:
        connection.close()


def test_a_body_that_does_not_come_in_time_is_not_waited_for() -> None:
    listening = listen("127.0.0.1:0")
    server = HttpServer(listening, {"/": lambda _: json_answer({})}, posts=["/"], body_within_s=0.2)
    try:
        with socket.create_connection(listening.getsockname()[:2], timeout=10) as client:
            client.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n")
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                while not select.select([client], [], [], 0.05)[0]:
                    client.sendall(b"x")
                assert client.recv(1) == b""
    finally:
        server.close()


def test_a_live_page_that_was_left_makes_room_for_the_next_one() -> None:
    """A person clicks through a fleet: nothing has to be sent before the server knows that a page is gone."""
    left = threading.Semaphore(0)

    def events(runs: Callable[[], bool]) -> Iterator[str]:
        yield "first"
        while runs():
            time.sleep(0.01)
        left.release()

    with served({"/": lambda _: Stream(events)}) as port, contextlib.ExitStack() as clients:
        open_pages = []
        for _ in range(MOST_STREAMS):
            page = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            clients.callback(page.close)
            page.request("GET", "/")
            answer = page.getresponse()
            assert answer.readline() == b"data: first\n"
            open_pages.append((page, answer))
        assert ask(port, "GET", "/")[0] == HTTPStatus.SERVICE_UNAVAILABLE
        page, answer = open_pages[0]
        answer.close()
        page.close()
        assert left.acquire(timeout=5), "its end is noticed"
        next_page = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        clients.callback(next_page.close)
        deadline_s = time.monotonic() + 5
        status = 0
        while status != HTTPStatus.OK and time.monotonic() < deadline_s:
            next_page.request("GET", "/")
            answer = next_page.getresponse()
            status = answer.status
            if status != HTTPStatus.OK:
                answer.read()
        assert status == HTTPStatus.OK
        assert answer.readline() == b"data: first\n"


def test_without_a_free_descriptor_nothing_spins() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with served({"/": lambda _: json_answer({})}) as port:
        client = socket.socket()
        lowest = os.dup(client.fileno())
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limits[1]))
        try:
            client.settimeout(0.6)
            client.connect(("127.0.0.1", port))
            client.sendall(b"HEAD / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            began = time.process_time()
            with pytest.raises(TimeoutError):
                client.recv(1)
            assert time.process_time() - began < 0.2
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        client.settimeout(5)
        assert client.recv(4096).startswith(b"HTTP/1.1 200 ")
        client.close()


def test_descriptors_are_left_for_others() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    gc.collect()  # what earlier tests left open would be closed meanwhile
    with contextlib.ExitStack() as opened:
        here = socket.socket().detach()
        os.close(here)
        resource.setrlimit(resource.RLIMIT_NOFILE, (here + 2 * RESERVED_DESCRIPTORS, limits[1]))
        try:
            port = opened.enter_context(served({"/": lambda _: json_answer({})}))
            while opened.enter_context(Path("/dev/null").open()).fileno() < here + RESERVED_DESCRIPTORS:
                pass
            with pytest.raises((http.client.RemoteDisconnected, ConnectionError)):
                ask(port, "GET", "/")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_page_that_fails_is_told_and_the_next_one_is_served(caplog: pytest.LogCaptureFixture) -> None:
    with served({"/": lambda _: json_answer({}), "/bug": lambda _: json_answer({"a": object()})}) as port:
        with pytest.raises(http.client.RemoteDisconnected):
            ask(port, "GET", "/bug")
        assert ask(port, "GET", "/")[0] == 200
    assert [record.getMessage() for record in caplog.records] == ["a page failed"]


def test_an_agent_whose_reader_has_gone_says_its_url_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    pipe = os.fdopen(writer, "w", encoding="utf-8")
    with contextlib.redirect_stdout(pipe):
        say_url("::1", 9400)
    with contextlib.suppress(BrokenPipeError):
        pipe.close()
    assert [record.__dict__["url"] for record in caplog.records] == ["http://[::1]:9400"]


def test_nothing_of_it_is_left_when_it_is_closed() -> None:
    before = threading.active_count()
    with served({"/": lambda _: json_answer({})}) as port:
        assert ask(port, "GET", "/")[0] == 200
    with pytest.raises(OSError, match="refused"):
        ask(port, "GET", "/")
    assert threading.active_count() <= before + 1


@pytest.mark.parametrize("address", ["", "9400", "localhost", ":", ":x", ":-1", "127.0.0.1:65536"])
def test_an_address_that_is_none_is_an_input_error(address: str) -> None:
    with pytest.raises(InputError):
        listen(address)


def test_an_address_that_is_taken_is_an_input_error() -> None:
    with listen("127.0.0.1:0") as taken, pytest.raises(InputError, match="in use"):
        listen(f"127.0.0.1:{taken.getsockname()[1]}")


def test_ipv6_and_any_address_are_understood() -> None:
    with listen(":0") as every:
        assert every.getsockname()[0] == "0.0.0.0"
    if socket.has_ipv6:
        with listen("[::1]:0") as six:
            assert six.getsockname()[0] == "::1"
