"""The recipes need torch.optim.Muon, which came with torch 2.9; the package runs on older releases."""

import torch

collect_ignore_glob = [] if hasattr(torch.optim, "Muon") else ["test_*.py"]
