"""What the kubelet and containers see of the agent: device plugins, CDI specs, files of the guard."""
