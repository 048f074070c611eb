"""Training projector and decoder on the frozen tower, whose features are computed once per image.

The curriculum widens what the decoder sees: it begins with one patch per thing, which teaches the decoder to match
words with things, and ends with all patches.
"""

import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import CLIPVisionModel, LlavaForConditionalGeneration, PreTrainedModel

from covist.tiny.questions import FAMILIES, Question, questions_for
from covist.tiny.scenes import VALIDATION_SEEDS
from covist.tiny.text import TOKEN_ID
from train.standardise import Standardise
from train.tiny.data import SceneBank
from train.tiny.packing import IGNORED, PACKED_ATTENTION, PATCHES, PREFIX, Packed, pack
from train.tiny.pointing import Pointer, pointing_targets
from train.tiny.vision import encode

POINTING_WEIGHT = 0.3
MOST_SCENES = 6_000  # the questions are new each time, so few scenes suffice and their features can be kept
# more questions for families that need many regions at once
QUESTIONS = {
    "existence": 2, "color": 2, "shape": 2, "counting": 7, "relation": 4, "digit": 2, "letter": 2, "quadrant": 2,
}  # fmt: skip


@dataclass(frozen=True)
class DecoderPhase:
    name: str
    share: float  # of the time of the decoder stage
    images: int  # per step
    sampled: int | None = None  # patches shown, things preferred; None shows all
    rounds: int = 1  # of QUESTIONS per image

    @property
    def questions(self) -> dict[str, int]:
        return {family: self.rounds * number for family, number in QUESTIONS.items()}


DECODER_PHASES = (
    DecoderPhase("24 patches", 0.20, images=12, sampled=24),  # hardly more than one per thing
    DecoderPhase("96 patches", 0.25, images=8, sampled=96),
    DecoderPhase("240 patches", 0.15, images=8, sampled=240, rounds=2),  # all things, some background
    DecoderPhase("all patches", 0.40, images=6, rounds=2),
)


def stored_features(tower: PreTrainedModel, out: Path, name: str, shape: tuple[int, ...]) -> np.memmap:
    """A file in `out` for features of a tower in fp16, [*shape, width]; zero where none has been computed."""
    # the name includes a hash of the weights, so that features of other weights are never used
    weights = b"".join(value.numpy().tobytes() for value in tower.state_dict().values())
    path = out / f"{name}-{shape[0]}-{zlib.crc32(weights):08x}.npy"
    mode = "r+" if path.exists() else "w+"
    return np.lib.format.open_memmap(path, mode, dtype=np.float16, shape=(*shape, tower.config.hidden_size))


