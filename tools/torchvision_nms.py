"""Makes torchvision importable with the CPU build of torch, in the environment of `make test-vllm`.

vLLM imports torchvision, whose wheels contain GPU kernels. Without a GPU they do not load, and the import fails because
two operators are missing. Nothing calls them here, so it is enough to declare them. The Makefile copies this file into
the environment, with a .pth file that imports it in every process.
"""

import sys
from importlib.abc import MetaPathFinder


class _DeclareFirst(MetaPathFinder):
    """Declares the operators when torchvision is imported: importing torch in every process would take seconds."""

    def find_spec(self, name, path=None, target=None):
        if name == "torchvision":
            sys.meta_path.remove(self)
            import torch

            self.library = torch.library.Library("torchvision", "DEF")
            for operator in ("nms", "qnms"):
                self.library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            _KEPT.append(self)  # the operators disappear with their library
        return None


_KEPT: list[_DeclareFirst] = []
sys.meta_path.insert(0, _DeclareFirst())
