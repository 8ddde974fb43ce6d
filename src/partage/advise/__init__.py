"""Which strategy fits a GPU model and a workload."""
