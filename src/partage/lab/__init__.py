"""The laboratory: experiments with tenants on a node, real or simulated.

``bench`` measures what sharing costs, ``prove`` attacks what shares guarantee, ``stories`` plays pods and
faults against the agent. The modules beside them are what the experiments have in common.
"""
