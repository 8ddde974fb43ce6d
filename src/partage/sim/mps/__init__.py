"""An MPS control daemon, its servers and its clients, for machines without a GPU.

Real processes, real users, real sockets, and no CUDA. What it does follows NVIDIA's MPS guide and what users
have shown of real daemons; what it says on its sockets is its own, since the real protocol is not documented.
Its clients are therefore those of ``sim.mps.client`` and nobody else's.
"""
