"""``partage slurm config``."""

import pytest

from partage.cli.main import run

MACHINE = "8xh100-sxm5-80gb"
ARGUMENTS = ["slurm", "config", "--machine", MACHINE, "--slurm-version", "24.11.5", "--node", "g1"]
MPS = "version: partage/v1\ngpus: [{select: {index: [0]}, mps: {replicas: 4}}]\n"


@pytest.fixture
def policy(tmp_path):
    path = tmp_path / "policy.yaml"
    path.write_text(MPS)
    return str(path)


def test_without_a_directory_the_files_go_to_stdout(capsys):
    assert run(ARGUMENTS) == 0
    out = capsys.readouterr().out
    assert "NodeName=g1 AutoDetect=off Name=gpu Type=h100 File=/dev/nvidia[0-7] Flags=nvidia_gpu_env" in out
    assert "ConstrainDevices=yes" in out


def test_the_same_input_changes_no_file(tmp_path, policy, capsys):
    out = tmp_path / "etc"
    assert run([*ARGUMENTS, "--policy", policy, "--output", str(out)]) == 0
    names = ["cgroup.conf", "devices.json", "gres.conf", "slurm.conf"]
    assert sorted(path.name for path in out.iterdir()) == names
    before = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
    assert run([*ARGUMENTS, "--policy", policy, "--output", str(out)]) == 0
    assert {path.name: path.stat().st_mtime_ns for path in out.iterdir()} == before
    assert "gres.conf: unchanged" in capsys.readouterr().err


def test_a_cluster_has_no_list_of_devices(tmp_path):
    """UUIDs differ from node to node, also where the nodes are alike."""
    (tmp_path / "c.yaml").write_text(
        "version: partage/v1\nkind: SlurmCluster\nslurm: 24.11.5\n"
        "nodes: [{name: 'g[1-2]', machine: 2xh100-sxm5-80gb}]\n"
    )
    assert (
        run(["slurm", "config", "--cluster", str(tmp_path / "c.yaml"), "--output", str(tmp_path / "o")]) == 0
    )
    assert sorted(path.name for path in (tmp_path / "o").iterdir()) == [
        "cgroup.conf",
        "gres.conf",
        "slurm.conf",
    ]


def test_files_of_somebody_else_are_not_touched(tmp_path, capsys):
    (tmp_path / "slurm.conf").write_text("ClusterName=mine\n")
    assert run([*ARGUMENTS, "--output", str(tmp_path)]) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["slurm.conf"]
    assert (tmp_path / "slurm.conf").read_text() == "ClusterName=mine\n"
    assert "Partage did not write it" in capsys.readouterr().err


def test_what_cannot_be_written_leaves_nothing_behind(tmp_path, policy):
    out = tmp_path / "etc"
    assert run([*ARGUMENTS, "--output", str(out)]) == 0
    (out / ".slurm.conf.new").mkdir()  # where the second file would be prepared
    before = {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}
    assert run([*ARGUMENTS, "--policy", policy, "--output", str(out)]) == 2
    assert {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()} == before


