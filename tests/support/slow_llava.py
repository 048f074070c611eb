"""A compressed model from the formulas alone: layer by layer, no cache, a dense bias, explicit positions.

Only the choices are taken from a report (which tokens a stage kept, and its evidence). Affinities, weights, features,
positions, gains and attention are computed here, by the literal formulas of `reference`. `SlowLlava` is LLaVA-1.5;
another family says how its images become tokens and how rotary positions are laid out.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from reference import attention, composition
from torch import Tensor, nn

from covist.report.stages import ImageReport


class _Image:
    """An image between two stages: original tokens, affinity, weights, coordinates, and its rows in the prompt."""

    def __init__(
        self,
        report: ImageReport,
        prompt_rows: list[int],
        affinity: np.ndarray,
        companions: dict[int, np.ndarray] | None = None,
    ):
        self.stages = {stage.depth: stage for stage in report.stages}
        self.prompt_rows, self.affinity = prompt_rows, affinity
        self.tokens = list(range(report.tokens))
        self.weights = np.ones(report.tokens)
        self.coordinates = report.grid.places().numpy().astype(float)
        self.companions = companions or {}
        self.reduced = False

    @property
    def rows(self) -> list[int]:
        """Prompt rows of the tokens that are still there."""
        return [self.prompt_rows[token] for token in self.tokens]

    def reduce(self, depth: int, features: np.ndarray) -> np.ndarray:
        """Compose at `depth`; returns the features of the representatives."""
        stage = self.stages[depth]
        survivors = set(stage.indices.tolist())
        if len(survivors) == len(self.tokens):
            return features
        kept = [place for place, token in enumerate(self.tokens) if token in survivors]
        evidence = stage.maps["combined"].numpy().astype(float)
        before, ties = self.weights, None if stage.assignment is None else stage.assignment.tolist()

        def composed(features: np.ndarray) -> tuple:
            return composition.compose(features, self.affinity, before, self.coordinates, kept, evidence, ties=ties)

        features, self.weights, _, _ = composed(features)
        self.companions = {layer: composed(own)[0] for layer, own in self.companions.items()}
        self.tokens = [self.tokens[place] for place in kept]
        self.affinity, self.coordinates = self.affinity[np.ix_(kept, kept)], self.coordinates[kept]
        self.reduced = True
        np.testing.assert_allclose(self.weights, stage.weights.numpy(), rtol=1e-4)
        return features


class SlowLlava:
    """Logits of the token after a prompt, for one sample whose images were reduced as `images` reports."""

    between_stages = _Image

    def __init__(self, model: Any, pro: bool):
        self.model, self.decoder = model, self.text_model(model)
        config = self.decoder.config
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.theta = self.decoder.rotary_emb.inv_freq.double().numpy()
        self.axes = np.zeros(len(self.theta), dtype=int)  # axis of each frequency
        layers = self.decoder.layers
        weights = [
            [self.rows(layer.self_attn, *kind) for kind in (("q", self.heads), ("k", self.kv_heads))]
            for layer in layers
        ]
        self.gains = attention.head_gains([q for q, _ in weights], [k for _, k in weights], self.theta)
        if pro:
            first = (14 * len(layers) + 16) // 32  # half up
            self.gains[:first] *= 0.8

    def text_model(self, model: Any) -> Any:
        return model.model.language_model

    @property
    def visual_tokens(self) -> tuple[int, ...]:
        return (self.model.config.image_token_id,)

    def rows(self, block: Any, kind: str, heads: int) -> np.ndarray:
        """Rows of a projection with all that scales them, [heads, dh, d]."""
        weight = getattr(block, f"{kind}_proj").weight.detach().double()
        return weight.view(heads, -1, weight.shape[-1]).numpy()

    def positions(self, ids: list[int], shown: Any) -> np.ndarray:
        """Uncompressed rotary positions of a prompt [n, axes]."""
        return np.arange(len(ids), dtype=float)[:, None]

    def encode(self, shown: Any) -> list[tuple[Tensor, Tensor, np.ndarray]]:
        """Of each image its span [n, d] as the prompt receives it, which rows are content, and the affinity.

        Content is [n] bool, or the rows themselves [N] where tokens lie in another order than in the prompt.
        """
        tower, encoded = self.model.model.vision_tower, []
        for pixels in shown:
            outputs = tower(pixels[None], output_hidden_states=True).hidden_states
            block = tower.encoder.layers[-2]
            keys = block.self_attn.k_proj(block.layer_norm1(outputs[-3]))[0, 1:]
            embeddings = self.model.model.multi_modal_projector(outputs[-2][0, 1:])
            encoded.append((embeddings, torch.ones(len(keys), dtype=torch.bool), affinity(keys, embeddings)))
        return encoded

    def companions(self, shown: Any) -> list[dict[int, np.ndarray]]:
        """Of each image the features that its content tokens [N, d] receive before later layers."""
        return []

    @torch.no_grad()
    def logits(self, ids: list[int], shown: Any, images: list[ImageReport]) -> Tensor:
        positions = self.positions(ids, shown)
        hidden, rows, states = self._enter(ids, shown, images)
        for depth, layer in enumerate(self.decoder.layers):
            for image in states:
                if depth in image.companions:
                    places = [rows.index(row) for row in image.rows]
                    hidden[places] += torch.from_numpy(image.companions[depth]).to(hidden)
            if any(depth in image.stages for image in states):
                hidden, rows = self._reduce(depth, hidden, rows, states)
            angles = positions[rows][:, self.axes] * self.theta  # [n, dh / 2]
            hidden = self._layer(layer, hidden, angles, self._bias(depth, rows, positions[rows], states))
        return self.model.lm_head(self.final_norm(hidden[-1:]))[0]

    def final_norm(self, hidden: Tensor) -> Tensor:
        return self.decoder.norm(hidden)

    def _enter(self, ids: list[int], shown: Any, images: list[ImageReport]) -> tuple[Tensor, list[int], list]:
        hidden = self.decoder.embed_tokens(torch.tensor(ids))
        states, visual = [], [row for row, token in enumerate(ids) if token in self.visual_tokens]
        encoded = zip_longest(images, self.encode(shown), self.companions(shown))
        for report, (span, content, similarity), companions in encoded:
            own, visual = torch.tensor(visual[: len(span)]), visual[len(span) :]
            hidden[own] = span
            states.append(self.between_stages(report, own[content].tolist(), similarity, companions))
        return hidden, list(range(len(ids))), states

    def _reduce(self, depth: int, hidden: Tensor, rows: list[int], states: list[_Image]) -> tuple[Tensor, list[int]]:
        hidden, kept = hidden.clone(), set(rows)
        for image in (image for image in states if depth in image.stages):
            before = image.rows
            places = [rows.index(row) for row in before]
            features = image.reduce(depth, hidden[places].double().numpy())
            after = image.rows
            hidden[[rows.index(row) for row in after]] = torch.from_numpy(features).to(hidden)
            kept -= set(before) - set(after)
        places = [place for place, row in enumerate(rows) if row in kept]
        return hidden[places], [rows[place] for place in places]

    def _bias(self, depth: int, rows: list[int], positions: np.ndarray, states: list[_Image]) -> Tensor:
        """Causality and Eq. 9, [heads, q, k]; every frequency looks at the distance on its own axis."""
        distances = np.abs(positions[:, None] - positions[None])[..., self.axes]  # [q, k, dh / 2]
        factor = np.cos(distances * self.theta).mean(-1)
        bias = np.zeros((self.heads, len(rows), len(rows)))
        for image in (image for image in states if image.reduced):
            for row, weight in zip(image.rows, image.weights, strict=True):
                key = rows.index(row)
                bias[:, :, key] = self.gains[depth][:, None] * np.log(weight * (2 - factor[:, key]))
        future = np.triu(np.ones((len(rows), len(rows)), dtype=bool), 1)
        return torch.from_numpy(np.where(future, -np.inf, bias)).float()

    def _layer(self, layer: nn.Module, hidden: Tensor, angles: np.ndarray, bias: Tensor) -> Tensor:
        block, normed = layer.self_attn, layer.input_layernorm(hidden)
        queries, keys, values = (
            projection(normed).view(len(hidden), heads, -1).transpose(0, 1)
            for projection, heads in (
                (block.q_proj, self.heads),
                (block.k_proj, self.kv_heads),
                (block.v_proj, self.kv_heads),
            )
        )
        queries, keys = (_rotated(part, torch.from_numpy(angles)) for part in (queries, keys))
        group = self.heads // self.kv_heads
        mixed = []
        for head in range(self.heads):
            logits = queries[head] @ keys[head // group].T / queries.shape[-1] ** 0.5 + bias[head]
            mixed.append(logits.softmax(-1) @ values[head // group])
        hidden = hidden + block.o_proj(torch.cat(mixed, dim=-1))
        return hidden + layer.mlp(layer.post_attention_layernorm(hidden))


def affinity(keys: Tensor, embeddings: Tensor) -> np.ndarray:
    """Eq. 2 [N, N]."""
    unit = [part / (part.norm(dim=-1, keepdim=True) + 1e-8) for part in (keys.double(), embeddings.double())]
    return sum(0.5 * (rows @ rows.T).clamp(0, 1) for rows in unit).numpy()


def _rotated(states: Tensor, angles: Tensor) -> Tensor:
    """Split-half RoPE of [heads, n, dh] by angles [n, dh / 2]."""
    cos, sin = angles.cos().float(), angles.sin().float()
    first, second = states.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
