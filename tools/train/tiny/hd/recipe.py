"""The stages of the second test bed's training; each continues from its own checkpoint.

vision     the first bed's tower and text tower, on views of crowded scenes
symbols    half of the decoder's layers, on symbols of what patches show (may run in parallel with `vision`)
projector  from the tower's features to the vectors of the symbols
decoder    all layers, on tower features: sampled tokens first, all tokens last
"""

from dataclasses import replace
from pathlib import Path

import torch
from torch import nn
from transformers import CLIPModel

from covist.tiny.model import Size
from covist.tiny.scenes import TRAIN_SEEDS
from covist.tiny.store import load, save
from train import parallel
from train.optim import Optimiser
from train.runner import Budget, Stage, restore
from train.tiny.hd.decoder import IMITATION_PHASES, NEXT_PHASES, SYMBOL_PHASES, NextTrainer, NextValidator
from train.tiny.hd.model import NEXT_SIZE, build_next, build_next_processor, grow, shrink_clip
from train.tiny.hd.views import ViewBank
from train.tiny.hd.vision import VIEW_PHASES, ViewTrainer

MINUTES = {"vision": 27.0, "symbols": 30.0, "projector": 2.5, "decoder": 28.0}
SCENES = 3_000


def train_tower(
    clip: CLIPModel, bank: ViewBank, budget: Budget, out: Path, seed: int, phases: tuple = VIEW_PHASES
) -> list[float]:
    trainer = ViewTrainer(clip, bank, seed)
    parts = {"clip": clip, "heads": trainer.heads}
    optimiser = Optimiser(parts.values(), matrix_lr=0.006, other_lr=2e-3)
    return Stage("vision", optimiser, parts, budget, out).run(phases, trainer.step)


def _symbol_parts(trainer: NextTrainer) -> dict[str, nn.Module]:
    return {
        "decoder": trainer.decoder,
        "words": trainer.model.lm_head,
        "symbols": trainer.symbols,
        "pointer": trainer.pointer,
    }


def train_on_symbols(trainer: NextTrainer, budget: Budget, out: Path, phases: tuple = SYMBOL_PHASES) -> list[float]:
    parts = _symbol_parts(trainer)
    hidden, readouts = (parts["decoder"], parts["symbols"]), (parts["words"], parts["pointer"])
    optimiser = Optimiser(hidden, matrix_lr=0.01, other_lr=3e-3, readouts=readouts)
    return Stage("symbols", optimiser, parts, budget, out).run(phases, trainer.step)


def train_projector(trainer: NextTrainer, budget: Budget, out: Path, phases: tuple = IMITATION_PHASES) -> list[float]:
    parts = {"projector": trainer.model.model.multi_modal_projector}
    optimiser = Optimiser(parts.values(), matrix_lr=0.01, other_lr=3e-3, warmup_steps=10)
    return Stage("projector", optimiser, parts, budget, out).run(phases, trainer.imitate)


def _decoder_parts(trainer: NextTrainer) -> dict[str, nn.Module]:
    return {
        "projector": trainer.model.model.multi_modal_projector,
        "decoder": trainer.decoder,
        "words": trainer.model.lm_head,
        "newline": trainer.newline,
        "standardise": trainer.standardise,
    }


def train_decoder(
    trainer: NextTrainer, budget: Budget, out: Path, phases: tuple = NEXT_PHASES, validated: bool = True
) -> list[float]:
    parts = _decoder_parts(trainer)
    hidden, readouts = (parts["projector"], parts["decoder"]), (parts["words"], parts["newline"])
    optimiser = Optimiser(hidden, matrix_lr=0.006, other_lr=2e-3, readouts=readouts)
    validate = NextValidator(trainer, out) if validated and parallel.rank() == 0 else None
    return Stage("decoder", optimiser, parts, budget, out).run(phases, trainer.step, validate)


class NextRecipe:
    """The stages in their order; each starts from the checkpoints of those before it."""

    def __init__(self, out: Path, seed: int, scenes: int = SCENES, size: Size = NEXT_SIZE):
        self.out, self.seed, self.size = out, seed, size
        self.bank = ViewBank(out, TRAIN_SEEDS.start, scenes)
        torch.manual_seed(seed)
        self.clip = shrink_clip(load()[2][0])

    def vision(self, budget: Budget) -> None:
        train_tower(self.clip, self.bank, budget, self.out, self.seed)

    def symbols(self, budget: Budget) -> None:
        train_on_symbols(self._half(), budget, self.out)

    def projector(self, budget: Budget) -> None:
        trainer = self._half()
        restore(self.out / "symbols.pt", _symbol_parts(trainer))
        self._open_eyes(trainer)
        train_projector(trainer, budget, self.out)

    def decoder(self, budget: Budget) -> None:
        half, trainer = self._half(), NextTrainer(build_next(self.size, self.seed), self.bank, self.seed)
        restore(self.out / "symbols.pt", _symbol_parts(half))
        grow(half.model, trainer.model)
        self._open_eyes(trainer)
        restore(self.out / "projector.pt", {"projector": trainer.model.model.multi_modal_projector})
        train_decoder(trainer, budget, self.out)

    def export(self) -> None:
        trainer = NextTrainer(build_next(self.size, self.seed), self.bank, self.seed)
        self._open_eyes(trainer)
        restore(self.out / "decoder.pt", _decoder_parts(trainer))
        trainer.standardise.fold_into(trainer.model.model.multi_modal_projector.linear_1)
        save(trainer.model, self.clip, self.out / "export", build_next_processor())

    def _half(self) -> NextTrainer:
        size = replace(self.size, decoder_layers=self.size.decoder_layers // 2)
        return NextTrainer(build_next(size, self.seed), self.bank, self.seed)

    def _open_eyes(self, trainer: NextTrainer) -> None:
        restore(self.out / "vision.pt", {"clip": self.clip})
        trainer.model.model.vision_tower.load_state_dict(self.clip.vision_model.state_dict())
        trainer.see(trainer.model.model.vision_tower, self.out)
