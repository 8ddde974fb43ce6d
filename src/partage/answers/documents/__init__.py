"""The JSON documents that several verbs share: what they have, and how they are made."""
