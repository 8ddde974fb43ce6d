"""The pages in a real Chromium: drawn, live, searched, by keyboard, and checked by axe."""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

import pytest
from axe_core_python.selenium import Axe
from msgspec.structs import replace
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from partage.agent.status.status import AgentStatus, UsageObservation, UseSeen
from partage.codec.values import encode_replacing, from_plain
from partage.edges.kube.objects import NodeJson, PodJson
from partage.edges.kubelet.port import EndpointState
from partage.model.ids import ResourceName
from partage.model.samples import Samples
from partage.plan.serve.ledger_entry import Holder
from partage.plan.usage import ContainerUse, DeviceUse, NodeUse
from partage.serve_http.agent_pages import agent_pages
from partage.serve_http.http import MOST_STREAMS, HttpServer
from partage.serve_http.http_access import listen
from partage.serve_http.pages.sources import FleetReports, ReportFolder
from partage.units import GIB
from partage.web.cluster_fleet import Followed, published, source_section
from partage.web.fleet_page import FleetPages
from partage.web.node_views import PublishedViews, ReportViews
from tests.answers.reports import AT_S, INTERVALS, a_document, a_report
from tests.web.clusters import SINCE, node_object, pod_object
from tests.web.sample_nodes import mixed, thirty
from tests.web.test_pages import HOSTILE

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(
        not (CHROMIUM and DRIVER),
        reason="no Chromium and driver: tests/web/prepare.sh installs them",
    ),
    pytest.mark.xdist_group("browser"),
]
SHARED, NOTEBOOKS = ResourceName("nvidia.com/gpu.shared"), ResourceName("nvidia.com/gpu.notebooks")
UNITS = ResourceName("aliyun.com/gpu-mem")
MIXED = """
version: partage/v1
gpus:
  - {select: {index: [2, 3]}, name: nvidia.com/gpu.notebooks, time-slicing: {replicas: 8}}
  - {select: {index: [4, 5]}, time-slicing: {replicas: 48}}
  - {select: rest, exclusive: {}}
"""
FULL = "version: partage/v1\ngpus: [{select: all, time-slicing: {replicas: 48}}]\n"


def browser(*arguments: str) -> webdriver.Chrome:
    options = webdriver.ChromeOptions()
    for one in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", *arguments):
        options.add_argument(one)
    options.binary_location = str(CHROMIUM)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    made = webdriver.Chrome(options=options, service=webdriver.ChromeService(str(DRIVER)))
    made.set_script_timeout(120)  # axe, on a busy machine
    return made


@pytest.fixture(scope="module")
def one_chrome() -> Iterator[webdriver.Chrome]:
    made = browser("--window-size=1400,1700")
    yield made
    made.quit()


@pytest.fixture
def chrome(one_chrome: webdriver.Chrome) -> webdriver.Chrome:
    """A browser that has left the pages of other tests, and what it said of them."""
    one_chrome.get("about:blank")
    complaints(one_chrome)
    return one_chrome


