"""The commands whose answers are kept: verbs on six machines and eight policies, wrong files, help, SVG."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tools.freeze.wrong_files import wrong_files

MACHINES = (
    "8xh100-sxm5-80gb",
    "8xa100-40gb",
    "4xl40s",
    "2xb200-180gb",
    "4xh200-141gb+4xl40s",
    "examples/07-mixed-node/machine.json",
)
POLICIES = (
    "01-whole-gpus/policy.yaml",
    "02-time-slicing/policy.yaml",
    "03-eight-cards-as-sixteen/policy.yaml",
    "04-mps-on-two-of-eight/policy.yaml",
    "04-mps-on-two-of-eight/native.yaml",
    "06-mig/mixed.yaml",
    "07-mixed-node/policy.yaml",
    "14-gpu-memory/policy.yaml",
)
SLURMS = ("21.08.8", "22.05.8", "23.02.7", "24.11.5", "25.05.3")
WRITTEN = "WRITTEN"
"""Begins the name of a file that the command writes; what it wrote is part of its answer."""

PODS = {
    "one.yaml": "nvidia.com/gpu: 1",
    "shared.yaml": "nvidia.com/gpu.shared: 2",
    "mig.yaml": "nvidia.com/mig-1g.10gb: 1",
    "many.yaml": "nvidia.com/gpu: 9",
}
_POD = """\
apiVersion: v1
kind: Pod
metadata: {{name: asks, namespace: team}}
spec:
  initContainers:
    - name: first
      image: busybox
      resources: {{limits: {{{0}}}}}
  containers:
    - name: main
      image: busybox
      resources: {{limits: {{{0}}}}}
