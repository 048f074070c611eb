"""Train a hybrid decoder on the embedded model's frozen tower, by the embedded model's decoder recipe.

    PYTHONPATH=tools python -m train.hybrid.train --out run --minutes 45

A second call continues from the checkpoint in `run`. `run/log.txt` has losses and accuracies of the training
questions; `run/export` is the model, for `covist eval --suite scenes --model run/export`.
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import LlavaForConditionalGeneration

from covist import tiny
from covist.tiny.scenes import TRAIN_SEEDS
from train.hybrid.model import build_hybrid
from train.hybrid.packing import PackedDeltaNet, Questions
from train.runner import Budget
from train.tiny.data import SceneBank
from train.tiny.decoder import DECODER_PHASES, DecoderTrainer
from train.tiny.packing import Packed
from train.tiny.train import export, train_decoder

SCENES = 800  # fewer than for the embedded model: their features are a large part of a short training
# A third of the images per step: a delta rule on a CPU is slow, and a decoder that does not start from nothing gains
# more from many steps.
PHASES = tuple(replace(phase, images=phase.images // 3) for phase in DECODER_PHASES)


class HybridTrainer(DecoderTrainer):
    """The embedded model's trainer for a decoder whose linear layers need the questions themselves, not a mask."""

    def __init__(self, model: LlavaForConditionalGeneration, bank: SceneBank, out: Path, seed: int):
        super().__init__(model, bank, out, seed)
        self.standardise.unfold_from(model.model.multi_modal_projector.linear_1)
        for layer in self.decoder.layers:
            if hasattr(layer, "linear_attn"):
                layer.linear_attn.__class__ = PackedDeltaNet

    def decoder_mask(self, packed: Packed, prefix: int) -> Any:
        return {"full_attention": packed.mask(prefix), "linear_attention": Questions(packed)}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m train.hybrid.train", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for scenes, checkpoint, log and model")
    parser.add_argument("--minutes", type=float, default=45.0, help="training time over all calls")
    parser.add_argument("--scenes", type=int, default=SCENES, help="training scenes to render")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    embedded, _, (clip, _) = tiny.load()
    bank = SceneBank(options.out, TRAIN_SEEDS.start, options.scenes)
    model = build_hybrid(embedded, tiny.Size(), options.seed)
    trainer = HybridTrainer(model, bank, options.out, options.seed)
    train_decoder(trainer, Budget(minutes=options.minutes), options.out, PHASES, validated=False)
    export(model, trainer, clip, options.out)


if __name__ == "__main__":
    main()