def test_a_version_that_cannot_do_it_is_exit_code_3(tmp_path, capsys):
    path = tmp_path / "p.yaml"
    path.write_text("version: partage/v1\ngpus: [{select: {index: [0]}, time-slicing: {replicas: 2}}]\n")
    arguments = [
        *ARGUMENTS,
        "--policy",
        str(path),
        "--slurm-version",
        "21.08.5",
        "--output",
        str(tmp_path / "o"),
    ]
    assert run(arguments) == 3
    assert not (tmp_path / "o").exists()
    assert "has no shard" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--machine", MACHINE, "--slurm-version", "24.11"], "--machine needs --node"),
        (["--machine", MACHINE, "--node", "g1", "--slurm-version", "new"], "is not a version of Slurm"),
        (
            [
                "--machine",
                MACHINE,
                "--node",
                "g1",
                "--slurm-version",
                "24.11",
                "--node-settings",
                "Gres=gpu:2",
            ],
            "is written by Partage",
        ),
        (["--cluster", "x.yaml", "--machine", MACHINE], "names machines, policies and nodes itself"),
        (["--cluster", "/nowhere.yaml"], "no such file"),
    ],
)
def test_wrong_options(arguments, said, capsys):
    assert run(["slurm", "config", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_a_cluster_of_several_kinds_of_nodes(tmp_path, policy, capsys):
    file = tmp_path / "cluster.yaml"
    file.write_text(
        "version: partage/v1\nkind: SlurmCluster\nslurm: 24.11.5\nnodes:\n"
        '  - {name: "g[001-100]", machine: 8xh100-sxm5-80gb, policy: policy.yaml,\n'
        '     settings: "CPUs=64 RealMemory=1000000"}\n'
        "  - {name: l1, machine: 4xl40s}\n"
    )
    assert run(["slurm", "config", "--cluster", str(file)]) == 0
    out = capsys.readouterr().out
    assert "GresTypes=gpu,mps\n" in out
    assert "NodeName=g[001-100] CPUs=64 RealMemory=1000000 Gres=gpu:h100:7,gpu:h100_shared:1,mps:100 " in out
    assert "NodeName=l1 Gres=gpu:l40s:4 Features=l40s\n" in out


def test_nodes_of_one_policy_by_their_labels(tmp_path, capsys):
    (tmp_path / "all.yaml").write_text(
        "version: partage/v1\ngpus:\n"
        "  - {select: {index: [0]}, when: {label: {pool: inference}}, mps: {replicas: 4}}\n"
    )
    file = tmp_path / "cluster.yaml"
    file.write_text(
        "version: partage/v1\nkind: SlurmCluster\nslurm: 24.11.5\nnodes:\n"
        "  - {name: g1, machine: 2xl4, policy: all.yaml, labels: {pool: inference}}\n"
        "  - {name: g2, machine: 2xl4, policy: all.yaml, labels: {}}\n"
    )
    assert run(["slurm", "config", "--cluster", str(file)]) == 0
    out = capsys.readouterr().out
    assert "NodeName=g1 Gres=gpu:l4:1,gpu:l4_shared:1,mps:100 " in out
    assert "NodeName=g2 Gres=gpu:l4:2 " in out


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ("- {name: a, machine: 4xl4, labels: {pool: 'a b'}}", "labels"),
        ("- {name: a, machine: 4xl4, labels: pool}", "labels"),
        ('- {name: "g[1-2", machine: 4xl4}', "a bracket that is not closed"),
        ("- {name: a, machine: 4xl4}\n- {name: a, machine: 4xl4}", "node a occurs twice"),
        ("- {name: a}", "machine"),
        ("- {name: a, machine: 4xnothing}", "no GPU model is called"),
        ("- {name: a, machine: 4xl4, policy: nowhere.yaml}", "no such file"),
        ("- {name: a, machine: 4xl4, gres: x}", "gres"),
        ('- {name: a, machine: 4xl4, settings: "CPUs"}', "is not a setting"),
    ],
)
def test_mistakes_in_a_cluster_file_are_named(nodes, said, tmp_path, capsys):
    file = tmp_path / "cluster.yaml"
    indented = "\n".join(f"  {line}" for line in nodes.splitlines())
    file.write_text(f"version: partage/v1\nkind: SlurmCluster\nslurm: 24.11\nnodes:\n{indented}\n")
    assert run(["slurm", "config", "--cluster", str(file)]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("node", ["n1\nNodeName=evil", "n1 Gres=gpu:h100:64", "n1 #", "n1\\", ""])
def test_a_node_has_a_name_and_no_other_line(node, capsys):
    assert run([*ARGUMENTS[:-1], node]) == 2
    said = capsys.readouterr()
    assert "--node" in said.err
    assert not said.out


def test_several_nodes_that_are_alike_are_a_list_of_names(capsys):
    assert run([*ARGUMENTS[:-1], "g[1-3]"]) == 0
    assert "NodeName=g[1-3] AutoDetect=off" in capsys.readouterr().out


@pytest.mark.parametrize("settings", ["CPUs=64 #=", "CPUs=\\", "CPUs=\x1b[0m"])
def test_settings_stay_in_their_line(settings, capsys):
    assert run([*ARGUMENTS, "--node-settings", settings]) == 2
    assert "is not a setting such as CPUs=64" in capsys.readouterr().err


def test_the_include_line_is_the_one_that_a_configless_cluster_sends(capsys):
    """With its path, slurmd of a configless cluster ended."""
    assert run(["slurm", "config", "--machine", "1xl4", "--node", "g1", "--slurm-version", "24.11.5"]) == 0
    said = capsys.readouterr().out
    assert "Include gpus.conf" in said
    assert "Include /" not in said