class Node:
    """An agent's pages over reports that the test publishes."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.status = AgentStatus(lambda: self.now_s, pulse_s=self.now_s)
        names = (SHARED, NOTEBOOKS, ResourceName("nvidia.com/gpu"))
        self.status.endpoints = lambda: [EndpointState(name, serving=True, registered=True) for name in names]
        listening = listen("127.0.0.1:0")
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        self.server = HttpServer(listening, agent_pages(self.status, INTERVALS, None, "gpu-node-1"))
        self.turns = 0

    def show(self, **how: Any) -> None:
        self.turns += 1
        report = a_report("8xh100-sxm5-80gb", MIXED, self.now_s, **how)
        self.status.report = replace(report, made=replace(report.made, number=self.turns, at_s=time.time()))


@pytest.fixture
def node() -> Iterator[Node]:
    made = Node()
    yield made
    made.server.close()


def until(chrome: webdriver.Chrome, condition: Any) -> Any:
    """Wait for it; elements may be replaced while they are looked at."""
    wait = WebDriverWait(chrome, 10, 0.05, ignored_exceptions=[StaleElementReferenceException])
    return wait.until(condition)


def complaints(chrome: webdriver.Chrome) -> list[str]:
    """What the browser says: errors of the script, and what the content security policy stopped."""
    return [entry["message"] for entry in chrome.get_log("browser")]


def serious(chrome: webdriver.Chrome) -> list[str]:
    found = Axe().run(chrome)
    return [
        f"{one['id']}: {one['help']}: {[place['html'][:200] for place in one['nodes'][:3]]}"
        for one in found["violations"]
        if one["impact"] in {"serious", "critical"}
    ]


def live(chrome: webdriver.Chrome) -> bool:
    return "Live" in chrome.find_element(By.ID, "live").text


def test_the_page_of_a_node_is_drawn_and_live_and_for_everyone(chrome: webdriver.Chrome, node: Node) -> None:
    pods = [("team-a", "train", "main"), ("default", "notebook-1", "main"), ("default", "notebook-2", "main")]
    held = {ResourceName("nvidia.com/gpu"): (0,), NOTEBOOKS: (0, 1)}
    node.show(held=held, pods=pods, faults={7: 79})
    chrome.get(node.url)
    until(chrome, live)
    assert "GPU 7" in chrome.find_element(By.ID, "gpu-7").text
    assert "XID 79" in chrome.find_element(By.ID, "gpu-7").text
    boxes = chrome.find_elements(By.CSS_SELECTOR, "#gpu-2 rect.held")
    assert len(boxes) == 2
    assert boxes[0].rect["width"] > 20
    assert serious(chrome) == []
    node.show(held={**held, SHARED: (0,)}, pods=[*pods, ("default", "late", "main")])
    until(chrome, lambda c: "default/late/main" in c.find_element(By.ID, "gpu-4").text)
    assert "ago" in chrome.find_element(By.CSS_SELECTOR, "#gpu-4 time").text
    assert complaints(chrome) == []


def test_hostile_names_are_text_in_the_browser(chrome: webdriver.Chrome, node: Node) -> None:
    node.show(held={NOTEBOOKS: (0, 1, 2)}, pods=HOSTILE)
    chrome.get(node.url)
    until(chrome, live)
    assert "<script>alert(1)</script>" in chrome.find_element(By.ID, "gpu-2").text
    assert len(chrome.find_elements(By.TAG_NAME, "script")) == 1
    assert chrome.find_elements(By.TAG_NAME, "img") == []
    wide = chrome.execute_script("return document.documentElement.scrollWidth - window.innerWidth")
    assert wide <= 0, "a name of 253 letters does not make the page wider"
    assert complaints(chrome) == []


def test_a_phone_in_the_dark_and_a_keyboard(node: Node) -> None:
    node.show(held={NOTEBOOKS: (0,)}, pods=[("default", "notebook", "main")])
    assert node.status.report is not None
    gpu = node.status.report.gpus[2].uuid
    use = ContainerUse(gpu, gpu, Holder("default", "notebook", "main"), DeviceUse(70 * GIB, 79 * GIB))
    found = UsageObservation(node.now_s, Samples(), NodeUse((use,)))
    node.status.use_seen = lambda: UseSeen(0.0, node.now_s, found)
    chrome = browser("--window-size=500,900")
    try:
        chrome.execute_cdp_cmd(
            "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
        )
        chrome.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True},
        )
        chrome.get(node.url)
        until(chrome, live)
        assert "70 GiB of 10 GiB, peak 79 GiB" in chrome.find_element(By.ID, "gpu-2").text
        assert chrome.execute_script("return document.documentElement.scrollWidth") <= 390
        assert serious(chrome) == [], "colours of the dark have contrast too"
        chrome.find_element(By.TAG_NAME, "body").send_keys(Keys.TAB)
        assert chrome.switch_to.active_element.text == "Skip to the content"
    finally:
        chrome.quit()


def test_without_javascript_the_page_is_readable(node: Node) -> None:
    node.show(held={NOTEBOOKS: (0,)}, pods=[("default", "notebook", "main")])
    chrome = browser("--blink-settings=scriptEnabled=false")
    try:
        chrome.get(node.url)
        assert "default/notebook/main" in chrome.find_element(By.ID, "gpu-2").text
        assert "Without JavaScript" in chrome.find_element(By.TAG_NAME, "footer").text
    finally:
        chrome.quit()


@pytest.fixture(scope="module")
def mixed_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The page of a node with eight GPUs that are shared in all ways."""
    status = mixed(tmp_path_factory.mktemp("mixed") / "machine.yaml", at_s=time.time())
    listening = listen("127.0.0.1:0")
    server = HttpServer(listening, agent_pages(status, INTERVALS, None, "gpu-node-1"))
    yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
    server.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_eight_mixed_gpus_fit_on_one_screen_and_one_on_a_phone(mixed_url: str, scheme: str) -> None:
    chrome = browser("--window-size=1400,1000")
    try:
        colours = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", colours)
        for width, height, phone in ((1400, 900, False), (390, 844, True)):
            screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone}
            chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
            chrome.get(mixed_url)
            until(chrome, live)
            cards = [one.rect for one in chrome.find_elements(By.CSS_SELECTOR, "article.card")]
            assert len(cards) == 8
            assert max(one["height"] for one in cards) <= height
            if not phone:
                assert max(one["y"] + one["height"] for one in cards) <= height
            assert chrome.execute_script("return document.documentElement.scrollWidth") <= width
            lines = "return [...document.querySelectorAll('time')].every(t => t.getClientRects().length < 2)"
            assert chrome.execute_script(lines), "a time stays in one line"
            assert serious(chrome) == []
        assert complaints(chrome) == []
    finally:
        chrome.quit()


