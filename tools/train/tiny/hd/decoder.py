"""Training LLaVA-NeXT's projector, newline and decoder on the frozen tower, whose features are computed once per image.

Pointing is taught only on symbols, and to all words of a question equally; on tower features, the decoder learns only
from answers and statements.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import CLIPVisionModel, LlavaNextForConditionalGeneration

from covist.tiny.hd.questions import LESSONS, hd_questions_for
from covist.tiny.questions import Question
from covist.tiny.scenes import VALIDATION_SEEDS, Scene
from covist.tiny.text import TOKEN_ID
from train.standardise import Standardise
from train.tiny.decoder import FeatureCache, choose_places, family_accuracy
from train.tiny.hd.lessons import excerpt, statements_about
from train.tiny.hd.pointing import even_targets
from train.tiny.hd.symbols import Symbols
from train.tiny.hd.views import IMAGE_TOKENS, NEWLINE, VIEW_PATCHES, ViewBank, prompt_order
from train.tiny.packing import IGNORED, PACKED_ATTENTION, PREFIX, Packed, pack
from train.tiny.pointing import Pointer

# more questions for families that need many regions at once
QUESTIONS = {
    "existence": 1, "color": 1, "shape": 1, "size": 1, "counting": 4, "relation": 1, "reading": 1, "glyph": 1,
    "quadrant": 1,
}  # fmt: skip
SEEN_SCENES = 1_200  # scenes with tower features; the questions are new each time, so few scenes suffice


@dataclass(frozen=True)
class NextPhase:
    name: str
    share: float  # of the time of the decoder stage
    images: int  # per step
    sampled: int | None = None  # tokens shown, things preferred; None shows all
    rounds: int = 1  # of QUESTIONS per image
    statements: int = 16  # in the description of an image
    symbolic: bool = False  # show symbols of what patches contain, not tower features
    objects: int | None = None  # at most so many, with `texts` numbers and words; None shows and asks about everything
    texts: int = 4
    pointing: float = 0.0  # weight of the pointing loss

    @property
    def questions(self) -> dict[str, int]:
        return {family: self.rounds * number for family, number in QUESTIONS.items()}


_BEGINNER = NextPhase("3 objects", 0.4, 16, sampled=9, statements=6, symbolic=True, objects=3, texts=1, pointing=0.3)
SYMBOL_PHASES = (
    _BEGINNER,
    replace(_BEGINNER, name="6 objects", share=0.1, images=14, sampled=18, statements=8, objects=6, texts=2),
    replace(_BEGINNER, name="12 objects", share=0.2, images=12, sampled=32, statements=10, objects=12, texts=3),
    replace(_BEGINNER, name="all objects", share=0.3, images=10, sampled=64, statements=10, objects=None),
)
IMITATION_PHASES = (NextPhase("320 tokens", 1.0, images=6, sampled=320),)
NEXT_PHASES = (  # per process
    NextPhase("96 tokens", 0.35, images=4, sampled=96, statements=10),
    NextPhase("320 tokens", 0.15, images=3, sampled=320, statements=10),
    NextPhase("all tokens", 0.50, images=2, statements=10),
)


class NextTrainer:
    """Projector, newline and decoder, with one step of any phase."""

    def __init__(self, model: LlavaNextForConditionalGeneration, bank: ViewBank, seed: int):
        self.model, self.bank, self.seed = model, bank, seed
        self.decoder = model.model.language_model
        self.decoder.config._attn_implementation = PACKED_ATTENTION
        self.symbols, self.pointer = (part(self.decoder.config.hidden_size) for part in (Symbols, Pointer))
        self.newline = nn.ParameterList([model.model.image_newline])  # a module, for optimiser and checkpoint
        self.order = torch.from_numpy(prompt_order())  # [image tokens]
        # patches of the base view come last: a thing is best learned from a patch at full size
        self.last = np.where(np.arange(IMAGE_TOKENS) < VIEW_PATCHES, 1.0, 0.0)

    def see(self, tower: CLIPVisionModel, out: Path) -> None:
        """Use the features of a tower from now on; they are kept in `out`."""
        self.cache = FeatureCache(tower.requires_grad_(False), self.bank, out)
        self.standardise = Standardise(self.cache(np.arange(min(64, len(self.bank)))))

    def owners(self, indices: np.ndarray) -> np.ndarray:
        """The thing that every token of the prompt's image shows, [n, image tokens]; newlines show none."""
        return np.where(self.order == NEWLINE, 0, self.bank.owners[indices][:, self.order])

    def symbolic(self, indices: np.ndarray, places: Tensor) -> Tensor:
        """Visual tokens [n, t, width] of what the patches at `places` [n, t] show."""
        shown = torch.from_numpy(self.owners(indices)).long().gather(1, places)
        tables = torch.from_numpy(self.bank.tables[indices]).long()
        things = tables.gather(1, shown[..., None].expand(-1, -1, tables.shape[-1]))
        return self.symbols(things, self.order[places].clamp(min=0))

    def seen(self, features: Tensor, places: Tensor) -> Tensor:
        """Visual tokens [n, t, width] from the tower's `features` [n, patches, width] at `places` [n, t]."""
        source = self.order[places].clamp(min=0)[..., None]
        shown = features.gather(1, source.expand(-1, -1, features.shape[-1]))
        return self.model.model.multi_modal_projector(self.standardise(shown))

    def answer_logits(self, visual: Tensor, places: Tensor, packed: Packed) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Logits of the text tokens [n, s, words], and the states of all layers [n, prefix + t + s, width].

        The tokens `visual` [n, t, width] are at `places` [n, t] of the image's span.
        """
        newline = (self.order[places] == NEWLINE)[..., None]
        visual = torch.where(newline, self.model.model.image_newline, visual)
        n, words = len(visual), self.decoder.embed_tokens
        start = words(torch.tensor([TOKEN_ID[word] for word in PREFIX])).expand(n, -1, -1)
        begin = torch.arange(len(PREFIX)).expand(n, -1)
        output = self.decoder(
            inputs_embeds=torch.cat([start, visual, words(packed.ids)], dim=1),
            position_ids=torch.cat([begin, places + len(PREFIX), packed.positions], dim=1),
            attention_mask=packed.mask(len(PREFIX) + places.shape[1]),
            use_cache=False,
            output_hidden_states=True,
        )
        return self.model.lm_head(output.last_hidden_state[:, -packed.ids.shape[1] :]), output.hidden_states

    def places(self, phase: NextPhase, indices: np.ndarray, scenes: list[Scene], rng: np.random.Generator) -> Tensor:
        """Which tokens of each image are shown, [n, t], without things that the scenes omit."""
        owners = self.owners(indices)
        hidden = np.zeros(owners.shape)
        if phase.objects is not None:
            for row, (index, scene) in enumerate(zip(indices, scenes, strict=True)):
                things = enumerate(self.bank.scene(int(index)).things, start=1)
                hidden[row] = np.isin(owners[row], [number for number, thing in things if thing not in scene.things])
        return choose_places(phase.sampled, np.where(hidden, 0, owners), rng, self.last + 9 * hidden)

    def ask(self, scene: Scene, phase: NextPhase, number: int, rng: np.random.Generator) -> list[Question]:
        return [*hd_questions_for(scene, number, phase.questions), statements_about(scene, rng, phase.statements)]

    def step(self, phase: NextPhase, number: int) -> tuple[Tensor, dict[str, float]]:
        rng = np.random.default_rng([self.seed, 14, number])
        known = len(self.bank) if phase.symbolic else min(SEEN_SCENES, len(self.bank))
        indices = rng.integers(known, size=phase.images)
        scenes = [self.bank.scene(int(index)) for index in indices]
        if phase.objects is not None:
            scenes = [excerpt(scene, phase.objects, phase.texts, rng) for scene in scenes]
        asked = [self.ask(scene, phase, number, rng) for scene in scenes]
        packed, places = pack(asked, IMAGE_TOKENS), self.places(phase, indices, scenes, rng)
        visual = self.symbolic(indices, places) if phase.symbolic else self.seen(self.cache(indices), places)
        logits, states = self.answer_logits(visual, places, packed)
        loss = F.cross_entropy(logits.flatten(0, 1), packed.labels.flatten(), ignore_index=IGNORED)
        figures = {"loss": float(loss.detach())} | family_accuracy(logits.detach(), packed, asked)
        if phase.pointing:
            shown = np.take_along_axis(self.owners(indices), places.numpy(), axis=1)
            whole = [self.bank.scene(int(index)) for index in indices]
            pointing = self.pointer(states, even_targets(whole, asked, packed, shown))
            loss = loss + phase.pointing * pointing
            figures["pointing"] = float(pointing.detach())
        return loss, figures

    def imitate(self, phase: NextPhase, number: int) -> tuple[Tensor, dict[str, float]]:
        """One step of the projector alone, which learns to reproduce the vectors of the symbols."""
        rng = np.random.default_rng([self.seed, 15, number])
        indices = rng.integers(min(SEEN_SCENES, len(self.bank)), size=phase.images)
        places = choose_places(phase.sampled, self.owners(indices), rng)
        with torch.no_grad():
            wanted = self.symbolic(indices, places)
        error = (self.seen(self.cache(indices), places) - wanted).square().mean() / wanted.var()
        return error, {"error": float(error.detach())}


class NextValidator:
    """Accuracy per family on validation scenes, with all tokens."""

    def __init__(self, trainer: NextTrainer, out: Path, scenes: int = 12):
        self.trainer = trainer
        self.bank = ViewBank(out, VALIDATION_SEEDS.start, scenes)
        self.cache = FeatureCache(trainer.cache.tower, self.bank, out)

    @torch.no_grad()
    def __call__(self) -> str:
        asked = [hd_questions_for(self.bank.scene(index), 0, QUESTIONS) for index in range(len(self.bank))]
        hits: dict[str, list[float]] = {family: [] for family in LESSONS}
        for start in range(0, len(asked), 8):
            rows = np.arange(start, min(start + 8, len(asked)))
            part = asked[start : start + 8]
            packed, places = pack(part, IMAGE_TOKENS), torch.arange(IMAGE_TOKENS).expand(len(rows), -1)
            logits, _ = self.trainer.answer_logits(self.trainer.seen(self.cache(rows), places), places, packed)
            for family, accuracy in family_accuracy(logits, packed, part).items():
                hits[family].append(accuracy)
        means = {family: float(np.mean(values)) for family, values in hits.items()}
        figures = " ".join(f"{family} {value:.1f}" for family, value in means.items())
        return f"{figures} mean {np.mean(list(means.values())):.1f}"
