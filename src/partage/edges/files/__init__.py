"""Files: policies in three formats, the catalogue of GPU models, the state of the agent."""