def test_a_curve_leads_to_its_numbers(chrome: webdriver.Chrome, mixed_url: str) -> None:
    chrome.get(mixed_url)
    until(chrome, live)
    curve = chrome.find_element(By.CSS_SELECTOR, "#gpu-0 a svg.curve")
    assert "utilisation in the last hour: 97 % to 97 %" in str(curve.get_attribute("aria-label"))
    chrome.find_element(By.CSS_SELECTOR, "#gpu-0 a[href='#hour-0']").send_keys(Keys.ENTER)
    until(chrome, lambda c: c.find_element(By.CSS_SELECTOR, "#hour-0 table").is_displayed())
    rows = [one.text for one in chrome.find_elements(By.CSS_SELECTOR, "#hour-0 tbody tr")]
    assert len(rows) == 60 - 6 + 1, "minutes that nobody sampled are one row"
    assert sum("not sampled" in row for row in rows) == 1
    assert "97 %" in rows[0]
    assert "GiB" in rows[0]
    assert "W" in rows[0]


def test_chips_choose_nodes_and_stand_in_the_address(chrome: webdriver.Chrome, tmp_path: Path) -> None:
    folder = tmp_path / "reports"
    folder.mkdir()
    thirty(folder, tmp_path / "machine.yaml")
    fleet = FleetReports(ReportFolder(folder, clock=lambda: AT_S), pause_s=60.0)
    listening = listen("127.0.0.1:0")
    server = HttpServer(listening, FleetPages(fleet, ReportViews()).pages())
    try:
        chrome.get(f"http://127.0.0.1:{listening.getsockname()[1]}/")
        until(chrome, live)
        names = [one.text for one in chrome.find_elements(By.CSS_SELECTOR, "article h2")]
        assert names[:5] == [f"gpu-node-{number}" for number in ("28", "17", "03", "11", "22")]
        first = chrome.find_element(By.CSS_SELECTOR, "article:nth-of-type(3)").text
        assert first.count("XID 79") == 1, "each problem once"
        chrome.find_element(By.PARTIAL_LINK_TEXT, "degraded").click()
        chrome.find_element(By.ID, "q").send_keys("XID 48")
        until(chrome, lambda c: c.find_element(By.ID, "count").text == "1 shown")
        assert chrome.current_url.endswith("/?show=degraded&q=XID+48")
        chrome.get(chrome.current_url)
        until(chrome, live)
        assert chrome.find_element(By.ID, "count").text == "1 shown"
        assert "4 GPUs" in chrome.find_element(By.ID, "totals").text, "held but idle"
        assert serious(chrome) == []
        assert complaints(chrome) == []
    finally:
        server.close()
        fleet.close()


def test_a_page_for_which_there_was_no_room_becomes_live(chrome: webdriver.Chrome, mixed_url: str) -> None:
    """After an answer other than 200 a browser itself does not try again."""
    with contextlib.ExitStack() as others:
        for _ in range(MOST_STREAMS):
            other = http.client.HTTPConnection(urlsplit(mixed_url).netloc, timeout=10)
            others.callback(other.close)
            other.request("GET", "/events")
            answer = other.getresponse()
            assert answer.status == 200
            others.callback(answer.close)
        chrome.get(mixed_url)
        until(chrome, lambda c: "Not live" in c.find_element(By.ID, "live").text)
    until(chrome, live)
    chrome.get_log("browser")  # it has the 503


def test_on_a_phone_the_first_node_is_on_the_first_screen(tmp_path: Path) -> None:
    """Nine totals are above it."""
    folder = tmp_path / "reports"
    folder.mkdir()
    thirty(folder, tmp_path / "machine.yaml")
    fleet = FleetReports(ReportFolder(folder, clock=lambda: AT_S), pause_s=60.0)
    listening = listen("127.0.0.1:0")
    server = HttpServer(listening, FleetPages(fleet, ReportViews()).pages())
    chrome = browser("--window-size=500,900")
    try:
        screen = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
        chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        chrome.get(f"http://127.0.0.1:{listening.getsockname()[1]}/")
        until(chrome, live)
        assert chrome.find_element(By.CSS_SELECTOR, "article.node").rect["y"] < 844
        assert chrome.execute_script("return document.documentElement.scrollWidth") <= 390
    finally:
        chrome.quit()
        server.close()
        fleet.close()


# --- the nodes of a cluster ----------------------------------------------------------------------


