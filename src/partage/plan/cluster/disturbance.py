"""Whether a node is disturbed when another policy is put in force. Pure."""

from __future__ import annotations

from partage.plan.offer.desired import DesiredState
from partage.plan.reconcile.transition import terms_of


def disturbs(before: DesiredState, then: DesiredState) -> bool:
    """Whether the planner would have something to do, or somebody could notice: other shares or guarantees,
    another layout, setting, limit or option.

    What is left changes nothing on the node: comments, the order of entries, the way in which GPUs are
    selected, how long pods are asked to leave. That need not wait for other nodes.
    """
    if _asked(before) != _asked(then) or before.offer.keys() != then.offer.keys():
        return True
    return any(terms_of(offer) != terms_of(then.offer[gpu]) for gpu, offer in before.offer.items())


def _asked(desired: DesiredState) -> tuple[object, ...]:
    return (
        desired.layouts,
        desired.settings,
        desired.existing_settings,
        desired.watch_of,
        desired.labelled,
        desired.policy.options,
    )
