"""Values as JSON and YAML, and back. Bytes and plain values only; no I/O."""
