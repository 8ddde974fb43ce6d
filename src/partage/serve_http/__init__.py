"""The server: access, pages of the agent, metrics."""
