"""What a provider allows."""
