"""The tasks that look at the outside world: hardware, settings, PodResources, the policy file."""
