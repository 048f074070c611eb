"""Train an embedded model.

    PYTHONPATH=tools python -m train.tiny.train --out runs/tiny
    PYTHONPATH=tools python -m train.tiny.train --bed next --out runs/next
    PYTHONPATH=tools python -m train.tiny.train --bed video --out runs/video

Stages of `tiny`: the tower, then the decoder on the frozen tower (sampled patches first, all patches last), then the
export. `next` begins with the tower of `tiny`; `train.tiny.hd.recipe` describes its stages, `train.tiny.films.recipe`
those of `video`.
A run that was stopped continues where it left off; a stage whose time is used up is skipped.
"""

import argparse
from pathlib import Path

import torch
from transformers import CLIPModel, LlavaForConditionalGeneration

from covist.tiny.model import Size, build_clip, build_llava
from covist.tiny.scenes import TRAIN_SEEDS
from covist.tiny.store import save
from train import parallel
from train.optim import Optimiser
from train.runner import Budget, Stage, restore
from train.tiny.data import SceneBank
from train.tiny.decoder import DECODER_PHASES, DecoderTrainer, Validator
from train.tiny.films import recipe as film_recipe
from train.tiny.hd import recipe
from train.tiny.vision import VISION_PHASES, VisionTrainer

MINUTES = {  # by bed and stage
    "tiny": {"vision": 30.0, "decoder": 40.0},
    "next": recipe.MINUTES,
    "video": film_recipe.MINUTES,
}
EXPORT = "export"
SCENES = 16_000


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m train.tiny.train", description=__doc__)
    parser.add_argument("--bed", choices=MINUTES, default="tiny", help="which model")
    parser.add_argument("--out", type=Path, required=True, help="folder for scenes, checkpoints and the exported model")
    described = "; ".join(f"{bed}: " + ", ".join(f"{s} {m:g}" for s, m in own.items()) for bed, own in MINUTES.items())
    parser.add_argument("--minutes", type=float, nargs="+", help=f"training time of every stage ({described})")
    parser.add_argument("--stages", nargs="+", help="only these, from the checkpoints; the last one is export")
    parser.add_argument("--scenes", type=int, help="training scenes or films to render")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    stages = MINUTES[options.bed]
    minutes = options.minutes or list(stages.values())
    if len(minutes) != len(stages):
        parser.error(f"--minutes of {options.bed} takes {len(stages)} numbers, one each for {', '.join(stages)}")
    if unknown := set(options.stages or ()) - {*stages, EXPORT}:
        parser.error(f"--stages of {options.bed} are {', '.join(stages)}, {EXPORT}; not {min(unknown)}")
    options.stages = options.stages or [*stages, EXPORT]
    options.minutes = dict(zip(stages, minutes, strict=True))
    return options


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
    trainer.standardise.fold_into(model.model.multi_modal_projector.linear_1)
    save(model, clip, out / "export")


def train_tiny(options: argparse.Namespace) -> None:
    torch.manual_seed(options.seed)
    bank = SceneBank(options.out, TRAIN_SEEDS.start, options.scenes or SCENES)
    clip, model = build_clip(Size(), options.seed), build_llava(Size(), options.seed)
    if "vision" in options.stages:
        train_vision(clip, bank, Budget(minutes=options.minutes["vision"]), options.out, options.seed)
    restore(options.out / "vision.pt", {"clip": clip})
    model.model.vision_tower.load_state_dict(clip.vision_model.state_dict())
    trainer = DecoderTrainer(model, bank, options.out, options.seed)
    if "decoder" in options.stages:
        train_decoder(trainer, Budget(minutes=options.minutes["decoder"]), options.out)
    if EXPORT in options.stages:
        restore(options.out / "decoder.pt", decoder_parts(trainer))
        export(model, trainer, clip, options.out)


def train_next(options: argparse.Namespace) -> None:
    _follow(recipe.NextRecipe(options.out, options.seed, options.scenes or recipe.SCENES), options)


def train_video(options: argparse.Namespace) -> None:
    _follow(film_recipe.FilmRecipe(options.out, options.seed, options.scenes or film_recipe.FILMS), options)


def _follow(stages: recipe.NextRecipe | film_recipe.FilmRecipe, options: argparse.Namespace) -> None:
    for name, minutes in options.minutes.items():
        if name in options.stages:
            getattr(stages, name)(Budget(minutes=minutes))
    if EXPORT in options.stages:
        stages.export()


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    parallel.join()
    {"tiny": train_tiny, "next": train_next, "video": train_video}[options.bed](options)


if __name__ == "__main__":
    main()
