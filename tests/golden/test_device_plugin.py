"""NVIDIA's plugin, answer by answer: every recorded case goes through our policy, plan and messages.

What differs on purpose stands under "deviations", one function for each; nothing else is forgiven.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict

from partage.edges.files.catalogue import geometry_of
from partage.edges.files.policy import parse_policy
from partage.edges.kubelet.messages import answer_message, device_list_message
from partage.edges.kubelet.port import DeviceList
from partage.edges.kubelet.server import PluginServer
from partage.errors import InputError
from partage.model.gpu import Inventory
from partage.model.ids import GpuUuid, ResourceName, ShareId, device_of, plugin_socket_name, share_id
from partage.model.policy import Policy
from partage.model.share import AllocationRefused, ContainerAllocation, DeviceRow, Resource, resources_of
from partage.plan.offer.advertise import advertise
from partage.plan.offer.assign import assign
from partage.plan.serve.allocate_response import AllocateResponder
from partage.plan.serve.preferred_allocation import PreferredAllocator, pair_score
from partage.sim.node.files.machine_file import read_machine

Json = Any
_FOLDER = Path(__file__).parent / "device-plugin"
_RUN_DIR = "/run/partage"
_MPS_ROOT = "/run/nvidia/mps"
_REFUSED_BY_US_ALONE = {"ts-and-mps"}


# --- what is replayed ----------------------------------------------------------------------------


@cache
def _recording(machine: str) -> Json:
    return json.loads((_FOLDER / f"{machine}.json").read_text())


def _cases(*, refused: bool) -> list[Any]:
    return [
        pytest.param(file.stem, name, id=f"{file.stem}-{name}")
        for file in sorted(_FOLDER.glob("*.json"))
        for name, case in _recording(file.stem)["cases"].items()
        if (name in _REFUSED_BY_US_ALONE or case["exit"] is not None) == refused
    ]


@dataclass(frozen=True)
class _Ours:
    """What Partage makes of a configuration on that machine."""

    policy: Policy
    inventory: Inventory
    resources: Mapping[ResourceName, Resource]

    def answerer(self, name: ResourceName, *, read_only_pipe: bool = False) -> AllocateResponder:
        return AllocateResponder(
            self.resources[name],
            self.inventory,
            self.policy.options,
            _RUN_DIR,
            read_only_pipe=read_only_pipe,
        )

    def chooser(self, name: ResourceName) -> PreferredAllocator:
        return PreferredAllocator(self.resources[name], self.inventory.links, self.policy.options.allocation)

    def gpu_of(self, id_: ShareId) -> GpuUuid:
        rows = (row for resource in self.resources.values() for row in resource.offerings)
        return next(row.gpu for row in rows if id_ in row.share_ids)


@cache
def _ours(machine: str, name: str) -> _Ours:
    recording = _recording(machine)
    case = recording["cases"][name]
    policy = parse_policy(json.dumps(case["config"]), f"{name}.json", env=case["env"]).policy
    inventory = read_machine(json.dumps(recording["machine"]).encode(), f"{machine}.json").inventory
    offer = advertise(assign(policy, inventory, geometry_of), inventory, policy)
    return _Ours(policy, inventory, resources_of(offer))


def _theirs(machine: str, name: str) -> list[Json]:
    case = _recording(machine)["cases"][name]
    assert case["resources"], "a recording without resources compares nothing"
    return [_with_honoured_devices(resource, case["config"]) for resource in case["resources"]]


# --- deviations: what differs on purpose ---------------------------------------------------------------


def _without_partage_variables(answer: Json) -> Json:
    """Ours come on top."""
    envs = {key: value for key, value in answer.get("envs", {}).items() if not key.startswith("PARTAGE_")}
    return {**answer, "envs": envs}


def _without_topology(rows: Sequence[Json]) -> list[Json]:
    """Ours tell the NUMA node where the machine has it."""
    return [{key: value for key, value in row.items() if key != "topology"} for row in rows]


def _in_any_order(answer: Json) -> Json:
    """NVIDIA throws dice for the order of ids, in a variable as in mounts and device files."""
    ordered = dict(answer)
    for key in ("mounts", "devices"):
        if key in ordered:
            ordered[key] = sorted(ordered[key], key=json.dumps)
    envs = dict(ordered.get("envs", {}))
    if "NVIDIA_VISIBLE_DEVICES" in envs:
        envs["NVIDIA_VISIBLE_DEVICES"] = ",".join(sorted(envs["NVIDIA_VISIBLE_DEVICES"].split(",")))
    return {**ordered, "envs": envs}


def _with_mps_paths_of_the_gpu(answer: Json, gpu: str) -> Json:
    """One daemon for each GPU, below our own directory: host paths only."""

    def ours(mount: Json) -> Json:
        host = mount["host_path"]
        if not host.startswith(f"{_MPS_ROOT}/"):
            return mount
        return {**mount, "host_path": f"{_RUN_DIR}/mps/{gpu}/{host.rpartition('/')[2]}"}

    return {**answer, "mounts": [ours(mount) for mount in answer["mounts"]]} if "mounts" in answer else answer


def _with_a_pipe_that_can_be_written(answer: Json, resource: ResourceName) -> Json:
    """``--mps-pipe-read-only``, off unless asked for, adds this key to this mount (ADR 132)."""
    if "mounts" not in answer:
        return answer
    pipe = f"/mps/{resource}/pipe"
    mounts = [dict(mount) for mount in answer["mounts"]]
    for mount in mounts:
        if mount["container_path"] == pipe:
            assert mount.pop("read_only") is True
    return {**answer, "mounts": mounts}


def _with_honoured_devices(resource: Json, config: Json) -> Json:
    """NVIDIA throws ``devices`` away and shares every GPU; ours shares those, and offers the others whole.

    Allocate for an id that then does not exist is an unknown device; a preferred allocation is left out, as
    its list of available ids does not exist either.
    """
    entries = [entry for kind in config.get("sharing", {}).values() for entry in kind.get("resources", [])]
    selected = [entry["devices"] for entry in entries if "devices" in entry]
    if not selected:
        return resource
    (wanted,) = selected
    gpus = list(dict.fromkeys(device_of(row["ID"]) for row in resource["devices"]))
    chosen = gpus[:wanted] if isinstance(wanted, int) else [gpus[int(index)] for index in wanted]
    shares = [row for row in resource["devices"] if device_of(row["ID"]) in chosen]
    whole = [{"ID": gpu, "health": "Healthy"} for gpu in gpus if gpu not in chosen]
    offered = {row["ID"] for row in shares + whole}
    name = resource["register"]["resource_name"]
    allocate = [_or_unknown(call, offered, name) for call in resource["allocate"]]
    return {**resource, "devices": shares + whole, "allocate": allocate, "preferred": []}


def _or_unknown(call: Json, offered: set[str], resource: str) -> Json:
    missing = [id_ for id_ in call["ids"] if id_ not in offered]
    if not missing:
        return call
    reason = f'invalid allocation request for "{resource}": invalid request: unknown device: {missing[0]}'
    return {**call, "response": {"error": "UNKNOWN", "details": reason}}


def _ties_go_to_the_lowest_gpus(
    ours: Sequence[ShareId], theirs: Sequence[ShareId], inventory: Inventory
) -> bool:
    """Whole GPUs: better linked, or as well linked and not higher (theirs: order of the request)."""
    index = {share_id(gpu.uuid): gpu.index for gpu in inventory}
    score = {frozenset((share_id(link.a), share_id(link.b))): pair_score(link) for link in inventory.links}

    def rank(ids: Sequence[ShareId]) -> tuple[int, list[int]]:
        return -sum(score[frozenset(pair)] for pair in combinations(ids, 2)), sorted(
            index[id_] for id_ in ids
        )

    return rank(ours) <= rank(theirs)


# --- the replay --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("machine", "name"), _cases(refused=True))
def test_what_is_refused_there_is_wrong_input_here(machine: str, name: str) -> None:
    """And time-slicing with MPS for one GPU, where NVIDIA's plugin drops the former without a word."""
    with pytest.raises(InputError) as caught:
        _ours(machine, name)
    assert caught.value.exit_code == 2
    assert all(problem.file == f"{name}.json" for problem in caught.value.problems)


