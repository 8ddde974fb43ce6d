"""Which node is best for a pod that asks for GPUs or parts of them, so that little of the cluster is wasted.

Amounts are in thousandths of a GPU (milli), as in published traces. Nothing here is counted for anybody: who
has what, the API server and the kubelets know.
"""
