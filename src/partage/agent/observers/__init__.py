"""The tasks that observe: hardware, settings, PodResources, the policy file."""
