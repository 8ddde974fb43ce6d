"""An MPS control daemon, its servers and its clients, for machines without a GPU.

Real processes, users and sockets, but no CUDA. The behaviour follows NVIDIA's MPS guide and what users have
shown of real daemons. The protocol on the sockets is our own, because the real one is not documented: only
``sim.mps.client`` can be a client.
"""
