"""The API server of Kubernetes: one small port, spoken with httpx."""