"""


class Command(NamedTuple):
    """file: where the answer is kept. words: after ``partage``. columns: of the terminal."""

    file: str
    words: tuple[str, ...]
    columns: int = 80


def write_inputs(home: Path) -> None:
    """Files that the commands name, beside ``examples``."""
    for name, asked in PODS.items():
        (home / name).write_text(_POD.format(asked), encoding="utf-8")
    (home / "empty").mkdir()
    (home / "wrong").mkdir()
    for name, text in wrong_files(home / "examples"):
        (home / "wrong" / name).write_bytes(text)


def commands(home: Path, verbs: list[str]) -> Iterator[Command]:
    """All commands. verbs: their names, from ``partage --help``."""
    for machine in MACHINES:
        yield from _on_machine(machine)
        for policy in POLICIES:
            yield from _with_policy(machine, policy)
    yield from _alone()
    for verb in verbs:
        yield from _help(verb)
    for name in sorted(path.name for path in (home / "wrong").iterdir()):
        for output in ("table", "json"):
            yield Command(f"wrong/{name}", ("check", f"wrong/{name}", "-o", output))
    for name in sorted(path.name for path in (home / "wrong").glob("*policy*")):
        yield Command(f"wrong/{name}", ("plan", "-f", f"wrong/{name}", "--machine", MACHINES[0]))
    for page in sorted((home / "docs").rglob("*.md")):
        yield from _of_page(home, page)


def _in_all_forms(file: str, *words: str, others: tuple[str, ...] = ()) -> Iterator[Command]:
    for columns in (80, 200):
        yield Command(file, words, columns)
    for output in ("json", "yaml", *others):
        yield Command(file, (*words, "-o", output))


def _with_policy(machine: str, policy: str) -> Iterator[Command]:
    place = f"{policy.replace('/', '-').removesuffix('.yaml')}/{Path(machine).name.replace('.json', '')}"
    labels = ("--node-labels", "ack.node.gpu.schedule=mps") if "14-" in policy else ()
    given = ("-f", f"examples/{policy}", "--machine", machine, *labels)
    for verb in ("show", "plan", "assert"):
        yield from _in_all_forms(f"verbs/{verb}/{place}", verb, *given)
    yield from _in_all_forms(f"verbs/labels/{place}", "labels", *given, others=("nfd",))
    yield from _in_all_forms(f"verbs/apply/{place}", "apply", "--dry-run", *given)
    yield Command(f"verbs/apply/{place}", ("apply", *given, "--write", f"{WRITTEN}.json"))
    yield from _in_all_forms(f"verbs/check/{place}", "check", f"examples/{policy}", *given[2:])
    for pod in PODS:
        yield from _in_all_forms(f"verbs/explain/{place}", "explain", pod, *given)
    for release in SLURMS:
        words = ("slurm", "config", *given, "--slurm-version", release, "--node", "g1")
        yield Command(f"slurm/{release}/{place}", words)


def _on_machine(machine: str) -> Iterator[Command]:
    name = Path(machine).name.replace(".json", "")
    for verb in ("show", "fits"):
        yield from _in_all_forms(f"verbs/{verb}/{name}", verb, "--machine", machine)
    for output in ("json", "yaml"):
        yield Command(f"verbs/export/{name}", ("export", "--machine", machine, "-o", output))
        yield Command(f"verbs/record/{name}", ("record", "-o", output, "--machine", machine))
    yield from _in_all_forms(f"verbs/doctor/{name}", "doctor", "--machine", machine, "--root", "empty")
    yield from _in_all_forms(
        f"verbs/plan-demand/{name}",
        *("plan", "--machine", machine, "--demand", "1g.10gb=3,3g.40gb=1", "--time-limit", "60"),
        others=("policy",),
    )  # fmt: skip
    for picture in ("show", "fits"):
        yield Command(f"svg/{picture}-{name}", (picture, "--machine", machine, "--picture", f"{WRITTEN}.svg"))


def _alone() -> Iterator[Command]:
    yield from _in_all_forms("verbs/machines", "machines")
    for model in ("h100-sxm5-80gb", "a30-24gb", "l40s", "b200-180gb"):
        yield from _in_all_forms(f"verbs/fits/{model}", "fits", model)
        for work in ("inference", "training", "notebooks", "rendering", "mpi"):
            for isolation in ("hardware", "memory", "none"):
                given = ("--gpu", model, "--workload", work, "--isolation", isolation, "--tenants", "4")
                file = f"verbs/advise/{model}-{work}-{isolation}"
                yield from _in_all_forms(file, "advise", *given, others=("policy",))
                yield Command(file, ("advise", *given, "--path", f"{WRITTEN}.svg"))
    trace = (
        "simulate",
        "--trace",
        "examples/15-what-if/pods.csv",
        "--fleet",
        "examples/15-what-if/nodes.csv",
    )
    for policy in ("halves", "exclusive"):
        yield from _in_all_forms(
            f"verbs/what-if/{policy}", *trace, "-f", f"examples/15-what-if/{policy}.yaml"
        )
    for name in ("whole", "day", "night"):
        file = f"examples/10-mig-by-difference/{name}.yaml"
        for provider in ("nvidia", "gke", "fpt"):
            yield from _in_all_forms(
                f"verbs/providers/{provider}-{name}", "check", "--provider", provider, file
            )
    for name in ("cards", "traps", "fleet"):
        yield from _in_all_forms(
            f"verbs/check/mig-parted-{name}", "check", f"examples/09-mig-parted/{name}.yaml"
        )
    policy = "examples/04-mps-on-two-of-eight/policy.yaml"
    yield from _in_all_forms("verbs/prove", "prove", "--machine", MACHINES[0], "-f", policy)
    for shell in ("bash", "zsh", "fish"):
        yield Command(f"help/completion-{shell}", ("completion", shell))
    yield Command("help/partage", ("--help",))
    yield Command("help/partage", ("--help",), 200)


def _help(verb: str) -> Iterator[Command]:
    for columns in (80, 200):
        yield Command(f"help/{verb}", (verb, "--help"), columns)
    if verb == "slurm":
        for name in ("config", "check", "prolog", "epilog", "task-prolog"):
            yield Command(f"help/slurm-{name}", (verb, name, "--help"))


def _of_page(home: Path, page: Path) -> Iterator[Command]:
    """The policies and stories that a page shows, right and wrong ones: what ``check`` says of each."""
    blocks = re.findall(r"^```yaml\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    for number, text in enumerate(blocks):
        name = f"{page.relative_to(home / 'docs').with_suffix('')}-{number}".replace("/", "-")
        path = home / "wrong" / f"docs-{name}.yaml"
        path.write_text(text, encoding="utf-8")
        for output in ("table", "json"):
            yield Command(f"wrong/docs/{name}", ("check", f"wrong/{path.name}", "-o", output))
