"""docs/how-to/slurm-by-hand.md, word by word, on a real Slurm."""

import re
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tests.doc_blocks import ROOT, blocks_of
from tests.slurm.decide import configs
from tests.slurm.job_lab import SCRIPTS, JobLab
from tests.slurm.lab import OLD, on

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("slurm")]

BLOCKS = [one.text for one in blocks_of(ROOT / "docs/how-to/slurm-by-hand.md") if not one.marks]
CONF = [text for text in BLOCKS if text.startswith("# slurm.conf")]
SHELL = {match[1]: text for text in BLOCKS if (match := re.match(r"#!/bin/sh\n# /etc/slurm/(\S+)\n", text))}
SITE = {
    "site-prolog": "echo site-prolog",
    "site-epilog": "echo site-epilog",
    "site-task-prolog": "echo export SITE=1; echo export PARTAGE_SHARES=wrong",
}


class Livez(BaseHTTPRequestHandler):
    """The agent's answer."""

    code = 200

    def do_GET(self):
        self.send_response(self.code if self.path == "/livez" else 404)
        self.end_headers()

    def log_message(self, *_words):
        pass


class ByHand(JobLab):
    """The lines of the page in slurm.conf, its files and Partage's where the page has them, below ``etc``."""

    def __init__(self, build, livez):
        super().__init__(build, configs.MPS)
        self._etc = {path: self.d / path for path in ("etc/slurm", "etc/partage/slurm")}
        for path in self._etc.values():
            path.mkdir(parents=True)
        for name in ("prolog", "epilog", "task-prolog"):
            self._put(f"etc/partage/slurm/{name}", f"#!/bin/sh\nexec {self.d}/{name}.real\n")
            self._put(f"etc/slurm/{name}", self._here(SHELL[name]))
        for name, body in SITE.items():
            said = "" if name == "site-task-prolog" else f" >> {self.d}/log/site"
            self._put(f"etc/slurm/{name}", f"#!/bin/sh\n{body}{said}\n")
        check = self._here((SCRIPTS / "health-check").read_text()).replace(":9401", f":{livez}")
        check = check.replace("PATH=/usr", f"export SLURM_CONF={self.d}/slurm.conf\nPATH={self.d}/bin:/usr")
        self._put("etc/partage/slurm/health-check", check)
        self._shim("sinfo")
        conf = re.sub(
            r"(?m)^(Prolog|Epilog|TaskProlog|PrologFlags)=.*\n", "", (self.d / "slurm.conf").read_text()
        )
        lines = self._here("".join(CONF)).replace("Interval=60", "Interval=1")
        own = "SchedulerParameters=sched_interval=1,batch_sched_delay=0,bf_interval=1"
        assert own in conf
        lines = lines.replace("SchedulerParameters=", f"{own},")
        conf = conf.replace(f"{own}\n", "")
        if build.root is not None:  # scripts of the page run on this machine, where Partage is
            for name in ("prolog", "epilog", "task-prolog", "health-check"):
                at = "etc/partage/slurm" if name == "health-check" else "etc/slurm"
                self._put(f"in-{name}", f"#!/bin/sh\nexec /usr/sbin/chroot /host {self.d}/{at}/{name}\n")
                lines = lines.replace(f"{self.d}/{at}/{name}\n", f"{self.d}/in-{name}\n")
        (self.d / "slurm.conf").write_text(conf + lines)

    def _here(self, text):
        return re.sub(r"(?<![\w/])/etc/(slurm|partage/slurm)/", rf"{self.d}/etc/\1/", text)

    def _put(self, path, text):
        (self.d / path).write_text(text)
        (self.d / path).chmod(0o755)


@pytest.fixture
def livez():
    server = HTTPServer(("127.0.0.1", 0), Livez)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    Livez.code = 200
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("build", on(OLD))
def test_the_page(build, livez):
    assert len(CONF) == len(SHELL) == 3
    with ByHand(build, livez) as lab:
        config = lab.run("scontrol", "show", "config").stdout
        assert re.search(r"JobRequeue\s*= 1\n", config)
        assert re.search(r"SchedulerParameters\s*= .*nohold_on_prolog_fail", config)
        env = lab.environment("--gres=mps:25")
        assert (env["SITE"], env["PARTAGE_SHARES"]) == ("1", "mps:25")
        lab.wait_for(lambda: lab.records() == {} and lab.daemons() == [])
        lab.wait_for(lambda: (lab.d / "log" / "site").read_text() == "site-prolog\nsite-epilog\n")
        Livez.code = 503
        lab.wait_for(lambda: lab.states() == {"g1": "drain"})
        assert lab.reason() == "partage health check: the agent does not look after the GPUs"
        Livez.code = 200
        lab.wait_for(lambda: lab.states() == {"g1": "idle"})
        lab.run("scontrol", "update", "NodeName=g1", "State=DRAIN", "Reason=a fan is loud")
        Livez.code = 503
        asked = _Count(lab)
        lab.wait_for(lambda: asked() >= 2)
        Livez.code = 200
        asked = _Count(lab)
        lab.wait_for(lambda: asked() >= 2)
        assert (lab.states(), lab.reason()) == ({"g1": "drain"}, "a fan is loud")


class _Count:
    """How often the health check has asked for the node since."""

    def __init__(self, lab):
        self._file = lab.d / "log" / "asked"
        self._file.write_text("")
        lab._shim("sinfo", f"echo >> {self._file}")

    def __call__(self):
        return len(self._file.read_text())
