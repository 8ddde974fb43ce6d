"""Whether slurmd sets memory limits of jobs, as Slurm's files say."""

from __future__ import annotations

from pathlib import Path

import pytest

from partage.edges.host.slurm_limits import (
    constrains_devices,
    limits_by_slurm,
    names_plugin,
    slurm_conf_of,
    why_no_limits,
)
from partage.model.driver_limit import LimitWay

GOOD = {
    "slurm.conf": "ProctrackType=proctrack/cgroup\n",
    "cgroup.conf": "CgroupPlugin=cgroup/v2\n",
    "plugstack.conf": "required {d}/partage_limits.so run-dir=/run/partage\n",
    "partage_limits.so": "",
    "cgroup.controllers": "",
}


def _why(place: Path, **changes: str | None) -> str:
    for name, text in (GOOD | changes).items():
        if text is not None:
            (place / name).write_text(text.replace("{d}", str(place)))
    return why_no_limits(place / "slurm.conf", place)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"slurm.conf": "", "cgroup.conf": ""},  # Slurm's defaults
        {"cgroup.conf": "cgroupplugin = autodetect # ours\n"},
        {
            "slurm.conf": "PlugStackConfig={d}/other\n",
            "other": GOOD["plugstack.conf"],
            "plugstack.conf": None,
        },
        {"plugstack.conf": "include {d}/more/*.conf\ninclude *.more\n", "x.more": GOOD["plugstack.conf"]},
        {"plugstack.conf": "# optional partage_limits.so\nREQUIRED {d}/partage_limits.so # ours\n"},
    ],
)
def test_jobs_get_limits(tmp_path: Path, changes: dict[str, str | None]) -> None:
    assert _why(tmp_path, **changes) == ""
    assert names_plugin(tmp_path / "slurm.conf")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"plugstack.conf": None}, "plugstack.conf does not have the line 'required /usr/lib/partage/"),
        ({"plugstack.conf": "# required {d}/partage_limits.so\n"}, "does not have the line"),
        ({"plugstack.conf": "include plugstack.conf\n"}, "does not have the line"),
        ({"plugstack.conf": "optional {d}/partage_limits.so\n"}, "a job runs without its limit"),
        ({"plugstack.conf": "required partage_limits.so\n"}, "is no file: run 'make slurm-limits'"),
        ({"partage_limits.so": None}, "is no file: run 'make slurm-limits'"),
        ({"cgroup.controllers": None}, "there is no cgroup v2 at"),
        ({"cgroup.conf": "CgroupPlugin=cgroup/v1\n"}, "CgroupPlugin=cgroup/v1: write cgroup/v2"),
        ({"cgroup.conf": "CgroupPlugin=disabled\n"}, "CgroupPlugin=disabled: write cgroup/v2"),
        ({"slurm.conf": "ProctrackType=proctrack/linuxproc\n"}, "write proctrack/cgroup"),
        ({"slurm.conf": None}, "slurm.conf cannot be read"),
        ({"cgroup.conf": None}, "cgroup.conf cannot be read"),
    ],
)
def test_nothing_is_promised(tmp_path: Path, changes: dict[str, str | None], said: str) -> None:
    assert said in _why(tmp_path, **changes)


def test_a_node_of_slurm_has_its_files(tmp_path: Path) -> None:
    etc, run = tmp_path / "etc", tmp_path / "run"
    assert slurm_conf_of(etc, run) is None
    configless = run / "slurm/conf/slurm.conf"
    for path in (configless, etc / "slurm/slurm.conf"):
        path.parent.mkdir(parents=True)
        path.touch()
        assert slurm_conf_of(etc, run) == path


@pytest.mark.parametrize(
    ("slurm", "cgroup", "way", "said"),
    [
        ("TaskPlugin=task/cgroup\n", "ConstrainDevices=yes\n", LimitWay.SPANK, ""),
        ("TaskPlugin=task/cgroup\n", "", None, "jobs can open every GPU of the node"),
        ("ProctrackType=proctrack/pgid\n", "ConstrainDevices=yes\n", None, "write proctrack/cgroup"),
    ],
)
def test_hard_is_promised_only_where_jobs_are_limited_on_every_gpu_that_they_can_open(
    tmp_path: Path, slurm: str, cgroup: str, way: LimitWay | None, said: str
) -> None:
    etc = tmp_path / "etc"
    assert limits_by_slurm(etc, tmp_path / "run") is None
    (etc / "slurm").mkdir(parents=True)
    _why(etc / "slurm", **{"slurm.conf": slurm, "cgroup.conf": cgroup})
    found = limits_by_slurm(etc, tmp_path / "run", etc / "slurm")
    assert found is not None
    assert (found.way, said in found.why, bool(found.why)) == (way, True, way is None)


BOTH = "NodeName=g1\nTaskPlugin=task/cgroup,task/affinity\n"


@pytest.mark.parametrize(
    ("slurm", "cgroup", "expected"),
    [
        (BOTH, "ConstrainDevices=yes\n", True),
        ("taskplugin = task/affinity,task/cgroup\n", "# x\n constraindevices = YES # y\n", True),
        (BOTH, "ConstrainDevices=no\n", False),
        (BOTH, "# ConstrainDevices=yes\n", False),
        (BOTH, "", False),
        (BOTH, None, False),
        ("# TaskPlugin=task/cgroup\n", "ConstrainDevices=yes\n", False),
        ("TaskPlugin=task/none # task/cgroup\n", "ConstrainDevices=yes\n", False),
        ("", "ConstrainDevices=yes\n", False),
        (None, "ConstrainDevices=yes\n", False),
    ],
)
def test_jobs_are_kept_from_gpus_of_others_if_both_files_say_so(
    tmp_path: Path, slurm: str | None, cgroup: str | None, expected: bool
) -> None:
    for name, text in (("slurm.conf", slurm), ("cgroup.conf", cgroup)):
        if text is not None:
            (tmp_path / name).write_text(text)
    assert constrains_devices(tmp_path / "slurm.conf") is expected
