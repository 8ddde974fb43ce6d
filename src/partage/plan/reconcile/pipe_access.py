"""Who may change the limits of an MPS daemon at this moment. Pure.

``guarded`` means that nobody who has the daemon's pipe can change them, so one tenant decides for all.
"""

from __future__ import annotations

from collections.abc import Iterable

from partage.model.gpu import Driver, NoDriver
from partage.model.mps import DaemonState
from partage.model.pipe_tenants import PipeTenant, PipeTenants
from partage.plan.offer.mps_command import NAMESPACES, RESTRICTED, why_any_user_commands, why_own_servers


def why_commanded(daemon: DaemonState, tenants: PipeTenants, driver: Driver | NoDriver) -> str:
    """Who may change the limits of this daemon, and what to change, a sentence; empty: nobody can."""
    ours = [one for one in tenants.rows if one.device == daemon.device]
    if daemon.limits.namespaces:  # what is mounted into a container has no socket of the daemon's
        ours = [one for one in ours if one.whole]
        return tenants.unseen or _first(ours)
    if why := why_any_user_commands(driver):
        return why
    if not daemon.multi_user:
        return why_own_servers(driver) or _ONE_USER
    return tenants.unseen or _first(ours)


_ONE_USER = (
    "the MPS server is the tenant's own user's, who may set its limits: the daemon was started without one "
    "server for all users; leave 'users: single' out of the policy"
)


def _first(tenants: Iterable[PipeTenant]) -> str:
    for tenant in tenants:
        if why := why_tenant_commands(tenant):
            return why
    return ""


def why_tenant_commands(tenant: PipeTenant) -> str:
    """Why this tenant may command the daemon as root, and what to change; empty if it cannot."""
    if tenant.more:
        return f"{tenant} has too many kinds of processes to judge"
    why = next((found for one in tenant.rights if (found := one.why_root)), "")
    if not why and not tenant.rights:
        why = "none of its processes could be read"
    change = "NoNewPrivs for its processes" if tenant.job else RESTRICTED
    return why and f"{tenant} can set the limits of the MPS daemon: {why}; set {change}, or use {NAMESPACES}"