class StillFleet:
    """Nodes of a cluster that do not change."""

    mark, words = 0, "A cluster."
    news: ClassVar = {
        "source": source_section(
            "https://10.0.0.1",
            [
                Followed("nodes", SINCE, "", known=True),
                Followed("pods", SINCE, "GET /api/v1/pods is not permitted", forbidden=True),
            ],
            3,
        )
    }

    def __init__(self) -> None:
        units = a_report(
            "8xh200-141gb",
            "version: partage/v1\ngpus: [{select: all, time-slicing: {unit: 1Gi}}]\n",
            held={UNITS: range(120)},
            pods=[("team", "llama-70b", "main")] * 70 + [("lab", "notebook", "main")] * 50,
        )
        others = [
            node_object("gpu-a", units, labels={"partage.dev/policy": "inference"}),
            node_object("gpu-b", a_report("8xh100-sxm5-80gb", MIXED, faults={7: 79})),
            node_object("gpu-c", units, kubelet={"status": "Unknown", "message": "Kubelet stopped posting."}),
        ]
        rows = [from_plain(NodeJson, one, strict=False).value() for one in others]
        pod = from_plain(PodJson, pod_object("llama-70b", "gpu-a", {UNITS: 70}), strict=False).value()
        made = [published(node, [pod] if node.name == "gpu-a" else None) for node in rows]
        self.nodes = {one.name: one for one in made if one is not None}


def test_the_nodes_of_a_cluster_are_for_everyone(chrome: webdriver.Chrome) -> None:
    listening = listen("127.0.0.1:0")
    server = HttpServer(listening, FleetPages(StillFleet(), PublishedViews()).pages())
    try:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/"
        chrome.get(url)
        until(chrome, live)
        assert "ClusterRole partage-viewer" in chrome.find_element(By.ID, "source").text
        assert serious(chrome) == []
        chrome.find_element(By.LINK_TEXT, "gpu-a").click()
        until(chrome, lambda c: c.title == "gpu-a: GPUs" and live(c))
        small, big = chrome.find_elements(By.CSS_SELECTOR, "#gpu-0 rect.held")
        assert big.rect["width"] / small.rect["width"] == pytest.approx(70 / 50, rel=0.1)
        assert "not published" in chrome.find_element(By.ID, "pods").text
        assert serious(chrome) == []
        assert complaints(chrome) == []
    finally:
        server.close()


# --- a hundred nodes -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """100 nodes x 8 GPUs x 48 shares, 40 of them held on each."""
    folder = tmp_path_factory.mktemp("reports")
    pods = [("default", f"NODE-pod-{number}", "main") for number in range(40)]
    made = a_document(a_report("8xh100-sxm5-80gb", FULL, held={SHARED: range(0, 384, 10)}, pods=pods))
    text = encode_replacing(made)
    for number in range(100):
        (folder / f"node-{number:03}.json").write_bytes(text.replace(b"NODE", f"node-{number:03}".encode()))
    return folder


def test_a_hundred_nodes_are_usable(chrome: webdriver.Chrome, reports: Path) -> None:
    fleet = FleetReports(ReportFolder(reports, clock=lambda: AT_S), pause_s=0.3)
    listening = listen("127.0.0.1:0")
    server = HttpServer(listening, FleetPages(fleet, ReportViews()).pages())
    try:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/"
        chrome.get(url)
        until(chrome, live)
        assert len(chrome.find_elements(By.CSS_SELECTOR, "article.node")) == 100
        chrome.get(f"{url}?q=node-01")
        until(chrome, live)
        shown = chrome.find_elements(By.CSS_SELECTOR, "article.node:not([hidden])")
        assert len(shown) == 10, "the server searches too"
        assert serious(chrome) == [], "the checker takes seconds for all hundred"
        chrome.execute_script("window.loadedOnce = true")
        hidden = reports / "node-099.json"
        hidden.write_bytes(hidden.read_bytes().replace(b"node-099-pod-7", b"another"))
        words = "return document.querySelector('[data-words*=another]') !== null"
        until(chrome, lambda c: c.execute_script(words))
        assert chrome.execute_script("return window.loadedOnce"), "a node that is not shown may change"
        assert "100 healthy" in chrome.find_element(By.ID, "summary").text
        box = chrome.find_element(By.ID, "q")
        box.clear()
        box.send_keys("node-042-pod-7")
        until(chrome, lambda c: c.find_element(By.ID, "count").text == "1 shown")
        report = json.loads((reports / "node-042.json").read_bytes())
        report["healthy"] = False
        (reports / "node-042.json").write_text(json.dumps(report))
        until(
            chrome, lambda c: "not healthy" in c.find_element(By.CSS_SELECTOR, "article:not([hidden])").text
        )
        assert chrome.find_element(By.ID, "count").text == "1 shown", "an update keeps what is searched"
        chrome.find_element(By.LINK_TEXT, "node-042").click()
        until(chrome, lambda c: c.title == "node-042: GPUs" and live(c))
        assert len(chrome.find_elements(By.CSS_SELECTOR, "article.card")) == 8
        assert complaints(chrome) == []
    finally:
        server.close()
        fleet.close()
