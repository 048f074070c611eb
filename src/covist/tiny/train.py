"""Train the embedded model from scratch: `python -m covist.tiny.train --out runs/tiny`.

Stages: the tower, then the decoder on the frozen tower (sampled patches first, all patches last), then the export.
A run that was stopped continues where it was; a stage whose time is used up is passed over.
"""

import argparse
from pathlib import Path

import torch
from transformers import CLIPModel, LlavaForConditionalGeneration

from covist.tiny.data import SceneBank
from covist.tiny.decoder import DECODER_PHASES, DecoderTrainer, Validator
from covist.tiny.model import Size, build_clip, build_llava
from covist.tiny.optim import Optimiser
from covist.tiny.runner import Budget, Stage, restore
from covist.tiny.scenes import TRAIN_SEEDS
from covist.tiny.store import fold_standardisation, save
from covist.tiny.vision import VISION_PHASES, VisionTrainer

STAGES = ("vision", "decoder", "export")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m covist.tiny.train", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for scenes, checkpoints and the exported model")
    parser.add_argument(
        "--minutes", type=float, nargs=2, default=(30.0, 40.0), metavar=("VISION", "DECODER"), help="training times"
    )
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=STAGES, help="only these, from the checkpoints")
    parser.add_argument("--scenes", type=int, default=16_000, help="training scenes to render")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(arguments)


def train_vision(
    clip: CLIPModel, bank: SceneBank, budget: Budget, out: Path, seed: int, phases: tuple = VISION_PHASES
) -> list[float]:
    trainer = VisionTrainer(clip, bank, seed)
    parts = {"clip": clip, "heads": trainer.heads}
    optimiser = Optimiser(parts.values(), matrix_lr=0.01, other_lr=2e-3)
    return Stage("vision", optimiser, parts, budget, out).run(phases, trainer.step)


def decoder_parts(trainer: DecoderTrainer) -> dict[str, torch.nn.Module]:
    return {
        "projector": trainer.model.model.multi_modal_projector,
        "decoder": trainer.decoder,
        "words": trainer.model.lm_head,
        "standardise": trainer.standardise,
        "pointer": trainer.pointer,
    }


def train_decoder(
    trainer: DecoderTrainer, budget: Budget, out: Path, phases: tuple = DECODER_PHASES, validated: bool = True
) -> list[float]:
    parts = decoder_parts(trainer)
    hidden, readouts = (parts["projector"], parts["decoder"]), (parts["words"], parts["pointer"])
    optimiser = Optimiser(hidden, matrix_lr=0.006, other_lr=2e-3, readouts=readouts)
    validate = Validator(trainer, out) if validated else None
    return Stage("decoder", optimiser, parts, budget, out).run(phases, trainer.step, validate)


def export(model: LlavaForConditionalGeneration, trainer: DecoderTrainer, clip: CLIPModel, out: Path) -> None:
    fold_standardisation(model.model.multi_modal_projector.linear_1, trainer.standardise.mean, trainer.standardise.std)
    save(model, clip, out / "export")


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(options.seed)
    bank = SceneBank(options.out, TRAIN_SEEDS.start, options.scenes)
    clip, model = build_clip(Size(), options.seed), build_llava(Size(), options.seed)
    vision_minutes, decoder_minutes = options.minutes
    if "vision" in options.stages:
        train_vision(clip, bank, Budget(minutes=vision_minutes), options.out, options.seed)
    restore(options.out / "vision.pt", {"clip": clip})
    model.model.vision_tower.load_state_dict(clip.vision_model.state_dict())
    trainer = DecoderTrainer(model, bank, options.out, options.seed)
    if "decoder" in options.stages:
        train_decoder(trainer, Budget(minutes=decoder_minutes), options.out)
    if "export" in options.stages:
        restore(options.out / "decoder.pt", decoder_parts(trainer))
        export(model, trainer, clip, options.out)


if __name__ == "__main__":
    main()
