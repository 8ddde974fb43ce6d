"""``partage uncordon``: the opposite of ``partage cordon``."""

from __future__ import annotations

from pathlib import Path

from partage.answers.common_output import say
from partage.answers.verb import verb
from partage.cli.cordon import change_names, options


@verb("uncordon")
@options
def command(
    *,
    gpus: tuple[str, ...],
    node: str | None,
    kubeconfig: str | None,
    machine: str | None,
    state_dir: Path | None,
) -> None:
    """Let new containers use cordoned GPUs again, named by NVML index or UUID.

    GPUs that were cordoned with --node need --node here, too; the others are uncordoned on their node.
    """
    names = change_names(
        lambda there, given: there - given,
        gpus,
        node=node,
        kubeconfig=kubeconfig,
        machine=machine,
        state_dir=state_dir,
    )
    say(f"still cordoned: {', '.join(sorted(names))}" if names else "no GPU is cordoned")
