"""Which layouts serve a demand, and which fit on a GPU."""
