"""Who may change the limits of an MPS daemon, from what its tenants' processes are."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from partage.model.gpu import Driver
from partage.model.ids import ContainerId, DeviceUuid, GpuUuid
from partage.model.mps import (
    NO_HOST_PIDS,
    ClientLimits,
    DaemonPhase,
    DaemonState,
    MpsNamespace,
    PipeTenant,
    PipeTenants,
    ProcessRights,
)
from partage.plan.reconcile.limit_trust import why_commanded, why_tenant_commands

DEVICE = GpuUuid("GPU-1")
DAEMON = DaemonState(DEVICE, DEVICE, DaemonPhase.SERVING, pid=9, multi_user=True)
OLD, OWN_SERVERS, NEW, NEWEST = (Driver(version, "12") for version in ("535.1", "550.1", "555.1", "615.1"))
SAFE = ProcessRights(7, 1000, 1000, 1000, no_new_privs=True, permitted=0)


def tenant(*rights: ProcessRights, device: DeviceUuid = DEVICE, **more: object) -> PipeTenant:
    return replace(PipeTenant(device, container=ContainerId("c" * 64), rights=rights), **more)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({}, ""),
        ({"uid": 0}, "user 0"),
        ({"effective_uid": 0}, "user 0"),
        ({"saved_uid": 0}, "user 0"),
        ({"no_new_privs": False}, "set-uid"),
        ({"permitted": 1}, "capabilities"),
        ({"no_new_privs": False, "permitted": 2**40, "maps_root": False}, ""),
        ({"uid": 0, "maps_root": False}, "user 0"),
    ],
)
def test_a_process_that_is_or_becomes_root_commands_the_daemon(change: dict[str, object], why: str):
    one = tenant(SAFE, replace(SAFE, **change))
    said = why_tenant_commands(one)
    assert why in said
    assert bool(said) is bool(why)
    assert ("runAsNonRoot" in said) is bool(why), "it says what to change"
    assert "NoNewPrivs" in why_tenant_commands(replace(one, job="12")) or not why


def test_what_could_not_be_judged_counts_as_root():
    assert "could be read" in why_tenant_commands(tenant())
    assert "too many" in why_tenant_commands(tenant(SAFE, more=True))


@pytest.mark.parametrize(
    ("driver", "daemon", "why"),
    [
        (OLD, DAEMON, "every user"),
        (OWN_SERVERS, replace(DAEMON, multi_user=False), "driver branch 550"),
        (NEW, replace(DAEMON, multi_user=False), "users: single"),
        (NEW, DAEMON, ""),
    ],
)
def test_a_daemon_that_obeys_its_users_is_never_guarded(driver: Driver, daemon: DaemonState, why: str):
    said = why_commanded(daemon, PipeTenants((tenant(SAFE),)), driver)
    assert why in said
    assert bool(said) is bool(why)


def test_one_tenant_decides_for_its_daemon_and_for_no_other():
    root = tenant(SAFE, replace(SAFE, uid=0))
    assert why_commanded(DAEMON, PipeTenants((tenant(SAFE), root)), NEW)
    elsewhere = replace(root, device=GpuUuid("GPU-2"))
    assert why_commanded(DAEMON, PipeTenants((tenant(SAFE), elsewhere)), NEW) == ""


def test_without_the_nodes_processes_nothing_is_known():
    assert why_commanded(DAEMON, PipeTenants(unseen=NO_HOST_PIDS), NEW) == NO_HOST_PIDS


def test_the_directory_of_a_namespace_gives_no_command():
    named = replace(DAEMON, limits=ClientLimits(namespaces=(MpsNamespace("share0", 2**30),)))
    root = tenant(replace(SAFE, uid=0), whole=False)
    assert why_commanded(named, PipeTenants((root,)), NEWEST) == ""
    assert why_commanded(named, PipeTenants((replace(root, whole=True),)), NEWEST)
    assert why_commanded(named, PipeTenants(unseen=NO_HOST_PIDS), NEWEST) == NO_HOST_PIDS
