"""Which strategy fits a GPU and its workload, with the reasons. Pure."""
