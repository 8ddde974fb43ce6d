"""A recording double of PyTorch: what of it the guard touches."""

import torch.cuda  # noqa: F401 - as PyTorch does

__version__ = "2.9.1"
