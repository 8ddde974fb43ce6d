"""Claims: offers to slices, allocations to shares or a refusal, and what containers get. Pure."""
