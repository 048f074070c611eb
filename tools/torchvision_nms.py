"""Lets torchvision be imported beside the CPU build of torch, in the environment of `make test-vllm`.

vLLM imports torchvision, whose wheels carry kernels for a GPU. Without one they do not load, and torchvision's import
then fails because two operators are missing. Nothing here calls them, so declaring them is enough. The Makefile copies
this file into the environment, together with a .pth file that imports it in every process.
"""

import sys
from importlib.abc import MetaPathFinder


class _DeclareFirst(MetaPathFinder):
    """Waits for torchvision: importing torch in every process would cost seconds."""

    def find_spec(self, name, path=None, target=None):
        if name == "torchvision":
            sys.meta_path.remove(self)
            import torch

            self.library = torch.library.Library("torchvision", "DEF")
            for operator in ("nms", "qnms"):
                self.library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            _KEPT.append(self)  # a library takes its operators with it
        return None


_KEPT: list[_DeclareFirst] = []
sys.meta_path.insert(0, _DeclareFirst())