@pytest.mark.parametrize(("machine", "name"), _cases(refused=False))
def test_the_same_resources_are_registered_under_the_same_sockets(machine: str, name: str) -> None:
    registered = [resource["register"] for resource in _theirs(machine, name)]
    theirs = {register["resource_name"]: register["endpoint"] for register in registered}
    ours = {
        resource.name: plugin_socket_name(resource.name)
        for resource in _ours(machine, name).resources.values()
    }
    assert ours == theirs


class _Plugin:
    """One resource without an agent, as far as options go: nothing has to be set before a start."""

    pre_start_required = False

    def registering(self) -> None:
        pass

    def __init__(self, resource: ResourceName) -> None:
        self.resource = resource

    def devices(self) -> DeviceList:
        raise NotImplementedError

    async def changed(self, seen_version: int) -> None:
        raise NotImplementedError

    def preferred(
        self, available: Sequence[ShareId], must_include: Sequence[ShareId], size: int
    ) -> list[ShareId]:
        raise NotImplementedError

    async def allocate(self, ids: Sequence[ShareId]) -> ContainerAllocation:
        raise NotImplementedError

    async def pre_start(self, ids: Sequence[ShareId]) -> None:
        raise NotImplementedError


@pytest.mark.parametrize(("machine", "name"), _cases(refused=False))
def test_the_same_options_are_announced(machine: str, name: str, tmp_path: Path) -> None:
    """At registration and when asked: preferred allocation, and no PreStartContainer."""
    for resource in _theirs(machine, name):
        plugin = _Plugin(resource["register"]["resource_name"])
        announced = PluginServer(plugin, tmp_path / "plugin.sock").options
        options = MessageToDict(announced, preserving_proto_field_name=True)
        assert options == resource["options"] == resource["register"]["options"]


