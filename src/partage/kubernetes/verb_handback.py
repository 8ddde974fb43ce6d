"""``partage handback``: NVIDIA's device plugin gets its place again."""

from __future__ import annotations

from pathlib import Path

from partage.answers import common_options, common_output
from partage.answers.process_start import lean_imports
from partage.answers.verb import verb
from partage.kubernetes.verb_takeover import (
    TakeoverRun,
    change,
    cluster_asked,
    exchange_options,
    offered_by_nvidia,
    place_of,
)


@verb("handback")
@common_options.policy_option(
    "Default: what NVIDIA's plugin listed before the takeover.", standard_input=True
)
@common_options.config_option
@exchange_options
def command(
    *,
    policy: str | None,
    config: str | None,
    cluster: bool,
    kubeconfig: str | None,
    node_name: str,
    wait_s: float | None,
    kubelet_dir: Path,
    run_dir: str | None,
    state_dir: Path,
    output: str,
) -> int:
    """Return to NVIDIA's device plugin, while pods run.

    Checks that NVIDIA's plugin will offer every id that a pod holds, prints the steps, and with --cluster
    does them: the agent stops serving, the node gets its earlier label back, NVIDIA's plugin starts and
    registers. With --cluster or --wait no new pod gets a GPU from the beginning until then; those that run
    keep theirs. Leave the agent running until it is done; afterwards it can be removed.

    Exit code 3: pods would lose their GPUs; 4: it was not done in time, and Partage serves as before; 5:
    the kubelet or the API server does not answer.
    """
    with lean_imports(tls=cluster):
        import asyncio

        from partage.kubernetes.plugin_exchange import handback_of, handback_steps

    place = place_of(kubelet_dir, run_dir, state_dir)
    exchange = handback_of(place, offered_by_nvidia(place, policy, config))
    record = place.record()
    label = record.label if record else None
    run = TakeoverRun(place, exchange, handback_steps(node_name, label), node_name, output)
    api_server = cluster_asked(cluster, kubeconfig, node_name)
    run.announce()
    if not run.possible or (api_server is None and wait_s is None):
        return run.finish(done=False)
    asyncio.run(change(run, api_server, label, wait_s))
    if kept := place.kept():
        common_output.say(
            f"warning: the kubelet keeps earlier sockets of Partage ({', '.join(kept)}), and asks there when "
            "NVIDIA's plugin ends: restart the kubelet before the agent is removed",
            err=True,
        )
    return run.finish(done=True)
