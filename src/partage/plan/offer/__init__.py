"""What a policy offers on a node: entries to GPUs, GPUs to shares, shares to guarantees."""
