"""Stories: pods, faults and expectations, played against the agent on a simulated node."""
