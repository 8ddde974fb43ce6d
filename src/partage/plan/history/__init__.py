"""The agent's own history of use: what is kept of the samples, and how much of it."""
