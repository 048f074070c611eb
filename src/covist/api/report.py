"""What a prefill did: tokens per layer, states, and what was saved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from covist.contract.stages import ImageReport, StageReport
from covist.engine.decoder import FrozenDecoder
from covist.engine.prefill import Prefill
from covist.engine.sequence import ImageInPrompt
from covist.schedule import decoder_flops, kv_bytes


@dataclass(frozen=True)
class Report:
    """What the last prefill with images did."""

    images: tuple[ImageReport, ...]
    text_tokens: tuple[int, ...]  # per sample
    kv_bytes: float  # of the cache when prefill is done
    kv_bytes_uncompressed: float
    flops: float  # decoder prefill, Eq. 19
    flops_uncompressed: float
    seconds: dict[str, float]  # selection, composition, rest

    @property
    def tokens(self) -> float:
        """Visual tokens before compression, averaged over images."""
        return sum(image.tokens for image in self.images) / len(self.images)

    @property
    def mean_tokens(self) -> float:
        """Visual tokens after compression, averaged over layers and images."""
        return sum(image.mean_tokens for image in self.images) / len(self.images)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers for JSON."""
        return {
            "images": [
                {
                    "sample": image.sample,
                    "tokens": image.tokens,
                    "markers": image.markers,
                    "budget": image.budget,
                    "tokens_per_layer": list(image.tokens_per_layer),
                    "mean_tokens": image.mean_tokens,
                    "stages": [
                        {
                            "depth": stage.depth,
                            "indices": stage.indices.tolist(),
                            "weights": [round(weight, 4) for weight in stage.weights.tolist()],
                            "withheld": stage.withheld,
                        }
                        for stage in image.stages
                    ],
                }
                for image in self.images
            ],
            "text_tokens": list(self.text_tokens),
            "mean_tokens": self.mean_tokens,
            "kv_bytes": self.kv_bytes,
            "kv_bytes_uncompressed": self.kv_bytes_uncompressed,
            "flops": self.flops,
            "flops_uncompressed": self.flops_uncompressed,
            "seconds": self.seconds,
        }


def build_report(prefill: Prefill, decoder: FrozenDecoder) -> Report:
    """Sum up a finished prefill."""
    images, texts = [], []
    flops = flops_before = cache = cache_before = 0.0
    size = decoder.module.dtype.itemsize
    for index, sample in enumerate(prefill.batch.samples):
        images += [_image_report(index, image) for image in sample.images]
        text = len(sample.rows) - sum(image.state.count + len(image.markers) for image in sample.images)
        texts.append(text)
        lengths = [
            text + sum(image.schedule.tokens_per_layer[layer] + len(image.markers) for image in sample.images)
            for layer in range(decoder.layers)
        ]
        before = [text + sum(image.length for image in sample.images)] * decoder.layers
        flops += decoder_flops(lengths, decoder.hidden, decoder.intermediate)
        flops_before += decoder_flops(before, decoder.hidden, decoder.intermediate)
        kept = lengths[-1:] * decoder.layers if prefill.settings.method.prunes_earlier_layers else lengths
        cache += kv_bytes(kept, decoder.kv_heads, decoder.head_width, size)
        cache_before += kv_bytes(before, decoder.kv_heads, decoder.head_width, size)
    return Report(tuple(images), tuple(texts), cache, cache_before, flops, flops_before, _seconds(prefill))


def _image_report(sample: int, image: ImageInPrompt) -> ImageReport:
    stages = tuple(
        StageReport(
            depth=depth,
            indices=outcome.state.indices.cpu(),
            positions=outcome.state.positions.cpu(),
            weights=outcome.state.weights.detach().cpu(),
            withheld=outcome.withheld,
            assignment=None if outcome.assignment is None else outcome.assignment.cpu(),
            maps={name: values.detach().cpu() for name, values in outcome.maps.items()},
        )
        for depth, outcome in image.outcomes
    )
    return ImageReport(
        sample,
        image.signals.grid,
        len(image.rows),
        len(image.markers),
        image.budget,
        image.schedule.tokens_per_layer,
        stages,
    )


def _seconds(prefill: Prefill) -> dict[str, float]:
    """Time of distinct reductions (beams share theirs); the rest is finding images, instructions and the ledger."""
    outcomes = {id(outcome): outcome for image in prefill.images for _, outcome in image.outcomes}.values()
    parts = {name: sum(outcome.seconds.get(name, 0.0) for outcome in outcomes) for name in ("selection", "composition")}
    return {**parts, "rest": max(0.0, prefill.seconds - sum(parts.values()))}
