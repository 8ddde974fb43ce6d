"""Files of Slurm's that include others."""

import pytest

from partage.errors import InputError
from partage.slurm.decide.check import check_files
from partage.slurm.host.conf_files import read_conf_files
from partage.slurm.model import SlurmVersion
from partage.slurm.text.conf import ConfKind

OLD, NEW = SlurmVersion(22, 5, 8), SlurmVersion(24, 11, 5)


def _put(folder, **files):
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(exist_ok=True, parents=True)
        path.with_suffix(".conf").write_text(text)
    return folder


def test_lines_are_where_slurm_reads_them(tmp_path):
    _put(
        tmp_path,
        gres="Name=gpu Type=a File=/dev/nvidia0\ninclude\tmore.conf\nName=gpu Type=c File=/dev/nvidia2\n",
    )
    _put(tmp_path, more="Name=gpu Type=b File=/dev/nvidia1\n")
    files = read_conf_files([str(tmp_path / "gres.conf")], NEW)
    assert [file.name.rpartition("/")[2] for file in files] == ["gres.conf", "more.conf", "gres.conf"]
    assert {file.kind for file in files} == {ConfKind.GRES}
    assert [gpu.type for gpu in check_files(files, NEW).nodes[0].gpus] == ["a", "b", "c"]
    assert [file.lines[0].number for file in files] == [1, 1, 3]


@pytest.mark.parametrize(("version", "where"), [(OLD, "sub__b"), (NEW, "b")])
def test_a_name_inside_an_included_file(tmp_path, version, where):
    """Seen: 22.05.8 looks beside the file with the line, 24.11.5 beside the first one."""
    _put(
        tmp_path,
        gres="Include sub/a.conf\n",
        sub__a="Include b.conf\n",
        **{where: "Name=gpu File=/dev/nvidia0\n"},
    )
    assert len(read_conf_files([str(tmp_path / "gres.conf")], version)) == 1
    with pytest.raises(InputError, match="no such file"):
        read_conf_files([str(tmp_path / "gres.conf")], NEW if version is OLD else OLD)


def test_an_included_file_that_is_named_too_counts_once(tmp_path):
    _put(tmp_path, slurm="Include nodes.conf\n", nodes="NodeName=n Gres=gpu:1\n")
    files = read_conf_files([str(tmp_path / "nodes.conf"), str(tmp_path / "slurm.conf")], NEW)
    assert len(files) == 1


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("Include gone.conf", "no such file"),
        ('Include "gres.conf"', "leave them out"),
        ("Include gres.conf", "comes back to itself"),
        ("Include a.conf", "comes back to itself"),
        ("Include %c.conf", "Slurm reads ClusterName in place of %c"),
        ("Include 50%.conf", "no such file"),
        ("Include .", "directory"),
    ],
)
def test_a_wrong_include_is_one_error_with_file_and_line(tmp_path, line, said):
    _put(tmp_path, gres=f"AutoDetect=off\n{line}\n", a="Include gres.conf\n")
    with pytest.raises(InputError, match=said) as caught:
        read_conf_files([str(tmp_path / "gres.conf")], NEW)
    (problem,) = caught.value.problems
    assert (problem.file.rpartition("/")[2], problem.path) in (("gres.conf", "line 2"), ("a.conf", "line 1"))


def test_one_cgroup_conf_in_two_files_is_one(tmp_path):
    _put(tmp_path, cgroup="CgroupPlugin=autodetect\nInclude c2.conf\n", c2="ConstrainDevices=yes\n")
    assert check_files(read_conf_files([str(tmp_path / "cgroup.conf")], NEW), NEW).problems == ()
