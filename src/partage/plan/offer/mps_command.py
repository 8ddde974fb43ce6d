"""Which users an MPS daemon obeys. Pure.

Seen with NVIDIA's control programs 535.261.03, 550.163.01 and 555.58.02, without a GPU
(docs/explanation/guarantees.md): 535 lets every user set limits. 550 and 555 answer "Insufficient
privileges" unless it is root, or the server concerned is the user's own. 550 has no option for one server of
root for all users, so there each user's server is its own.
"""

from __future__ import annotations

from partage.model.gpu import Driver, NoDriver

ROOT_ALONE_SINCE = 550
"""First branch whose daemon takes settings from root alone (535: from everybody)."""

ONE_SERVER_SINCE = 555
"""First branch with ``-multiuser-server``: one server, which is root's, for the clients of all users."""

RESTRICTED = "runAsNonRoot: true with allowPrivilegeEscalation: false, or hostUsers: false"
"""What a pod sets so that none of its processes is or becomes the node's user 0."""

NAMESPACES = "'protocol: 3' (driver branch 615)"


def branch_of(driver: Driver | NoDriver) -> int:
    """550 for ``550.54.15``; 0 if not known."""
    branch = driver.version.partition(".")[0] if isinstance(driver, Driver) else ""
    return int(branch) if branch.isdecimal() else 0


def why_any_user_commands(driver: Driver | NoDriver) -> str:
    """Why every user who has the pipe may set limits of protocol 2, with what to change; empty if not."""
    branch = branch_of(driver)
    if branch >= ROOT_ALONE_SINCE:
        return ""
    which = f"the MPS daemon of driver branch {branch}" if branch else "an MPS daemon of an unknown branch"
    return (
        f"{which} lets every user of a container set its limits: take branch {ONE_SERVER_SINCE} or newer, "
        f"or {NAMESPACES}"
    )


def why_own_servers(driver: Driver | NoDriver) -> str:
    """Why MPS servers are their users' own, who may change the limits, with what to change; empty if not."""
    branch = branch_of(driver)
    if branch >= ONE_SERVER_SINCE:
        return ""
    return (
        f"the MPS server is the tenant's own user's, who may set its limits: driver branch {branch} has no "
        f"server of root for all users; take branch {ONE_SERVER_SINCE} or newer, or {NAMESPACES}"
    )


def why_not_promised(driver: Driver | NoDriver, *, restricted: bool) -> str:
    """Why limits of protocol 2 are not promised as guarded, with what to change; empty if they are.

    restricted: pods whose processes are or become root are refused where they ask for MPS shares.
    """
    if why := why_any_user_commands(driver) or why_own_servers(driver):
        return why
    if restricted:
        return ""
    return (
        "a container whose processes are root, or can become root, can set the limits of the MPS daemon. Have"
        " such pods refused (the chart's admission.restrictedMps, which runs the agent with --restricted-mps)"
        f": then pods set {RESTRICTED}. Or use {NAMESPACES}"
    )
