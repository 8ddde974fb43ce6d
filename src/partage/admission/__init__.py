"""Pods that were written for other systems which share GPUs, as pods with claims of the same meaning."""
