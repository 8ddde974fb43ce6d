"""What stands on the pages: from real turns, with names that try to be markup."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from html.parser import HTMLParser
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partage.agent.status.status import UsageObservation, UseSeen, WatchObservation
from partage.answers.documents.report import ReportDocument
from partage.answers.share_counts import ShareCount, count_by_resource, count_shares
from partage.codec.values import encode_replacing
from partage.edges.files.catalogue import geometry_of
from partage.errors import InputError
from partage.model.ids import ContainerId, MigUuid, PodUid, ResourceName
from partage.model.samples import Samples
from partage.model.share import Guarantee
from partage.plan.report import Report
from partage.plan.serve.ledger_entry import Holder
from partage.plan.serve.watchdog import ContainerUsage, GrantKind, WatchResult
from partage.plan.usage import ContainerUse, DeviceUse, NodeUse, with_samples
from partage.serve_http.http import HttpServer, PageRequest, Stream, json_answer
from partage.serve_http.http_access import listen
from partage.serve_http.pages.agent_page import changes, difference
from partage.serve_http.pages.gpu_sections import sampled_uses
from partage.serve_http.pages.markup import document, element, grouped, html
from partage.serve_http.pages.node_page import node_sections, standing_of
from partage.serve_http.pages.sources import FleetReports, NodeReport, ReportFolder
from partage.units import GIB
from partage.web.agents import FleetAgents
from partage.web.fleet_page import FleetPages
from partage.web.node_views import Glance, ReportViews
from tests.answers.reports import AT_S, a_document, a_report
from tests.examples import variants
from tests.kubelet_script import wait_for
from tests.misbehaving import SERVERS, Speak, misbehaving
from tests.web.sample_nodes import mixed

SHARED = ResourceName("nvidia.com/gpu.shared")
POLICY = "version: partage/v1\ngpus:\n  - {select: {index: [0, 1]}, time-slicing: {replicas: 4}}\n"
HOSTILE = (
    ("<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "&amp;&lt;"),
    ("team", "\u202egnp.exe", "x" * 253),
    ("a", "b\x00\x1b[31m", "</table></body>"),
)


class Seen(HTMLParser):
    """Which elements and which text a browser would see. rows: the text of each row of a table. articles: id
    to whether it is shown.
    """

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.ids: list[str] = []
        self.rows: list[str] = []
        self.articles: dict[str, bool] = {}
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}
        self.ids += [value or "" for name, value in attrs if name == "id"]
        if tag == "article":
            self.articles[dict(attrs)["id"] or ""] = "hidden" not in dict(attrs)

        if tag == "tr":
            self.rows.append("")
        elif tag in ("td", "th") and self.rows[-1]:
            self.rows[-1] += " "

    def handle_data(self, data: str) -> None:
        self.text += data
        if self.rows:
            self.rows[-1] += data

    def handle_endtag(self, tag: str) -> None:
        if tag == "table":
            self.rows.append("")  # what follows is of no row


def one_holder(*name: str) -> ReportDocument:
    namespace, pod, container = name
    held = {SHARED: (0,)}
    return a_document(a_report("4xa100-sxm4-40gb", POLICY, held=held, pods=[(namespace, pod, container)]))


def shown(report: ReportDocument) -> Seen:
    planned = report.planner_input
    assert planned is not None
    sections = node_sections(report, planned.snapshot.observed.node.inventory, geometry_of)
    return Seen(document("Node", grouped(sections), events="/events").decode())


@given(st.text(), st.text())
def test_a_text_is_a_text_and_nothing_else(text: str, value: str) -> None:
    seen = Seen(html(element("p", text, element("b"), text, title=value)))
    assert seen.tags == ["p", "b"]
    assert seen.attributes <= {"title"}


def test_a_text_cannot_turn_what_stands_beside_it() -> None:
    """Errors and reasons quote texts from outside: marks of the direction of writing are shown as escapes."""
    written = html(element("p", "cannot be read: '\u202egnp.exe\u2066'", title="\u200fa"))
    assert written == r"""<p title="\u200fa">cannot be read: '\u202egnp.exe\u2066'</p>"""


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_shown_and_are_no_markup(name: tuple[str, str, str]) -> None:
    plain = shown(
        a_document(a_report("4xa100-sxm4-40gb", POLICY, held={SHARED: (0,)}, pods=[("a", "b", "c")]))
    )
    seen = shown(a_document(a_report("4xa100-sxm4-40gb", POLICY, held={SHARED: (0,)}, pods=[name])))
    assert seen.tags == plain.tags
    assert seen.attributes == plain.attributes
    assert "onerror" not in seen.attributes
    assert name[0] in seen.text


def test_the_page_tells_who_holds_what_and_how_much_of_it_is_used() -> None:
    report = a_report("4xa100-sxm4-40gb", POLICY, held={SHARED: (0, 1)}, pods=[("team", "train", "main")])
    gpu = report.node.inventory.gpus[0].uuid
    usage = ContainerUsage(
        device=gpu,
        gpu=gpu,
        container=ContainerId("c1"),
        pod=PodUid("uid"),
        holder=Holder("team", "train", "main"),
        grant=GrantKind.HELD,
        granted_bytes=10 * GIB,
        guarantee=Guarantee.GUARDED,
        used_bytes=3 * GIB,
        partly=False,
        processes=(),
    )
    watched = WatchObservation(report.made.clock_s, WatchResult((usage,), ()))
    seen = shown(a_document(report, watched))
    assert "team/train/main" in seen.text
    assert "3 GiB of 10 GiB" in seen.text
    assert "not known yet" in seen.text, "the second share has no holder yet"
    assert "nvidia.com/gpu.shared260" in seen.text
    assert seen.ids == list(dict.fromkeys(seen.ids)), "ids are unique"
    assert {"state", "policy", "waits", "gpu-0", "gpu-3", "resources"} <= set(seen.ids)


def used(report: Report, *containers: ContainerUse) -> UseSeen:
    """That these were sampled just now."""
    now_s, samples = report.made.clock_s, Samples()
    found = UsageObservation(now_s, samples, NodeUse(containers))
    return UseSeen(0.0, now_s, found, with_samples({}, samples, now_s))


def test_what_was_sampled_comes_before_what_the_watchdog_saw() -> None:
    report = a_report("4xa100-sxm4-40gb", POLICY, held={SHARED: (0,)}, pods=[("team", "train", "main")])
    gpu = report.node.inventory.gpus[0].uuid
    one = ContainerUse(gpu, gpu, Holder("team", "train", "main"), DeviceUse(2 * GIB, 12 * GIB, sm=0.25))
    part = ContainerUse(gpu, MigUuid("MIG-1"), Holder("team", "train", "main"), DeviceUse(1 * GIB, 1 * GIB))
    none = ContainerUse(gpu, gpu, Holder("team", "silent", "main"), DeviceUse())
    document = a_document(report, used=used(report, one, part, none))
    sections = node_sections(document, report.node.inventory, geometry_of)
    seen = Seen(sections["gpu-0"])
    assert "3 GiB of 10 GiB, peak 13 GiB" in seen.text
    assert "25 % busy" in seen.text
    assert '<span class="whole over">peak 13 GiB' in sections["gpu-0"], "it was over its share"
    assert '<span class="whole">3 GiB of 10 GiB' in sections["gpu-0"], "it is not any more"
    assert len(sampled_uses(document)) == 1


def test_no_script_and_no_style_stands_in_the_page() -> None:
    seen = shown(a_document(a_report("8xh100-sxm5-80gb", "version: partage/v1\n")))
    assert seen.tags.count("script") == 1, "the one file"
    assert "style" not in seen.tags
    assert "style" not in seen.attributes
    assert not {name for name in seen.attributes if name.startswith("on")}


def test_what_is_wrong_is_told() -> None:
    report = a_report("4xa100-sxm4-40gb", POLICY, faults={3: 79})
    assert "XID 79" in shown(a_document(report)).text


def test_shares_that_nobody_gets_are_not_counted_as_free() -> None:
    sliced = "version: partage/v1\ngpus: [{select: all, time-slicing: {replicas: 3}}]\n"
    wanted = (
        "version: partage/v1\n"
        "gpus: [{select: {index: [0]}, exclusive: {}}, {select: rest, time-slicing: {replicas: 3}}]\n"
    )
    pods = [("team", "train", "main")]
    seen = shown(
        a_document(a_report("4xa100-sxm4-40gb", sliced, held={SHARED: (0,)}, pods=pods, wanted=wanted))
    )
    assert "nvidia.com/gpu.shared 1 9 2 time-slicing" in " ".join(seen.rows)


def test_units_of_memory_are_drawn_as_amounts_and_not_as_boxes(tmp_path: Path) -> None:
    units = ResourceName("aliyun.com/gpu-mem")
    pods = [("team", "big" if number < 30 else "tiny", "main") for number in range(31)]
    policy = "version: partage/v1\ngpus: [{select: all, time-slicing: {unit: 1Gi}}]\n"
    made = a_document(a_report("4xa100-sxm4-40gb", policy, held={units: range(31)}, pods=pods))
    seen = shown(made)
    assert seen.tags.count("rect") == 3 + 3, "two pods and the rest on one GPU, three free GPUs"
    assert "held by team/big: 30 GiB" in seen.text
    assert "31 GiB of 39 GiB held; 39 units of 1 GiB" in seen.text
    assert "30 units · memory used not known, of 30 GiB" in seen.text
    (tmp_path / "a.json").write_bytes(encode_replacing(made))
    fleet = FleetReports(ReportFolder(tmp_path, clock=lambda: AT_S), pause_s=60.0)
    _, row = get(FleetPages(fleet, ReportViews()), "/")
    fleet.close()
    assert "units of memory: 31 held, 125 free" in row.text


# --- what is sent to an open page ----------------------------------------------------------------


def test_only_what_has_changed_is_sent() -> None:
    assert difference({"a": "1", "b": "2"}, {"a": "1", "b": "3"}) == json.dumps({"sections": {"b": "3"}})
    assert difference({"a": "1"}, {"a": "1"}) == ""
    assert json.loads(difference({"a": "1"}, {"a": "1", "b": "2"})) == {"reload": True}


def test_changes_are_sent_as_they_come_and_silence_is_kept_alive() -> None:
    states = iter([(1, {"a": "1"}), (1, {"a": "1"}), (2, {"a": "2"}), *[(2, {"a": "2"})] * 31])
    left = [33]

    def sections() -> tuple[object, object]:
        mark, made = next(states)
        return mark, lambda: made

    def runs() -> bool:
        left[0] -= 1
        return left[0] > 0

    sent = list(changes(sections, runs, pause=lambda _: None))  # type: ignore[arg-type]
    assert sent == ["", json.dumps({"sections": {"a": "2"}}), ""]


# --- many nodes ----------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, pod in (("node-a", "train"), ("node-b", "<b>bold</b>")):
        made = a_document(
            a_report("4xa100-sxm4-40gb", POLICY, held={SHARED: (0,)}, pods=[("team", pod, "main")])
        )
        (tmp_path / f"{name}.json").write_bytes(encode_replacing(made))
    return tmp_path


@pytest.fixture
def fleet(folder: Path) -> Iterator[FleetReports]:
    made = FleetReports(ReportFolder(folder, clock=lambda: AT_S), pause_s=60.0)
    yield made
    made.close()


def get(pages: FleetPages[Any], path: str, **query: str) -> tuple[HTTPStatus, Seen]:
    answer = pages.pages()[path](PageRequest(path, query))
    assert not isinstance(answer, Stream)
    return answer[0], Seen(answer[2].decode())


def test_all_nodes_are_at_a_glance_and_found_by_what_runs_on_them(fleet: FleetReports) -> None:
    pages = FleetPages(fleet, ReportViews())
    _, seen = get(pages, "/")
    assert "node-a" in seen.text
    assert "shares: 1 held, 9 free" in seen.text
    assert str(next(iter(fleet.nodes))) == "node-a"
    assert "2 nodes 2 healthy" in seen.text
    assert list(seen.articles.values()) == [True, True]
    _, found = get(pages, "/", q="TRAIN")
    assert found.articles == dict(zip(seen.articles, (True, False), strict=True)), "the second is not shown"
    assert "1 shown" in found.text
    _, all_of_them = get(pages, "/", q="healthy")
    assert all(all_of_them.articles.values()), "a node is found by how it is"
    _, bold = get(pages, "/", q="<b>bold")
    assert "node-b" in bold.text
    assert "b" not in bold.tags


def test_files_that_begin_with_a_dot_are_no_nodes(fleet: FleetReports, folder: Path) -> None:
    (folder / ".node-c.json").write_text("{")
    (folder / ".git").mkdir()
    (folder / ".git" / "report.json").write_text("{")
    _, seen = get(FleetPages(fleet, ReportViews()), "/")
    assert "2 nodes 2 healthy" in seen.text


def test_one_click_to_a_node_and_an_unknown_one_is_said(fleet: FleetReports) -> None:
    pages = FleetPages(fleet, ReportViews())
    status, seen = get(pages, "/node", name="node-b")
    assert status == HTTPStatus.OK
    assert "<b>bold</b>" in seen.text
    status, seen = get(pages, "/node", name="<i>")
    assert status == HTTPStatus.NOT_FOUND
    assert "<i>" in seen.text
    assert "i" not in seen.tags


def test_a_report_that_cannot_be_read_keeps_the_last_one_and_says_why(
    fleet: FleetReports, folder: Path
) -> None:
    (folder / "node-a.json").write_text("{")
    (folder / "node-c.json").write_text("[]")
    (folder / "node-b.json").unlink()
    fleet.read()
    assert list(fleet.nodes) == ["node-a", "node-c"]
    assert fleet.nodes["node-a"].report is not None
    _, seen = get(FleetPages(fleet, ReportViews()), "/")
    assert "Not up to date: its report cannot be read" in seen.text
    _, one = get(FleetPages(fleet, ReportViews()), "/node", name="node-c")
    assert "its report cannot be read" in one.text


def _first_offer(offers: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    return next(iter(offers.values()))[0]


def _says_many_shares(plain: dict[str, Any]) -> None:
    _first_offer(plain["offer"])["count"] = 2**62


def _says_many_shares_once_and_less_than_none_else(plain: dict[str, Any]) -> None:
    offers = next(iter(plain["offer"].values()))
    offers += [{**offers[0], "count": 2**40}, {**offers[0], "count": -(2**40)}]


def _serves_many_shares(plain: dict[str, Any]) -> None:
    served = next(iter(plain["plannedFrom"]["snapshot"]["served"].values()))
    served["leaving"] = [{**_first_offer(plain["offer"]), "count": 10**30}]


def _says_many_gpus(plain: dict[str, Any]) -> None:
    plain["gpus"] *= 20


@pytest.mark.parametrize(
    "exaggerate",
    [
        _says_many_shares,
        _says_many_shares_once_and_less_than_none_else,
        _serves_many_shares,
        _says_many_gpus,
    ],
)
def test_a_report_of_more_than_a_node_has_is_not_drawn(
    folder: Path, exaggerate: Callable[[dict[str, Any]], None]
) -> None:
    """Each share is counted, and each GPU is drawn, for everybody who looks at the page."""
    path = folder / "node-a.json"
    plain = json.loads(path.read_bytes())
    exaggerate(plain)
    path.write_text(json.dumps(plain))
    fleet = FleetReports(ReportFolder(folder, clock=lambda: AT_S), pause_s=60.0)
    fleet.close()
    assert "its report cannot be read: it says that it has" in fleet.nodes["node-a"].trouble
    assert fleet.nodes["node-a"].report is None
    assert fleet.nodes["node-b"].trouble == ""


def test_a_report_of_another_version_is_shown_without_drawings(folder: Path) -> None:
    path = folder / "node-a.json"
    plain = json.loads(path.read_bytes())
    plain["plannedFrom"] = {"from": "another version"}
    path.write_text(json.dumps(plain))
    fleet = FleetReports(ReportFolder(folder, clock=lambda: AT_S), pause_s=60.0)
    _, seen = get(FleetPages(fleet, ReportViews()), "/node", name="node-a")
    fleet.close()
    assert "team/train/main" in seen.text


def test_sources_that_are_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is no directory"):
        ReportFolder(tmp_path / "absent")
    with pytest.raises(InputError, match="is no address of an agent"):
        FleetAgents({"a": "ftp://a"}, 1.0)
    with pytest.raises(InputError, match="is no address of an agent"):
        FleetAgents({"a": "http://a:99999"}, 1.0)


def test_an_agent_that_does_not_answer_is_a_row_with_its_reason() -> None:
    agents = FleetAgents({"gone": "http://127.0.0.1:9"}, 60.0)
    node = agents.nodes["gone"]
    agents.close()
    assert node.report is None
    assert "does not answer" in node.trouble


@contextmanager
def good_agent() -> Iterator[tuple[str, list[ReportDocument]]]:
    """Its URL, and its report, which can be another one."""
    says = [one_holder("team", "first", "main")]
    listening = listen("127.0.0.1:0")
    server = HttpServer(listening, {"/report.json": lambda _: json_answer(says[0])})
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", says
    finally:
        server.close()


def _runs(fleet: FleetAgents, pod: str) -> bool:
    return pod in ReportViews().glance(fleet.nodes["good"]).words


@pytest.mark.parametrize("speak", variants(SERVERS.values(), 4), ids=SERVERS)
def test_an_agent_that_misbehaves_is_late_by_itself(speak: Speak) -> None:
    with ExitStack() as opened:
        bad = opened.enter_context(misbehaving(speak))
        good, says = opened.enter_context(good_agent())
        fleet = FleetAgents({"bad": bad, "good": good}, 0.02, within_s=0.5)
        opened.callback(fleet.close)
        for name in ("first", "second", "third"):
            says[0] = one_holder("team", name, "main")
            wait_for(partial(_runs, fleet, f"team/{name}"))
        wait_for(lambda: "has not been asked" not in fleet.nodes["bad"].trouble)
        assert fleet.nodes["bad"].trouble
        _, seen = get(FleetPages(fleet, ReportViews()), "/")
        assert "2 nodes 1 no report 1 healthy" in seen.text
        assert "The oldest answer is that of good, 20" in seen.text
        assert "1 agent never answered" in seen.text


def test_the_page_says_since_when_an_agent_is_late() -> None:
    with good_agent() as (url, _):
        fleet = FleetAgents({"a\udcff": url}, 0.02, within_s=5.0)
        ((name, node),) = fleet.nodes.items()
        assert (name, node.trouble) == ("a\\udcff", "")
    wait_for(lambda: fleet.nodes[name].trouble)
    fleet.close()
    assert fleet.nodes[name].report is node.report
    pages = FleetPages(fleet, ReportViews())
    for path in ("/", "/node"):
        _, seen = get(pages, path, name=name)
        assert "Not up to date since 20" in seen.text
        assert "does not answer" in seen.text
        assert "The oldest answer is that of a\\udcff, 20" in seen.text
    assert "1 node 1 not up to date" in get(pages, "/")[1].text


def test_a_file_name_that_is_not_utf_8_is_one_row(folder: Path) -> None:
    (folder / "node-a.json").rename(folder / os.fsdecode(b"node-\xff\x1b.json"))
    fleet = FleetReports(ReportFolder(folder, clock=lambda: AT_S), pause_s=60.0)
    pages = FleetPages(fleet, ReportViews())
    status, seen = get(pages, "/")
    assert status == HTTPStatus.OK
    assert "node-\\udcff\\x1b" in seen.text
    assert "node-b" in seen.text
    assert "The files were read 20" in seen.text
    assert get(pages, "/node", name="node-\\udcff\\x1b")[0] == HTTPStatus.OK
    fleet.close()


def test_a_folder_that_cannot_be_read_for_a_while_is_read_again(folder: Path) -> None:
    class Folder(ReportFolder):
        broken = failed = False

        def read(self) -> Sequence[NodeReport]:
            self.failed |= self.broken
            if self.broken:
                raise RuntimeError("a bug")
            return super().read()

    source = Folder(folder)
    fleet = FleetReports(source, pause_s=0.01)
    source.broken = True
    wait_for(lambda: source.failed)
    (folder / "node-b.json").unlink()
    source.broken = False
    wait_for(lambda: list(fleet.nodes) == ["node-a"])
    fleet.close()


def test_a_node_that_cannot_be_shown_is_one_row(fleet: FleetReports) -> None:
    class Views(ReportViews):
        def glance(self, node: NodeReport) -> Glance:
            _fails_for_a(node)
            return super().glance(node)

        def sections(self, node: NodeReport) -> dict[str, str]:
            _fails_for_a(node)
            return dict(super().sections(node))

    def _fails_for_a(node: NodeReport) -> None:
        if node.name == "node-a":
            raise IndexError("whatever a report can do")

    pages = FleetPages(fleet, Views())
    status, seen = get(pages, "/")
    assert status == HTTPStatus.OK
    assert "What this node says cannot be shown" in seen.text
    assert "2 nodes 1 cannot be shown 1 healthy" in seen.text
    assert "node-b" in seen.text
    assert get(pages, "/node", name="node-a")[0] == HTTPStatus.OK
    assert get(pages, "/", q="train")[0] == HTTPStatus.OK


def test_a_row_is_written_again_only_for_a_new_report(fleet: FleetReports, folder: Path) -> None:
    before = dict(fleet.nodes)
    fleet.read()
    assert all(fleet.nodes[name] is before[name] for name in before)
    text = (folder / "node-b.json").read_bytes()
    (folder / "node-b.json").write_bytes(text + b"\n")
    fleet.read()
    assert fleet.nodes["node-a"] is before["node-a"]
    assert fleet.nodes["node-b"] is not before["node-b"]


def test_a_gpu_that_cannot_be_used_has_no_free_shares(tmp_path: Path) -> None:
    """It counted as free: on the node's page, in its row among others, in the small bar."""
    made = a_document(
        a_report(
            "4xa100-sxm4-40gb", POLICY, held={SHARED: (0,)}, pods=[("a", "b", "c")], faults={0: 79, 3: 79}
        )
    )
    assert count_shares(made).by_gpu[0] == ShareCount(held=1, free=0, not_usable=3)
    assert count_by_resource(made)[SHARED] == ShareCount(held=1, free=4, not_usable=3)
    assert count_by_resource(made)[ResourceName("nvidia.com/gpu")] == ShareCount(0, 1, 1)
    assert "nvidia.com/gpu.shared143" in shown(made).text
    (tmp_path / "n.json").write_bytes(encode_replacing(made))
    fleet = FleetReports(ReportFolder(tmp_path, clock=lambda: AT_S), pause_s=60.0)
    try:
        _, seen = get(FleetPages(fleet, ReportViews()), "/")
    finally:
        fleet.close()
    assert "shares: 1 held, 5 free, 4 not usable" in seen.text
    assert "1 held, 0 free, 3 not usable" in seen.text


