"""From the node as it is to the node as the policy wants it: phases, steps, and what is offered meanwhile."""
