"""Which users an MPS daemon obeys, by driver branch."""

from __future__ import annotations

import pytest

from partage.model.gpu import Driver, NoDriver
from partage.plan.offer.mps_command import why_any_user_commands, why_not_promised, why_own_servers

NONE = NoDriver("no-driver", "there is no driver")


@pytest.mark.parametrize(
    ("version", "any_user", "own_servers"),
    [
        ("470.256.02", True, True),
        ("535.261.03", True, True),
        ("549.1", True, True),
        ("550.163.01", False, True),
        ("555.58.02", False, False),
        ("615.71", False, False),
        ("", True, True),
    ],
)
def test_the_branch_says_whom_a_daemon_obeys(version: str, *, any_user: bool, own_servers: bool):
    driver = Driver(version, "12.4") if version else NONE
    assert bool(why_any_user_commands(driver)) is any_user
    assert bool(why_own_servers(driver)) is own_servers
    assert why_not_promised(driver, restricted=True) == (
        why_any_user_commands(driver) or why_own_servers(driver)
    ), "pods that are refused change nothing about a daemon that obeys everybody"


def test_nothing_is_promised_where_pods_may_be_root():
    assert "runAsNonRoot" in why_not_promised(Driver("580.95.05", "13.0"), restricted=False)
    assert why_not_promised(Driver("580.95.05", "13.0"), restricted=True) == ""
