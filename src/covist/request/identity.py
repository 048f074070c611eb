"""What answers depend on besides method and budget: the weights, their dtype, and the attention backend."""

from __future__ import annotations

import zlib

from torch import nn

from covist.request.loading import LoadedModel

_PROBED_VALUES = 4096  # values of each parameter that a fingerprint reads


def identity(loaded: LoadedModel) -> dict[str, str]:
    """Values, by name, that are equal for two models that give the same answers."""
    clip = loaded.clip
    return {
        "model": fingerprint(loaded.model),
        "clip": fingerprint(clip[0]) if isinstance(clip, tuple) else str(clip or "none"),
        "dtype": loaded.dtype,
        "attention": loaded.attention,
    }


def fingerprint(module: nn.Module) -> str:
    """A checksum of the weights."""
    checksum = 0
    for name, values in module.state_dict().items():
        probe = values.flatten()[:_PROBED_VALUES].float().cpu().numpy()
        checksum = zlib.crc32(name.encode() + probe.tobytes(), checksum)
    return f"{type(module).__name__}-{checksum:08x}"
