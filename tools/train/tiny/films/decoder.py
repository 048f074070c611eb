"""Training LLaVA-OneVision's projector, newline and decoder on the frozen tower, whose features are kept per film.

The curriculum widens what the decoder sees: it begins with about one token per actor and frame and ends with all.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlavaOnevisionForConditionalGeneration, SiglipVisionModel

from covist.tiny.films.questions import LESSONS, film_questions_for
from covist.tiny.films.scenes import FRAMES
from covist.tiny.questions import Question
from covist.tiny.scenes import VALIDATION_SEEDS
from train.standardise import Standardise
from train.tiny.decoder import choose_places, family_accuracy, stored_features
from train.tiny.films.bank import ACTORS, FilmBank, token_shows
from train.tiny.films.model import PATCHES, SIDE, TOKEN_ID, TOKENS, VIDEO_TOKENS, build_video_tokenizer
from train.tiny.films.pointing import Chronicle, FilmPointer, dominant, film_targets
from train.tiny.films.vision import encode
from train.tiny.packing import IGNORED, PACKED_ATTENTION, PREFIX, Packed, pack

POINTING_WEIGHT = CHRONICLE_WEIGHT = 0.3
# more questions for families that compare several moments
QUESTIONS = {
    "direction": 1, "place": 2, "event": 4, "change": 1, "digit": 1, "order": 6, "before": 4, "duration": 1,
    "counting": 5, "look": 2,
}  # fmt: skip
_TOKENIZER = build_video_tokenizer()


@dataclass(frozen=True)
class FilmPhase:
    name: str
    share: float  # of the time of the decoder stage
    films: int  # per step
    sampled: int | None = None  # tokens shown, actors preferred; None shows all


FILM_PHASES = (
    FilmPhase("72 tokens", 0.78, films=6, sampled=72),
    FilmPhase("all tokens", 0.22, films=6),
)


class FilmFeatures:
    """Tower features of films in fp16 on disk, computed when a film is first used."""

    def __init__(self, tower: SiglipVisionModel, bank: FilmBank, out: Path):
        self.tower, self.bank = tower, bank
        name = f"{bank.name}-features-{bank.seeds.start}"
        self.features = stored_features(tower, out, name, (len(bank), FRAMES, PATCHES))

    @torch.no_grad()
    def __call__(self, indices: np.ndarray) -> Tensor:
        """[n, frames, patches, width]"""
        for index in np.unique(indices[(self.features[indices, 0, 0] == 0).all(1)]):
            self.features[index] = encode(self.tower, self.bank.pixels(index)).half().numpy()
        return torch.from_numpy(self.features[indices]).float()


class FilmTrainer:
    """Projector, newline and decoder, with one step of any phase."""

    def __init__(self, model: LlavaOnevisionForConditionalGeneration, bank: FilmBank, out: Path, seed: int):
        self.model, self.bank, self.seed = model, bank, seed
        self.tower = model.model.vision_tower.requires_grad_(False)
        self.decoder = model.model.language_model
        self.decoder.config._attn_implementation = PACKED_ATTENTION
        width = self.decoder.config.hidden_size
        self.pointer, self.chronicle = FilmPointer(width), Chronicle(width)
        self.newline = nn.ParameterList([model.model.image_newline])  # a module, for optimiser and checkpoint
        self.cache = FilmFeatures(self.tower, bank, out)
        self.standardise = Standardise(self.cache(np.arange(min(32, len(bank)))))

    def visual(self, features: Tensor) -> Tensor:
        """Tokens [n, frames * tokens, width] from the tower's features; a token is the mean of 2 x 2 patches."""
        projected = self.model.model.multi_modal_projector(self.standardise(features))
        cells = projected.unflatten(2, (SIDE, 2, SIDE, 2))
        return cells.mean((3, 5)).flatten(1, 3)

    def answer_logits(self, visual: Tensor, places: Tensor, packed: Packed) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Logits of the text tokens [n, s, words], and the states of all layers [n, prefix + t + 1 + s, width].

        The tokens `visual` [n, t, width] are at `places` [n, t] of the video's span; the newline follows them.
        """
        n, words = len(visual), self.decoder.embed_tokens
        start = words(torch.tensor([TOKEN_ID[word] for word in PREFIX])).expand(n, -1, -1)
        begin = torch.arange(len(PREFIX)).expand(n, -1)
        newline, last = self.newline[0].expand(n, 1, -1), torch.full((n, 1), len(PREFIX) + VIDEO_TOKENS - 1)
        output = self.decoder(
            inputs_embeds=torch.cat([start, visual, newline, words(packed.ids)], dim=1),
            position_ids=torch.cat([begin, places + len(PREFIX), last, packed.positions], dim=1),
            attention_mask=packed.mask(len(PREFIX) + places.shape[1] + 1),
            use_cache=False,
            output_hidden_states=True,
        )
        return self.model.lm_head(output.last_hidden_state[:, -packed.ids.shape[1] :]), output.hidden_states

    def step(self, phase: FilmPhase, number: int) -> tuple[Tensor, dict[str, float]]:
        rng = np.random.default_rng([self.seed, 31, number])
        indices = rng.integers(len(self.bank), size=phase.films)
        films = [self.bank.film(int(index)) for index in indices]
        asked = [film_questions_for(film, number, QUESTIONS) for film in films]
        packed = pack_film_questions(asked)
        shows = token_shows(self.bank.owners[indices]).reshape(phase.films, FRAMES * TOKENS, -1)
        owners, frames = dominant(shows), np.arange(FRAMES * TOKENS) // TOKENS
        places = choose_places(phase.sampled, np.where(owners, owners + (ACTORS + 1) * frames, 0), rng)
        visual = self.visual(self.cache(indices))
        visual = visual.gather(1, places[..., None].expand(-1, -1, visual.shape[-1]))
        logits, states = self.answer_logits(visual, places, packed)
        loss = F.cross_entropy(logits.flatten(0, 1), packed.labels.flatten(), ignore_index=IGNORED)
        at, row = places.numpy(), np.arange(phase.films)[:, None]
        shown_frames = frames[at]
        pointing = self.pointer(states, film_targets(films, asked, packed, shows[row, at], shown_frames))
        rows = torch.from_numpy(self.bank.tables[indices[:, None], shown_frames, owners[row, at]]).long()
        shown = torch.from_numpy(owners[row, at] > 0)
        history, known = self.chronicle(states, torch.from_numpy(shown_frames), rows, shown)
        figures = {"loss": float(loss.detach()), "pointing": float(pointing.detach()), **known}
        total = loss + POINTING_WEIGHT * pointing + CHRONICLE_WEIGHT * history
        return total, figures | family_accuracy(logits.detach(), packed, asked)


def pack_film_questions(asked: list[list[Question]]) -> Packed:
    return pack(asked, VIDEO_TOKENS, _TOKENIZER)


class FilmValidator:
    """Accuracy per family on validation films, with all tokens."""

    def __init__(self, trainer: FilmTrainer, out: Path, films: int = 48):
        self.trainer = trainer
        self.bank = FilmBank(out, VALIDATION_SEEDS.start, films)
        self.cache = FilmFeatures(trainer.tower, self.bank, out)

    @torch.no_grad()
    def __call__(self) -> str:
        right: dict[str, list[float]] = {family: [] for family in LESSONS}
        for rows in np.array_split(np.arange(len(self.bank)), max(1, len(self.bank) // 8)):
            asked = [film_questions_for(self.bank.film(int(index)), 0, QUESTIONS) for index in rows]
            packed, visual = pack_film_questions(asked), self.trainer.visual(self.cache(rows))
            places = torch.arange(visual.shape[1]).expand(len(rows), -1)
            logits, _ = self.trainer.answer_logits(visual, places, packed)
            for family, accuracy in family_accuracy(logits, packed, asked).items():
                right[family].append(accuracy)
        means = {family: float(np.mean(values)) for family, values in right.items() if values}
        figures = " ".join(f"{family} {value:.1f}" for family, value in means.items())
        return f"{figures} mean {np.mean(list(means.values())):.1f}"
