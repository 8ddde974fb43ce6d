"""Draws the pictures of docs/how-to/pictures anew, in headless Chromium: ``make pictures``.

One node with eight GPUs that are shared in all ways, and thirty nodes of which five are broken; light, dark,
and on a phone. Needs Chromium and its driver: tests/web/prepare.sh installs them.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from selenium import webdriver

from partage.agent.options import Intervals
from partage.serve_http.agent_pages import agent_pages
from partage.serve_http.http import HttpServer
from partage.serve_http.http_access import listen
from partage.serve_http.pages.sources import FleetReports, ReportFolder
from partage.web.fleet_page import FleetPages
from partage.web.node_views import ReportViews
from tests.web.sample_nodes import mixed, thirty
from tests.web.test_browser import browser, live, until

DIRECTORY = Path(__file__).parents[2] / "docs" / "how-to" / "pictures"


def main(directory: Path) -> None:
    """Write all pictures there."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        machine, reports = folder / "machine.yaml", folder / "reports"
        reports.mkdir()
        at_s = time.time()
        thirty(reports, machine, at_s)
        fleet = FleetReports(ReportFolder(reports), pause_s=60.0)
        listening = listen("127.0.0.1:0"), listen("127.0.0.1:0")
        servers = (
            HttpServer(listening[0], agent_pages(mixed(machine, at_s=at_s), Intervals(), None, "gpu-node-1")),
            HttpServer(listening[1], FleetPages(fleet, ReportViews()).pages()),
        )
        chrome = browser("--window-size=1400,1000")
        try:
            for name, one in (("node", listening[0]), ("nodes", listening[1])):
                url = f"http://127.0.0.1:{one.getsockname()[1]}/"
                for dark in (False, True):
                    colours(chrome, dark=dark)
                    size(chrome, 1400, 900)
                    picture(chrome, url, directory / f"{name}{'-dark' if dark else ''}.png")
                colours(chrome, dark=name == "node")
                size(chrome, 390, 844, phone=True)
                picture(chrome, url, directory / f"{name}-phone.png")
        finally:
            chrome.quit()
            fleet.close()
            for server in servers:
                server.close()


def size(chrome: webdriver.Chrome, width: int, height: int, *, phone: bool = False) -> None:
    how = {"width": width, "height": height, "deviceScaleFactor": 2 if phone else 1, "mobile": phone}
    chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", how)


def colours(chrome: webdriver.Chrome, *, dark: bool) -> None:
    feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})


def picture(chrome: webdriver.Chrome, url: str, path: Path) -> None:
    chrome.get(url)
    until(chrome, live)
    chrome.save_screenshot(str(path))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else DIRECTORY)
