"""What the kubelet is answered: preferred allocations, Allocate, and the ledger of who holds what."""
