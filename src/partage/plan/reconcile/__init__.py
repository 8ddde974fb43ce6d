"""From the observed to the desired node: phases, steps, and what is offered meanwhile."""
