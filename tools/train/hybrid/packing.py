"""Questions packed after one visual prefix, as `train.tiny.packing` does it, for layers that carry a state.

A question of a packed pass starts from the state that the prefix leaves, and leaves its own state to nobody. So the
prefix runs once, and all questions run side by side from copies of its state, as rows of a batch.
"""

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5GatedDeltaNet, torch_chunk_gated_delta_rule

from train.tiny.packing import Packed


class Questions:
    """Where the tokens of every question are in a packed text: n images, q questions each, of at most t tokens."""

    def __init__(self, packed: Packed):
        blocks = packed.blocks  # [n, s]; -1 is padding
        n, s = blocks.shape
        count = int(blocks.max()) + 1
        member = blocks[:, None] == torch.arange(count)[:, None]  # [n, q, s]
        longest = int(member.sum(-1).max())
        order = member.to(torch.int8).argsort(dim=-1, descending=True, stable=True)[..., :longest]
        self.filled = member.gather(-1, order)  # [n, q, t]
        self.places = order.flatten(1)  # [n, q * t]
        images = torch.arange(n)[:, None].expand(-1, self.places.shape[1])
        self.target = (images * s + self.places)[self.filled.flatten(1)]  # places of real tokens in the flat text
        self.shape = (n, s, count, longest)

    def split(self, text: Tensor) -> Tensor:
        """[n, s, d] -> [n * q, t, d]"""
        _, _, count, longest = self.shape
        rows = text.gather(1, self.places[..., None].expand(-1, -1, text.shape[-1]))
        return rows.unflatten(1, (count, longest)).flatten(0, 1)

    def join(self, rows: Tensor) -> Tensor:
        """[n * q, t, d] -> [n, s, d], with zeros at padding"""
        n, s, _, _ = self.shape
        flat = rows.new_zeros(n * s, rows.shape[-1])
        return flat.index_copy(0, self.target, rows[self.filled.flatten(0, 1)]).unflatten(0, (n, s))


class PackedDeltaNet(Qwen3_5GatedDeltaNet):
    """The linear layer of Qwen3.5 with the same parameters, for packed passes without a cache."""

    def forward(self, hidden_states: Tensor, attention_mask: Questions, **kwargs: object) -> Tensor:  # type: ignore[override]
        questions = attention_mask
        _, s, count, longest = questions.shape
        prefix = hidden_states.shape[1] - s
        mixed, before = self.in_proj_qkv(hidden_states), self.conv_kernel_size - 1
        strength, decay = self._gates(hidden_states)
        head = self._convolve(F.pad(mixed[:, :prefix], (0, 0, before, 0)))
        first, state = self._rule(head, strength[:, :prefix], decay[:, :prefix], 64, None)
        context = mixed[:, prefix - before : prefix].repeat_interleave(count, 0)  # [n * q, kernel - 1, channels]
        asked = self._convolve(torch.cat([context, questions.split(mixed[:, prefix:])], dim=1))
        own = (questions.split(part[:, prefix:]) for part in (strength, decay))
        second, _ = self._rule(asked, *own, longest, state.repeat_interleave(count, 0))
        out = torch.cat([first, questions.join(second)], dim=1)  # [n, prefix + s, heads * width]
        gate = self.in_proj_z(hidden_states).reshape(-1, self.head_v_dim)
        return self.out_proj(self.norm(out.reshape(-1, self.head_v_dim), gate).view_as(out))

    def _gates(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """How strongly a token writes, and the logarithm of what it leaves of the state, both [n, tokens, heads]."""
        decay = -self.A_log.exp() * F.softplus(self.in_proj_a(hidden) + self.dt_bias)
        return self.in_proj_b(hidden).sigmoid(), decay

    def _convolve(self, mixed: Tensor) -> Tensor:
        """[rows, kernel - 1 + t, channels] -> [rows, t, channels]; a sum of shifts is faster here than conv1d."""
        taps = self.conv1d.weight[:, 0].T  # [kernel, channels]
        length = mixed.shape[1] - len(taps) + 1
        return F.silu(sum(mixed[:, start : start + length] * tap for start, tap in enumerate(taps)))

    def _rule(
        self, mixed: Tensor, strength: Tensor, decay: Tensor, chunk: int, state: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        query, key, value = mixed.split([self.key_dim, self.key_dim, self.value_dim], dim=-1)
        out, state = torch_chunk_gated_delta_rule(
            query.unflatten(-1, (-1, self.head_k_dim)),
            key.unflatten(-1, (-1, self.head_k_dim)),
            value.unflatten(-1, (-1, self.head_v_dim)),
            g=decay,
            beta=strength,
            chunk_size=chunk,
            initial_state=state,
            output_final_state=True,
            use_qk_l2norm_in_kernel=True,
        )
        return out.flatten(2), state
