"""What a claim is held to is in force, or its prepare fails in time."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from partage.claims.agent.enforcing import SET_S, Enforcing
from partage.errors import HardwareError
from partage.model.step import SetNamespace
from tests.claims.agent.test_holds import ROWS, share
from tests.virtual_time import in_virtual_time


@in_virtual_time
async def test_a_limit_that_takes_too_long_is_not_waited_for() -> None:
    async def hangs(_: SetNamespace) -> None:
        await asyncio.sleep(2 * SET_S)

    with pytest.raises(HardwareError, match=r"the limits of gpu-.* could not be set within 15 s"):
        await Enforcing(hangs).hold([replace(share(ROWS[0], 0), slot="slot0")])
