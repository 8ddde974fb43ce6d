"""Which ResourceClaim of the cluster is meant."""

from __future__ import annotations

from partage.values import Frozen


class ClaimRef(Frozen):
    """A ResourceClaim. uid: a claim that is made again under the same name has another one."""

    namespace: str
    name: str
    uid: str
