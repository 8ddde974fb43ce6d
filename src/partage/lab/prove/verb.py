"""``partage prove``: try to break what the shares of this node guarantee, and report the outcome."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from partage import __version__
from partage.answers import common_node, common_options, common_output, completion
from partage.answers.verb import verb
from partage.errors import Problem, wrong_input
from partage.lab import options as lab
from partage.values import Frozen

if TYPE_CHECKING:
    from partage.agent.observers.once import NodeAccess
    from partage.answers.documents.report import ReportDocument
    from partage.edges.files.policy import LoadedPolicy
    from partage.lab.prove.model import ProofReport
    from partage.lab.prove.share import PromisedShare
    from partage.lab.prove.stage import ProofEngine
    from partage.model.gpu import Gpu, Inventory
    from partage.model.share import NodeOffer

_OTHERWISE = "--engine cuda needs none; --machine 1xh100-sxm5-80gb tries MPS on a simulated control daemon"


class ProveOptions(Frozen):
    """The command-line options. loaded: None: no policy was named."""

    loaded: LoadedPolicy | None
    machine: str | None
    gpu: str | None
    mps_pipe: Path | None
    run_dir: str | None
    driver_root: Path
    pod_resources: str | None
    only: tuple[str, ...]
    engine: str
    python: str | None
    faults: bool
    alone: bool
    deadline_s: float

    @property
    def runs(self) -> Path:
        """The run directory of the agent."""
        return Path(self.run_dir or common_options.DEFAULT_RUN_DIR)


def _names(ctx: click.Context, parameter: click.Parameter, value: str | None) -> tuple[str, ...]:
    del ctx, parameter
    return tuple(part.strip() for part in value.split(",")) if value is not None else ()


@verb("prove")
@common_options.policy_option("Default: what the agent's report promises, or the MPS daemons that run.")
@common_options.config_option
@common_options.machine_option
@click.option("--gpu", metavar="INDEX|UUID", help="Only this GPU (default: all).")
@click.option("--only", metavar="ATTACK,...", callback=_names, help="Only these attacks.")
@click.option("--faults", is_flag=True, help="Also cause faults, which end all clients of the GPU.")
@click.option(
    "--alone",
    is_flag=True,
    help="State that nothing else uses the GPUs; needed in containers, which cannot see other processes.",
)
@click.option(
    "--report", type=lab.DIRECTORY, metavar="DIR", help="Write prove.json and prove.md to this directory."
)
@click.option(
    "--read", metavar="FILE", shell_complete=completion.files, help="Show a saved report; nothing is tried."
)
@click.option("--engine", type=click.Choice(("torch", "cuda")), default="torch", show_default=True,
              help="How tenants use the GPU: through PyTorch, or the driver's library alone.")  # fmt: skip
@click.option(
    "--python", metavar="PATH", help="The Python interpreter of the tenants; with PyTorch for --engine torch."
)
@lab.mps_pipe_option
@common_options.run_dir_option
@common_options.driver_root_option
@click.option("--pod-resources", metavar="PATH",
              help="The kubelet's PodResources socket (if it exists); none: do not ask.")  # fmt: skip
@click.option("--deadline", type=click.FloatRange(1, 3600), default=60, show_default=True, metavar="SECONDS",
              help="Time for one answer of a tenant.")  # fmt: skip
@common_options.output_option("table", "json", "yaml")
def command(
    policy: str | None,
    config: str | None,
    report: Path | None,
    read: str | None,
    output: str,
    **asked: object,
) -> int:
    """Try to break what shares guarantee; report what was promised, what was seen, and a verdict.

    Tenants allocate over their limits, cause faults next to a neighbour, bypass the MPS daemon and change
    their environment variables, on GPUs of this node that nothing else uses. No setting of a GPU is
    changed, no daemon is started or stopped. The promises come from --policy, else from the report of the
    agent on this node, else from the running MPS daemon. docs/reference/prove.md explains every attack.

    With --machine the attacks run against a simulated MPS control daemon (without a policy: four shares),
    and against simulated memory limits of the driver's; those that need real hardware are not tried.

    Exit code 1: a promise is broken; 3: a GPU is in use, or nothing could be tried; 4: no driver, no
    libcuda.so.1, or no PyTorch.
    """
    from partage.lab.prove.report import PROOF, proof_lines

    if report is not None:
        _make_folder(report)
    if read is not None:
        proof_report = PROOF.read(read)
    else:
        loaded = None if policy is None and config is None else common_node.read_policy(policy, config)
        common_output.print_problems(loaded.warnings if loaded is not None else ())
        proof_report = asyncio.run(_prove(_options(loaded, asked)))
    if report is not None:
        _write(proof_report, report)
    lab.print_report(proof_report, PROOF, output, proof_lines)
    if proof_report.untried:
        common_output.print_problems(
            [Problem("", "", "error", f"nothing was tried: {'; '.join(proof_report.untried)}")]
        )
    return proof_report.exit_code


def _options(loaded: LoadedPolicy | None, asked: dict[str, object]) -> ProveOptions:
    root = common_options.driver_root() or Path("/")
    named = {"deadline_s": asked.pop("deadline"), "driver_root": root, **asked}
    return ProveOptions(loaded=loaded, **named)  # type: ignore[arg-type]


async def _prove(options: ProveOptions) -> ProofReport:
    """Observe, choose GPUs, run the attacks. Raises Unsatisfiable where something else uses the GPUs."""
    from partage.answers.documents.lab import command_line, now
    from partage.lab.gpus import free_gpus, holders, require_visible_processes
    from partage.lab.prove.model import DriverVersions, ProofReport
    from partage.lab.prove.runner import attacks_named, run_attacks
    from partage.lab.prove.share import shares_of
    from partage.model.gpu import Driver

    attacks = attacks_named(options.only)
    async with _node(options) as node:
        inventory, uses = await node.observe()
        driver = common_node.need_driver(inventory).driver
        assert isinstance(driver, Driver), "checked by need_driver"
        agent = common_node.agent_report(options.machine, options.run_dir)
        simulated = options.machine is not None
        if not simulated and not options.alone:
            require_visible_processes((await node.hardware.processes()).hidden)
        held = {} if simulated else holders(inventory, uses, agent.pods_by_gpu if agent else {})
        gpus = free_gpus(inventory, options.gpu, held)
        offer, remark = await _offer(options, inventory, agent)
        shares = shares_of(offer, inventory, {gpu.uuid for gpu in gpus})
        async with _engine(options, node, inventory) as engine:
            rows = [row async for row in run_attacks(engine, shares, attacks, lab.print_progress)]
            versions = {"partage": __version__, **await asyncio.to_thread(engine.versions)}
    return ProofReport(
        at=now(),
        command=command_line(),
        versions=versions,
        driver=DriverVersions(driver.version, driver.cuda),
        machine=options.machine or "",
        gpus=tuple(_gpu_words(gpu) for gpu in gpus if _is_tried(gpu, shares)),
        rows=tuple(rows),
        remarks=(remark,),
    )


@asynccontextmanager
async def _node(options: ProveOptions) -> AsyncIterator[NodeAccess]:
    """The node, and the kubelet that knows its pods."""
    from partage.agent.observers.once import NodeAccess
    from partage.edges.kubelet.pod_resources import PodResourcesClient

    socket = common_options.pod_resources_socket(options.pod_resources, options.machine)
    pods = None if socket is None else PodResourcesClient(socket)
    hardware = common_node.open_hardware(options.machine)
    try:
        yield NodeAccess(hardware, pods)
    finally:
        if pods is not None:
            pods.close()
        await hardware.close()


async def _offer(
    options: ProveOptions, inventory: Inventory, agent: ReportDocument | None
) -> tuple[NodeOffer, str]:
    """What is promised, and a sentence that says by what."""
    from partage.lab.prove.share import IN_FOUR, offer_of_daemons, offer_of_policy

    if options.loaded is not None:
        policy = options.loaded.policy
        return offer_of_policy(
            policy, inventory
        ), f"Promised by the policy {policy.source or 'that was given'}."
    if agent is not None:
        return agent.offer, f"Promised by the agent of this node, in its report of {agent.at}."
    if options.machine is not None:
        return offer_of_policy(IN_FOUR, inventory), "Promised: MPS in four shares; --policy names others."
    offer = await offer_of_daemons(inventory, options.runs, options.mps_pipe, options.driver_root)
    return offer, "No policy and no agent: promised by the GPUs and the MPS daemons that are there."


@asynccontextmanager
async def _engine(
    options: ProveOptions, node: NodeAccess, inventory: Inventory
) -> AsyncIterator[ProofEngine]:
    """Raises InputError, HardwareError where tenants cannot be started."""
    if options.machine is not None:
        from partage.lab.prove.simulated import simulation
        from partage.model.driver_limit import LimitBackend

        backends = [gpu.limits.backend for gpu in inventory if gpu.limits and not gpu.limits.obstacle]
        backend = next(iter(backends), LimitBackend.MISC)
        async with simulation(faults=options.faults, backend=backend) as simulated:
            yield simulated
        return
    from functools import partial

    from partage.lab.prove.real import RealEngine, counted_memory
    from partage.lab.tenant import TenantLaunch, find_python

    python = await asyncio.to_thread(find_python, options.python, "cuda", options.engine, _OTHERWISE)
    yield RealEngine(
        launch=TenantLaunch(python, options.engine),
        observe=node.observe,
        memory=partial(counted_memory, node.hardware),
        run_dir=options.runs,
        faults=options.faults,
        pipe=options.mps_pipe,
        driver_root=options.driver_root,
        deadline_s=options.deadline_s,
    )


def _is_tried(gpu: Gpu, shares: tuple[PromisedShare, ...]) -> bool:
    return any(share.offering.gpu == gpu.uuid for share in shares)


def _gpu_words(gpu: Gpu) -> str:
    from partage.lab.gpus import mode_name
    from partage.units import format_bytes

    mode = f"{mode_name(gpu)} mode" + (", MIG mode" if gpu.mig_enabled else "")
    return f"GPU {gpu.index}: {gpu.product}, {format_bytes(gpu.memory_bytes)}, {mode}, {gpu.uuid}"


# --- the answer --------------------------------------------------------------------------------


def _make_folder(path: Path) -> None:
    """Before anything is tried. Raises InputError where nothing can be written there."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise wrong_input(path, f"cannot be made: {error.strerror}") from error
    lab.check_writable(path, path)


def _write(report: ProofReport, folder: Path) -> None:
    from partage.lab.prove.report import PROOF, proof_page

    text = json.dumps(PROOF.to_document(report), indent=2, ensure_ascii=False) + "\n"
    common_output.write_file(str(folder / "prove.json"), text)
    common_output.write_file(str(folder / "prove.md"), proof_page(report))
