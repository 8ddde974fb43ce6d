"""What verbs import: main imports them without TLS, which a client of a cluster or of Prometheus needs."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

from partage.cli.main import MODULES, VERBS

MODULE_NAMES = {name.partition(":")[0] for name in MODULES.values()}
UNIX_SOCKETS_ONLY = {"apply", "prove", "simulate"}
"""They speak to helpers and daemons on this node, and import asyncio at once."""

EACH_IN_A_PROCESS = """
import json, os, sys
import click
from partage.cli.main import VERBS, partage

def without_tls(verb):
    partage.get_command(click.Context(partage), verb)
    imported = [(name, vars(one)) for name, one in sys.modules.items() if one is not None]
    return [name for name, names in imported if "ssl" in names and names["ssl"] is None]

found = {}
for verb in VERBS:
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.write(writer, json.dumps(without_tls(verb)).encode())
        os._exit(0)
    os.close(writer)
    with open(reader) as answer:
        found[verb] = json.loads(answer.read() or "null")
    os.wait()
print(json.dumps(found))
"""


def test_no_verb_of_a_cluster_is_left_without_tls() -> None:
    command = [sys.executable, "-c", EACH_IN_A_PROCESS]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    found = json.loads(done.stdout)
    assert set(found) == set(VERBS)
    assert {verb for verb, modules in found.items() if modules != []} == UNIX_SOCKETS_ONLY


def test_each_verb_names_a_module_that_exists() -> None:
    assert set(MODULES) == set(VERBS)
    assert [name for name in MODULE_NAMES if importlib.util.find_spec(name) is None] == []


def test_help_imports_no_verb() -> None:
    say = "import sys; from partage.cli.main import run; run(['--help']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", say], check=True, capture_output=True, text=True, timeout=60)
    shared = {MODULES["completion"]}  # what options are completed with
    assert MODULE_NAMES & set(done.stdout.split()) == shared