class FeatureCache:
    """Tower features of the scenes in fp16 on disk, computed when a scene is first used."""

    def __init__(self, tower: CLIPVisionModel, bank: SceneBank, out: Path):
        self.tower, self.bank = tower, bank
        name = f"{bank.name}-features-{bank.seeds.start}"
        self.features = stored_features(tower, out, name, (len(bank), bank.views * bank.view_patches))

    @torch.no_grad()
    def __call__(self, indices: np.ndarray) -> Tensor:
        missing = np.unique(indices[(self.features[indices, 0] == 0).all(1)])
        for part in np.array_split(missing, max(1, len(missing) // 16)):
            if len(part):
                patches = self.bank.batch(part)[0].unflatten(1, (self.bank.views, -1)).flatten(0, 1)
                features, _ = encode(self.tower, patches, torch.arange(patches.shape[1]).expand(len(patches), -1))
                self.features[part] = features.reshape(len(part), -1, features.shape[-1]).half().numpy()
        return torch.from_numpy(self.features[indices]).float()  # [n, t, width]


def choose_places(
    sampled: int | None, owners: np.ndarray, rng: np.random.Generator, last: np.ndarray | float = 0.0
) -> Tensor:
    """Which patches of each image are shown, [n, t]: all, or `sampled` of them.

    First one patch of every thing, then more patches of things, then background; `last` [t] moves patches further back.
    """
    if sampled is None:
        return torch.arange(owners.shape[1]).expand(len(owners), -1)
    rank = rng.random(owners.shape) + (owners == 0) + last
    for row, owner in zip(rank, owners, strict=True):
        order = row.argsort()
        _, first = np.unique(owner[order], return_index=True)
        row[order[first]] -= 2
    return torch.from_numpy(np.sort(rank.argsort(axis=1)[:, :sampled], axis=1))


class DecoderTrainer:
    """Projector and decoder after standardised tower features, with one step of any phase."""

    def __init__(self, model: LlavaForConditionalGeneration, bank: SceneBank, out: Path, seed: int):
        self.model, self.bank = model, bank
        self.tower = model.model.vision_tower.requires_grad_(False)
        self.decoder = model.model.language_model
        self.decoder.config._attn_implementation = PACKED_ATTENTION
        self.cache = FeatureCache(self.tower, bank, out)
        self.standardise = Standardise(self.cache(np.arange(min(64, len(bank)))))
        self.pointer = Pointer(self.decoder.config.hidden_size)
        self.seed = seed

    def decoder_mask(self, packed: Packed, prefix: int) -> Any:
        """What the decoder is given as `attention_mask`; decoders with other layers than attention need another."""
        return packed.mask(prefix)

    def answer_logits(self, features: Tensor, places: Tensor, packed: Packed) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Logits of the text tokens [n, s, words], and the states of all layers [n, prefix + t + s, width].

        `features` [n, t, width] are at `places` [n, t].
        """
        visual = self.model.model.multi_modal_projector(self.standardise(features))
        n, words = len(features), self.decoder.embed_tokens
        start = words(torch.tensor([TOKEN_ID[word] for word in PREFIX])).expand(n, -1, -1)
        hidden = torch.cat([start, visual, words(packed.ids)], dim=1)
        begin = torch.arange(len(PREFIX)).expand(n, -1)
        positions = torch.cat([begin, places + len(PREFIX), packed.positions], dim=1)
        output = self.decoder(
            inputs_embeds=hidden,
            position_ids=positions,
            attention_mask=self.decoder_mask(packed, len(PREFIX) + places.shape[1]),
            use_cache=False,
            output_hidden_states=True,
        )
        return self.model.lm_head(output.last_hidden_state[:, -packed.ids.shape[1] :]), output.hidden_states

    def step(self, phase: DecoderPhase, number: int) -> tuple[Tensor, dict[str, float]]:
        rng = np.random.default_rng([self.seed, 4, number])
        indices = rng.integers(min(MOST_SCENES, len(self.bank)), size=phase.images)
        scenes = [self.bank.scene(int(index)) for index in indices]
        asked = [questions_for(scene, number, phase.questions) for scene in scenes]
        packed, features = pack(asked), self.cache(indices)
        places = choose_places(phase.sampled, self.bank.owners[indices], rng)
        features = features.gather(1, places[..., None].expand(-1, -1, features.shape[-1]))
        logits, states = self.answer_logits(features, places, packed)
        loss = F.cross_entropy(logits.flatten(0, 1), packed.labels.flatten(), ignore_index=IGNORED)
        shown = np.take_along_axis(self.bank.owners[indices], places.numpy(), axis=1)
        pointing = self.pointer(states, pointing_targets(scenes, asked, packed, shown, places.numpy()))
        figures = {"loss": float(loss.detach()), "pointing": float(pointing.detach())}
        return loss + POINTING_WEIGHT * pointing, figures | family_accuracy(logits.detach(), packed, asked)


def family_accuracy(logits: Tensor, packed: Packed, asked: list[list[Question]]) -> dict[str, float]:
    """Percent of right answers per family."""
    right: dict[str, list[bool]] = {item.family: [] for questions in asked for item in questions}
    wrong = packed.answered & (logits.argmax(-1) != packed.labels)
    for row, questions in enumerate(asked):
        failed = set(packed.blocks[row][wrong[row]].tolist())
        for block, item in enumerate(questions):
            right[item.family].append(block not in failed)
    return {family: 100 * float(np.mean(hit)) for family, hit in right.items()}


class Validator:
    """Accuracy per family on validation scenes, with all patches."""

    def __init__(self, trainer: DecoderTrainer, out: Path, scenes: int = 48):
        self.trainer = trainer
        self.bank = SceneBank(out, VALIDATION_SEEDS.start, scenes)
        self.cache = FeatureCache(trainer.tower, self.bank, out)

    @torch.no_grad()
    def __call__(self) -> str:
        asked = [questions_for(self.bank.scene(index), 0, QUESTIONS) for index in range(len(self.bank))]
        hits: dict[str, list[float]] = {family: [] for family in FAMILIES}
        for start in range(0, len(asked), 8):
            rows = np.arange(start, min(start + 8, len(asked)))
            part = asked[start : start + 8]
            packed, places = pack(part), torch.arange(PATCHES).expand(len(rows), -1)
            logits, _ = self.trainer.answer_logits(self.cache(rows), places, packed)
            for family, accuracy in family_accuracy(logits, packed, part).items():
                hits[family].append(accuracy)
        means = {family: float(np.mean(values)) for family, values in hits.items()}
        figures = " ".join(f"{family} {value:.1f}" for family, value in means.items())
        return f"{figures} mean {np.mean(list(means.values())):.1f}"