@pytest.mark.parametrize(("machine", "name"), _cases(refused=False))
def test_the_same_devices_are_listed(machine: str, name: str) -> None:
    """Ids and health, as the kubelet reads them. The order is random there."""
    ours = _ours(machine, name).resources
    for resource in _theirs(machine, name):
        offerings = ours[resource["register"]["resource_name"]].offerings
        rows = tuple(DeviceRow(id_, True, row.numa_node) for row in offerings for id_ in row.share_ids)
        listed = MessageToDict(device_list_message(rows), preserving_proto_field_name=True)["devices"]
        assert sorted(_without_topology(listed), key=json.dumps) == sorted(
            resource["devices"], key=json.dumps
        )


@pytest.mark.parametrize(("machine", "name"), _cases(refused=False))
def test_allocate_answers_alike(machine: str, name: str) -> None:
    """Content of every answer, and the words of every refusal."""
    ours = _ours(machine, name)
    for resource in _theirs(machine, name):
        answerer = ours.answerer(resource["register"]["resource_name"])
        for call in resource["allocate"]:
            assert _allocated(answerer, call["ids"]) == _expected(call, ours), call["ids"]


@pytest.mark.parametrize(("machine", "name"), _cases(refused=False))
def test_allocate_answers_alike_but_for_one_key_where_the_pipe_is_read_only(machine: str, name: str) -> None:
    ours = _ours(machine, name)
    for resource in _theirs(machine, name):
        of = resource["register"]["resource_name"]
        answerer = ours.answerer(of, read_only_pipe=True)
        for call in resource["allocate"]:
            answer = _allocated(answerer, call["ids"])
            if not isinstance(answer, str):
                answer = _in_any_order(_with_a_pipe_that_can_be_written(answer, of))
            assert answer == _expected(call, ours), call["ids"]


def _allocated(answerer: AllocateResponder, ids: Sequence[ShareId]) -> Json:
    try:
        message = answer_message(answerer.answer(ids))
    except AllocationRefused as refusal:
        return str(refusal)
    answer = MessageToDict(message, preserving_proto_field_name=True)
    return _in_any_order(_without_partage_variables(answer))


def _expected(call: Json, ours: _Ours) -> Json:
    if "error" in call["response"]:
        return call["response"]["details"]
    (answer,) = call["response"]["container_responses"]
    return _in_any_order(_with_mps_paths_of_the_gpu(answer, ours.gpu_of(call["ids"][0])))


@pytest.mark.parametrize(("machine", "name"), _cases(refused=False))
def test_the_same_devices_are_preferred(machine: str, name: str) -> None:
    """Whole GPUs by their links; shares by the policy's law, on NVIDIA's answer and on ours."""
    ours = _ours(machine, name)
    for resource in _theirs(machine, name):
        chooser = ours.chooser(resource["register"]["resource_name"])
        everything = [row["ID"] for row in resource["devices"]]
        for call in resource["preferred"]:
            available = everything if call["available"] == "all" else call["available"]
            chosen = chooser.prefer(available, call["must_include"], call["size"])
            (answer,) = call["response"]["container_responses"]
            _check_preferred(chosen, answer["deviceIDs"], available, call, ours, everything)


def _check_preferred(
    chosen: list[ShareId],
    theirs: list[ShareId],
    available: Sequence[ShareId],
    call: Json,
    ours: _Ours,
    everything: Sequence[ShareId],
) -> None:
    assert len(set(chosen)) == len(chosen) == call["size"]
    assert set(call["must_include"]) <= set(chosen) <= set(available)
    if any("::" in id_ for id_ in available):
        held = set(everything).difference(available)
        assert _shares_held_per_gpu(held.union(chosen)) == _shares_held_per_gpu(held.union(theirs))
    else:
        assert _ties_go_to_the_lowest_gpus(chosen, theirs, ours.inventory)


def _shares_held_per_gpu(ids: Iterable[ShareId]) -> list[int]:
    """By number: NVIDIA picks at random among equals, but whichever it picks, these are the same."""
    return sorted(Counter(device_of(id_) for id_ in ids).values())
