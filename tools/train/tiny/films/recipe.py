"""The stages of the video model's training; each continues from its own checkpoint.

vision   the tower, on crowded single frames
decoder  projector, newline and decoder on the frozen tower: few tokens of each film first, all tokens last
"""

from pathlib import Path

import torch
from torch import nn

from covist.tiny.model import Size
from covist.tiny.scenes import TRAIN_SEEDS
from train.optim import Optimiser
from train.runner import Budget, Stage, restore
from train.tiny.films.bank import FilmBank, FrameBank
from train.tiny.films.decoder import FILM_PHASES, FilmTrainer, FilmValidator
from train.tiny.films.model import VIDEO_SIZE, build_video, save_video
from train.tiny.films.vision import FRAME_PHASES, FrameTrainer

MINUTES = {"vision": 10.0, "decoder": 45.0}
FILMS = 4_000


class FilmRecipe:
    """The stages in their order; each starts from the checkpoints of those before it."""

    def __init__(self, out: Path, seed: int, films: int = FILMS, size: Size = VIDEO_SIZE):
        self.out, self.seed = out, seed
        self.bank = FilmBank(out, TRAIN_SEEDS.start, films)
        self.model = build_video(size, seed)
        self.tower = self.model.model.vision_tower

    def vision(self, budget: Budget, phases: tuple = FRAME_PHASES) -> list[float]:
        trainer = FrameTrainer(self.tower, FrameBank(TRAIN_SEEDS.start, len(self.bank)), self.seed)
        parts = {"tower": self.tower, "heads": trainer.heads}
        optimiser = Optimiser(parts.values(), matrix_lr=0.01, other_lr=2e-3)
        return Stage("vision", optimiser, parts, budget, self.out).run(phases, trainer.step)

    def decoder(self, budget: Budget, phases: tuple = FILM_PHASES, validated: bool = True) -> list[float]:
        trainer = self._trainer()
        parts = _decoder_parts(trainer)
        hidden = (parts["projector"], parts["decoder"])
        readouts = (parts["words"], parts["newline"], parts["pointer"], parts["chronicle"])
        optimiser = Optimiser(hidden, matrix_lr=0.01, other_lr=3e-3, readouts=readouts, warmup_steps=40)
        validate = FilmValidator(trainer, self.out) if validated else None
        return Stage("decoder", optimiser, parts, budget, self.out).run(phases, trainer.step, validate)

    def export(self) -> None:
        trainer = self._trainer()
        restore(self.out / "decoder.pt", _decoder_parts(trainer))
        trainer.standardise.fold_into(self.model.model.multi_modal_projector.linear_1)
        save_video(self.model, self.out / "export")

    def _trainer(self) -> FilmTrainer:
        restore(self.out / "vision.pt", {"tower": self.tower})
        torch.manual_seed(self.seed)
        return FilmTrainer(self.model, self.bank, self.out, self.seed)


def _decoder_parts(trainer: FilmTrainer) -> dict[str, nn.Module]:
    return {
        "projector": trainer.model.model.multi_modal_projector,
        "decoder": trainer.decoder,
        "words": trainer.model.lm_head,
        "newline": trainer.newline,
        "standardise": trainer.standardise,
        "pointer": trainer.pointer,
        "chronicle": trainer.chronicle,
    }
