"""What /metrics says."""
