"""Answers to the kubelet: preferred allocations, Allocate, and the ledger of held shares."""
