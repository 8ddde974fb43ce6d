"""Whether slurmd sets memory limits of jobs, as Slurm's files say."""

from __future__ import annotations

from pathlib import Path

import pytest

from partage.edges.host.slurm_limits import names_plugin, slurm_conf_of, why_no_limits

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
