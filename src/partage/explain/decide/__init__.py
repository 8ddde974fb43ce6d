"""Why a pod does not run, node by node and GPU by GPU, and the smallest change that would let it run."""
