"""Shares by ResourceClaim: the DRA driver of a node, beside the device plugin."""
