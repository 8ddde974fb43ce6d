"""The command as a whole: verbs, help, errors, exit codes."""

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from partage import __version__
from partage.cli import main as cli
from partage.errors import InputError


def _partage(*arguments):
    return cli.run([str(argument) for argument in arguments])


def test_the_version_is_said_in_one_line(capsys):
    assert _partage("--version") == 0
    assert capsys.readouterr().out == f"partage {__version__}\n"


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_names_every_verb_with_a_sentence(capsys, option):
    assert _partage(option) == 0
    text = capsys.readouterr().out
    for title, verbs in cli.GROUPS.items():
        assert f"\n{title}:\n" in text
        for verb, sentence in verbs.items():
            assert f"\n  {verb} " in text
            assert sentence in text
    for verb, sentence in cli.HIDDEN.items():
        assert f"\n  {verb} " not in text
        assert sentence not in text


def test_every_verb_has_a_help_of_its_own(capsys):
    for verb in cli.VERBS:
        assert _partage(verb, "-h") == 0
        assert "usage: partage" in capsys.readouterr().out.lower()


def test_a_mistyped_verb_is_a_usage_error_that_suggests_the_right_one(capsys):
    assert _partage("plam") == 2
    said = capsys.readouterr()
    assert "did you mean 'plan'?" in said.err
    assert said.out == ""


