"""What only a cluster of Kubernetes needs: labels and taints of the Node, drain, rollout, takeover."""
