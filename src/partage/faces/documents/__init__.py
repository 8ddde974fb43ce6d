"""The JSON documents that people and scripts read: what they have, and how they are made."""
