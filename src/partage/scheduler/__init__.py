"""`partage scheduler`: an extender of kube-scheduler that says which nodes are best for a pod, and decides
nothing.
"""