def test_a_node_without_one_usable_gpu_is_bad() -> None:
    made = a_document(a_report("2xl4", "version: partage/v1\n", faults={0: 79, 1: 79}))
    assert standing_of(made) == ("no usable GPU", "bad")
    one_left = a_document(a_report("2xl4", "version: partage/v1\n", faults={1: 79}))
    assert standing_of(one_left)[0] != "no usable GPU"


def test_a_report_of_three_days_ago_is_an_old_one(folder: Path) -> None:
    """It stayed green, and counted as healthy."""
    now = [AT_S + 3600.0]
    source = ReportFolder(folder, clock=lambda: now[0])
    views = ReportViews()
    assert [views.standing(one)[0] for one in source.read()] == ["healthy", "healthy"]
    now[0] += 3 * 24 * 3600
    old = source.read()
    assert [views.standing(one) for one in old] == [("old report", "warn")] * 2
    assert source.read() == old
    assert "more than 24 hours old" in str(views.sections(old[0])["state"])


def test_nothing_is_sampled_of_a_gpu_that_has_fallen_off_the_bus(tmp_path):
    """The pictures of the documents showed 32 degrees for one."""
    status = mixed(tmp_path / "machine.yaml")
    use = status.use_seen()
    assert status.report is not None
    assert use.found is not None
    by_index = sorted(status.report.gpus, key=lambda gpu: gpu.index)
    assert {gpu.gpu for gpu in use.found.samples.gpus} == {gpu.uuid for gpu in by_index[:7]}
    assert by_index[7].uuid not in use.hour