@pytest.mark.parametrize(
    "arguments", [["plan", "--polcy", "x"], ["check"], ["plan", "-o", "xml"], ["simulate"]]
)
def test_wrong_usage_ends_with_2_and_no_traceback(capsys, arguments):
    assert _partage(*arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert f"partage {arguments[0]} --help" in said


def test_an_error_is_one_line_on_stderr_with_the_exit_code_of_its_class(capsys):
    assert _partage("plan", "--machine", "8xa100-41gb") == InputError.exit_code
    said = capsys.readouterr()
    assert said.err.startswith("error: ")
    assert said.err.count("\n") == 1
    assert "a100-40gb" in said.err
    assert said.out == ""


def test_who_asked_for_json_gets_the_error_as_json_too(capsys):
    assert _partage("plan", "-o", "json", "--machine", "nothing-like-it") == 2
    document = json.loads(capsys.readouterr().out)
    assert document["apiVersion"] == "partage/v1"
    assert document["kind"] == "Problems"
    assert document["problems"][0]["severity"] == "error"


def test_wrong_usage_is_told_as_json_too(capsys):
    assert _partage("plan", "-o", "json", "--bogus") == 2
    assert "--bogus" in json.loads(capsys.readouterr().out)["problems"][0]["message"]


def test_no_driver_is_explained_with_what_to_do(capsys, tmp_path):
    machine = tmp_path / "bare.json"
    machine.write_text(
        json.dumps(
            {"no-driver": {"kind": "driver-missing", "reason": "the module is not loaded", "hint": "load it"}}
        )
    )
    assert _partage("show", "--machine", machine) == 4
    said = capsys.readouterr().err
    assert "the module is not loaded" in said
    assert "load it" in said


READS_THE_NODE = [
    ["show"],
    ["plan"],
    ["plan", "--demand", "1g.10gb"],
    ["apply", "--policy", "policy.yaml", "--state-dir", "state"],
    ["assert", "--policy", "policy.yaml"],
    ["export"],
    ["record"],
    ["check", "pod.yaml", "--policy", "policy.yaml"],
    ["prove", "--alone"],
    ["bench"],
]


@pytest.mark.parametrize("verb", READS_THE_NODE, ids=" ".join)
def test_every_verb_that_reads_the_real_node_finds_the_driver_where_it_is_said(
    verb, capsys, tmp_path, monkeypatch
):
    """The hint about --driver-root is the same everywhere, and everywhere it can be followed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "policy.yaml").write_text("version: partage/v1")
    (tmp_path / "pod.yaml").write_text("{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {}}")
    library = tmp_path / "driver/usr/lib64/libnvidia-ml.so.1"
    library.parent.mkdir(parents=True)
    library.write_text("broken")
    assert _partage(*verb, "--driver-root", tmp_path / "driver") == 4
    assert f"{library} cannot be loaded" in capsys.readouterr().err


def test_a_simulated_node_has_no_driver_root(capsys):
    assert _partage("show", "--machine", "1xl4", "--driver-root", "/x") == 2
    assert "exclude each other" in capsys.readouterr().err


def test_ctrl_c_ends_with_130(monkeypatch):
    class Interrupted(io.RawIOBase):
        """Standard input of a person who presses Ctrl-C while it is read."""

        def readable(self):
            return True

        def readinto(self, _):
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(Interrupted())))
    assert _partage("check", "-") == 130


@pytest.mark.parametrize("output", ["json", "yaml", "table"])
def test_a_reader_that_ends_early_ends_the_command_with_141(output):
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "partage", "plan", "--machine", "8xl4", "-o", output],
        stdout=write, stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    os.close(write)
    assert done.stderr == ""
    assert done.returncode == 141


@pytest.mark.parametrize("output", ["json", "table"])
def test_a_full_disk_is_an_error_and_not_a_false_answer(output):
    command = [sys.executable, "-m", "partage", "show", "--machine", "1xl4", "-o", output]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.stderr == "error: standard output cannot be written: No space left on device\n"
    assert done.returncode == 2


def test_a_minus_as_file_is_standard_output(capfdbinary, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    policy = tmp_path / "policy.yaml"
    policy.write_text("version: partage/v1")
    assert _partage("apply", "--machine", "1xl4", "-f", policy, "--write", "-") == 0
    assert b'"kind": "Machine"' in capfdbinary.readouterr().out
    assert [file.name for file in tmp_path.iterdir()] == ["policy.yaml"]


def test_a_closed_stdout_is_no_bug():
    command = f"{sys.executable} -m partage show --machine 1xl4 >&-"
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "verb", [["plan"], ["show"], ["assert"], ["export"], ["apply", "--dry-run", "--policy", "-"]]
)
def test_a_verb_that_only_reads_imports_neither_the_agents_status_nor_tls(verb):
    """What makes the ratios of ``python -m bench.bench_verbs``, counted and not timed."""
    program = (
        "import sys; from partage.cli import main; main.run(sys.argv[1:]);"
        "names = ('ssl', '_hashlib', 'rich._emoji_codes', 'partage.agent.status.status', 'grpclib');"
        "print([name for name in names if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *verb, "--machine", "8xh100-sxm5-80gb"],
        input="version: partage/v1", capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


@pytest.mark.parametrize("module", ["partage.cli.hardware", "partage.faces.cli.hardware"])
def test_the_helper_of_the_chart_imports_neither_the_command_line_nor_tls(tmp_path, module):
    """Each would be 0.5 to 2 MiB of every node's memory."""
    program = (
        "import os, runpy, sys, threading, time\n"
        f"socket = {str(tmp_path / 's')!r}\n"
        "def look():\n"
        "    while not os.path.exists(socket): time.sleep(0.01)\n"
        "    names = 'click _ssl _hashlib _lzma _bz2 argparse ctypes typing_extensions'.split()\n"
        "    print([name for name in names if sys.modules.get(name)], flush=True)\n"
        "    os._exit(0)\n"
        "threading.Thread(target=look).start()\n"
        "sys.argv[1:] = ['--socket', socket, '--machine', '1xl4']\n"
        f"runpy.run_module({module!r}, run_name='__main__')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n", done.stderr


def test_the_verbs_that_need_no_tables_import_none():
    program = (
        "import sys; from partage.cli import main; main.run(['--version']); main.run(['-h']);"
        "print([name for name in ('rich', 'pynvml', 'grpclib', 'yaml') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("[]\n")


def test_version_is_a_verb_too(capsys):
    assert _partage("version") == 0
    assert capsys.readouterr().out == f"partage {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "form"),
    [
        (["plan", "policy.yaml"], "partage plan -f policy.yaml"),
        (["show", "policies/node.json"], "partage show -f policies/node.json"),
        (["apply", "policy.yml"], "partage apply -f policy.yml"),
        (["plan", "8xa100-40gb"], "partage plan --machine 8xa100-40gb"),
        (["export", "1xl4+1xt4"], "partage export --machine 1xl4+1xt4"),
    ],
)
def test_an_argument_too_many_is_told_the_option_that_was_meant(capsys, arguments, form):
    assert _partage(*arguments) == 2
    said = capsys.readouterr().err
    assert f": {form} (" in said
    assert said.count("\n") == 1


def test_under_its_name_for_kubectl_it_says_how_it_was_called(tmp_path):
    (tmp_path / "kubectl-partage").symlink_to(Path(sys.executable).parent / "partage")
    command = [str(tmp_path / "kubectl-partage"), "plan"]
    shown = subprocess.run([*command, "--help"], capture_output=True, text=True, check=True)
    assert shown.stdout.startswith("Usage: kubectl partage plan ")
    wrong = subprocess.run([*command, "p.yaml"], capture_output=True, text=True, check=False)
    assert "kubectl partage plan -f p.yaml" in wrong.stderr


def test_nothing_to_do_is_said(capsys, tmp_path):
    (tmp_path / "policy.yaml").write_text("version: partage/v1")
    for verb in ("plan", "apply"):
        assert _partage(verb, "-f", tmp_path / "policy.yaml", "--machine", "1xl4") == 0
        assert "no changes: " in capsys.readouterr().out


def test_show_memory_and_inspect_say_the_same(capsys, tmp_path):
    said = []
    for words in (["show", "--memory"], ["inspect"]):
        assert _partage(*words, "--run-dir", tmp_path) == 4
        said.append(capsys.readouterr().err)
    assert said[0] == said[1]
    assert "no agent runs here" in said[0]


def test_show_memory_goes_alone(capsys):
    assert _partage("show", "--memory", "-o", "json") == 2
    assert "--memory" in capsys.readouterr().err
