"""How the other families differ from LLaVA-1.5, for the slow reference: tokens, affinities, positions, companions."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from support.slow_llava import SlowLlava, affinity


class SlowLlavaNext(SlowLlava):
    """Pictures are the processor's output; the layout is written out row by row from the image size."""

    def encode(self, shown: Any) -> list[tuple[Tensor, Tensor, np.ndarray]]:
        base = self.model.model
        spans = base.get_image_features(shown.pixel_values, shown.image_sizes, return_dict=True).pooler_output
        encoded = []
        for pixels, span in zip(shown.pixel_values, spans, strict=True):
            outputs = base.vision_tower(pixels, output_hidden_states=True).hidden_states
            block = base.vision_tower.encoder.layers[-2]
            keys = block.self_attn.k_proj(block.layer_norm1(outputs[-3]))[:, 1:].flatten(0, 1)
            embeddings = base.multi_modal_projector(outputs[-2][:, 1:]).flatten(0, 1)
            content = ~(span == base.image_newline).all(-1)
            # Every content token is found among the patches by its embedding.
            sources = torch.cdist(span[content], embeddings).argmin(-1)
            encoded.append((span, content, affinity(keys[sources], span[content])))
        return encoded


class SlowQwen2(SlowLlava):
    """Keys of the last block token by token, and the positions of the model's own `get_rope_index`."""

    def __init__(self, model: Any, pro: bool):
        super().__init__(model, pro)
        sections = model.config.text_config.rope_parameters["mrope_section"]
        self.axes = np.repeat(np.arange(3), sections)

    def positions(self, ids: list[int], shown: Any) -> np.ndarray:
        length = shown.input_ids.shape[1]
        prompt, _ = self.model.model.get_rope_index(
            shown.input_ids, shown.mm_token_type_ids, image_grid_thw=shown.image_grid_thw
        )
        generated = prompt.max() + 1 + torch.arange(len(ids) - length)
        return torch.cat([prompt[:, 0].T, generated[:, None].expand(-1, 3)]).double().numpy()

    def block(self, tower: Any) -> Any:
        return tower.blocks[-1]

    def places(self, grid: Tensor, tower: Any) -> list[int]:
        """Where the tokens of one image, in reading order, stand in the tower."""
        return list(range(int(grid.prod()) // 4))

    def encode(self, shown: Any) -> list[tuple[Tensor, Tensor, np.ndarray]]:
        return [
            (span, torch.ones(len(span), dtype=torch.bool), affinity(keys, span))
            for keys, span in self.keys_and_spans(shown)
        ]

    def keys_and_spans(self, shown: Any) -> list[tuple[Tensor, Tensor]]:
        tower, encoded, first = self.model.model.visual, [], 0
        for grid in shown.image_grid_thw:
            patches = int(grid.prod())
            seen = {}
            hook = self.block(tower).attn.qkv.register_forward_hook(
                lambda module, args, output, seen=seen: seen.update(qkv=output)
            )
            pixels = shown.pixel_values[first : first + patches]
            span = tower(pixels, grid_thw=grid[None], return_dict=True).pooler_output
            hook.remove()
            keys = seen["qkv"].chunk(3, dim=-1)[1].view(len(span), 4, -1).mean(1)
            encoded.append((keys[self.places(grid, tower)], span))
            first += patches
        return encoded


class SlowQwen(SlowQwen2):
    """Tokens stand in windows, and the last block with full attention counts."""

    def block(self, tower: Any) -> Any:
        return tower.blocks[tower.fullatt_block_indexes[-1]]

    def places(self, grid: Tensor, tower: Any) -> list[int]:
        rows, columns = (int(grid[axis]) // 2 for axis in (1, 2))
        side = tower.window_size // (2 * tower.patch_size)
        tokens = [(row, column) for row in range(rows) for column in range(columns)]
        in_windows = sorted(tokens, key=lambda token: (token[0] // side, token[1] // side, token))
        return [in_windows.index(token) for token in tokens]


class SlowQwen3(SlowQwen2):
    """DeepStack features, gains with the weights of the norms, and the model's own layers, so its own queries and keys.

    Frequencies go round the axes until an axis has used up its section; what is left belongs to time.
    """

    def __init__(self, model: Any, pro: bool):
        super().__init__(model, pro)
        left = list(model.config.text_config.rope_parameters["mrope_section"])
        axes = []
        for number in range(len(self.theta)):
            axis = number % 3 if left[number % 3] > 0 else 0
            left[axis] -= 1
            axes.append(axis)
        self.axes = np.array(axes)

    def rows(self, block: Any, kind: str, heads: int) -> np.ndarray:
        gamma = getattr(block, f"{kind}_norm").weight.detach().double().numpy()
        return gamma[:, None] * super().rows(block, kind, heads)

    def companions(self, shown: Any) -> list[dict[int, np.ndarray]]:
        levels = self.model.model.get_image_features(shown.pixel_values, shown.image_grid_thw).deepstack_features
        return [
            {level + 1: features.double().numpy() for level, features in enumerate(image)}
            for image in zip(*levels, strict=True)
        ]

    def _layer(self, layer: Any, hidden: Tensor, angles: np.ndarray, bias: Tensor) -> Tensor:
        both = torch.from_numpy(np.concatenate([angles, angles], axis=-1))[None]
        rotary = both.cos().float(), both.sin().float()
        return layer(hidden[None], attention_mask=bias[None], position_embeddings=rotary)[0]
