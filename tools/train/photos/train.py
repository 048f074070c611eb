"""Step 2: train projector and decoder on the features of step 1, then write the model.

    python -m train.photos.train --data DIR --tower FOLDER --features features --out run --steps 2400

A second call continues from the checkpoint in `run`, with whatever features there are by then; more `--steps` than
before prolong the training. `run/log.txt` has the losses in nats per token: `captions` and `answers` of the training
images and, on development images, `seeing` (all tokens), `pruned` (16 random tokens) and `blind` (no image), each
of captions / of answers.
`run/model` is the model so far, for `covist eval --suite photos --model run/model`.

The decoder learns to be blind too: it also reads captions after images whose every token is the mean image token. So
the loss without an image is that of a model that knows the language of captions, not that of a model that is surprised.
"""

import argparse
import copy
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlavaForConditionalGeneration

from covist.errors import CovistError
from covist.eval.photos.data import DEVELOPMENT, TRAIN
from train.optim import Optimiser
from train.photos.features import feature_path
from train.photos.lessons import Lesson, read_lessons
from train.photos.model import build_model
from train.photos.packing import LessonPacker
from train.photos.text import build_processor, build_tokenizer, vocabulary
from train.photos.towers import load_tower
from train.runner import Budget, Stage
from train.standardise import Standardise
from train.tiny.packing import IGNORED, Packed

VALIDATED, VALIDATE_EVERY = 48, 4  # development images, and reports between two validations
PRUNED = 16  # tokens of the validation that shows how much the decoder needs all of them
CAPTIONS, QUESTIONS = 3, 5  # about an image in one step, the most
SORTED = 4  # steps whose images are drawn together and dealt out by length: a batch is padded to its longest row


@dataclass(frozen=True)
class Phase:
    name: str
    share: float  # of the steps
    images: int  # per step
    blind: int  # captioned images per step that are not shown; they need no features
    square: int = 1  # the side of the square of patches that becomes one token
    sampled: bool = False  # half of the steps show one patch of each square, not the mean


# A decoder that had seen only means would favour methods that merge, one that had seen only samples those that prune.
PHASES = (
    Phase("gist", 0.24, images=12, blind=12, square=7),  # the language, and what a photograph is about
    Phase("squares", 0.44, images=20, blind=4, square=2, sampled=True),
    Phase("all patches", 0.32, images=14, blind=2),
)


class FeatureBank:
    """The images of a split, of which the first have features on disk."""

    def __init__(self, data: Path, folder: Path, split: str):
        self.lessons, self.folder, self.split = read_lessons(data, split), folder, split
        self.found = 0

    def __len__(self) -> int:
        """Images with features; looks for new files."""
        while self.found < len(self.lessons) and feature_path(self.folder, self.lessons[self.found]).exists():
            self.found += 1
        return self.found

    @cached_property
    def lengths(self) -> np.ndarray:
        """Words about each image."""
        return np.array([lesson.words for lesson in self.lessons])

    def features(self, indices: np.ndarray) -> Tensor:
        """[n, tokens, width]"""
        if indices.max() >= len(self):
            raise CovistError(f"{self.folder} has features of {len(self)} {self.split} images only; compute more")
        rows = [np.load(feature_path(self.folder, self.lessons[index])) for index in indices]
        return torch.from_numpy(np.stack(rows)).float()


class Captioner(nn.Module):
    """Projector and decoder after standardised features of the tower."""

    mean_token: Tensor

    def __init__(self, model: LlavaForConditionalGeneration, packer: LessonPacker, sample: Tensor):
        super().__init__()
        self.standardise = Standardise(sample)
        self.projector, self.decoder = model.model.multi_modal_projector, model.model.language_model
        self.words = model.lm_head
        self.packer = packer
        self.decoder.config._attn_implementation = "eager"  # its backward pass takes half the time of sdpa's on a CPU
        self.register_buffer("mean_token", torch.zeros(self.decoder.config.hidden_size))

    def visual(self, features: Tensor) -> Tensor:
        """Image tokens [n, t, width]; while training, their running mean is kept for the blind images."""
        tokens = self.projector(self.standardise(features))
        if self.training:
            started = bool(self.mean_token.any())
            self.mean_token.lerp_(tokens.detach().mean((0, 1)).float(), 0.02 if started else 1.0)
        return tokens

    def losses(self, visual: Tensor, places: Tensor, lessons: list[Lesson]) -> tuple[Tensor, Tensor]:
        """Nats of every known token of captions and answers, given image tokens at `places` [t], and which of them
        belong to answers."""
        packed, n, packer, embed = self.packer(lessons), len(lessons), self.packer, self.decoder.embed_tokens
        before = embed(torch.tensor(packer.before)).expand(n, -1, -1)
        hidden = torch.cat([before, visual, embed(packed.ids)], dim=1)
        first = len(packer.before)
        prefix = torch.cat([torch.arange(first), places + first])
        states = self.decoder(
            inputs_embeds=hidden,
            position_ids=torch.cat([prefix.expand(n, -1), packed.positions], dim=1),
            attention_mask=attention_mask(packed, len(prefix)),
            use_cache=False,
        ).last_hidden_state[:, len(prefix) :]
        asked = packed.labels != IGNORED
        losses = F.cross_entropy(self.words(states[asked]), packed.labels[asked], reduction="none")
        return losses, packed.is_answer[asked]


def attention_mask(packed: Packed, prefix: int) -> Tensor:
    """What is added to the attention scores, [n, 1, prefix + s, prefix + s]: the prefix is causal."""
    n, total = len(packed.ids), prefix + packed.ids.shape[1]
    seen = torch.ones(total, total, dtype=torch.bool).tril().repeat(n, 1, 1, 1)
    seen[:, :, prefix:] = packed.mask(prefix)
    return torch.zeros(seen.shape, dtype=torch.bfloat16).masked_fill(~seen, -torch.inf)


def squares(features: Tensor, side: int, chosen: int | None = None) -> tuple[Tensor, Tensor]:
    """One token per square of patches [n, t, width], and its place [t]: the mean, at the first patch's place, or the
    `chosen` patch."""
    grid = int(features.shape[1] ** 0.5)
    maps = features.unflatten(1, (grid, grid))
    places = torch.arange(grid * grid).view(grid, grid)
    if chosen is None:
        return F.avg_pool2d(maps.movedim(3, 1), side).flatten(2).mT, places[::side, ::side].flatten()
    row, column = divmod(chosen, side)
    return maps[:, row::side, column::side].flatten(1, 2), places[row::side, column::side].flatten()


class Trainer:
    """One step of any phase, and the losses on development images."""

    def __init__(self, captioner: Captioner, train: FeatureBank, development: FeatureBank, seed: int):
        self.captioner, self.train, self.development, self.seed = captioner, train, development, seed
        self.reports = 0

    def step(self, phase: Phase, number: int) -> tuple[Tensor, dict[str, float]]:
        rng = np.random.default_rng([self.seed, number])
        indices = self._drawn(len(self.train), phase.images, number)
        unseen = self._drawn(len(self.train.lessons), phase.blind, number)
        chosen = int(rng.integers(phase.square**2)) if phase.sampled and rng.random() < 0.5 else None
        features, places = squares(self.train.features(indices), phase.square, chosen)
        visual = self.captioner.visual(features)
        blind = self.captioner.mean_token.to(visual.dtype).expand(phase.blind, *visual.shape[1:])
        lessons = [self.train.lessons[index].part(CAPTIONS, QUESTIONS, rng) for index in (*indices, *unseen)]
        captions, answers = means(*self.captioner.losses(torch.cat([visual, blind]), places, lessons))
        # Answers are few words among many, so they have a mean of their own.
        return captions + answers, {"captions": float(captions.detach()), "answers": float(answers.detach())}

    def _drawn(self, available: int, wanted: int, number: int) -> np.ndarray:
        """Images of a step, with lessons of similar length."""
        group, place = divmod(number, SORTED)
        drawn = np.random.default_rng([self.seed, group]).choice(available, SORTED * wanted, replace=False)
        by_length = drawn[self.train.lengths[drawn].argsort(kind="stable")]
        return by_length[place * wanted : (place + 1) * wanted]

    @torch.no_grad()
    def validate(self) -> str:
        self.reports += 1
        if self.reports % VALIDATE_EVERY != 1:
            return f"{len(self.train)} images"
        self.captioner.eval()
        shown: dict[str, list[tuple[Tensor, Tensor]]] = {"seeing": [], "pruned": [], "blind": []}
        for start in range(0, VALIDATED, 16):
            indices = np.arange(start, start + 16)
            lessons = [self.development.lessons[index] for index in indices]
            visual = self.captioner.visual(self.development.features(indices))
            places = torch.arange(visual.shape[1])
            few = torch.randperm(len(places), generator=torch.Generator().manual_seed(start))[:PRUNED].sort().values
            tokens = (visual, places), (visual[:, few], few), (self.captioner.mean_token.expand_as(visual), places)
            for losses, one in zip(shown.values(), tokens, strict=True):
                losses.append(self.captioner.losses(*one, lessons))
        self.captioner.train()
        found = {name: means(*map(torch.cat, zip(*losses, strict=True))) for name, losses in shown.items()}
        said = " ".join(f"{name} {captions:.3f}/{answers:.3f}" for name, (captions, answers) in found.items())
        return f"{len(self.train)} images, development {said}"


def means(losses: Tensor, is_answer: Tensor) -> tuple[Tensor, Tensor]:
    """The mean loss of captions' tokens and of answers' tokens; 0 where there is none."""
    parts = losses[~is_answer], losses[is_answer]
    first, second = (part.mean() if len(part) else losses.new_zeros(()) for part in parts)
    return first, second


def export(model: LlavaForConditionalGeneration, captioner: Captioner, processor, out: Path) -> None:
    """Write the model as a folder that `covist` and transformers load."""
    stored = copy.deepcopy(model)  # the training goes on with its own
    captioner.standardise.fold_into(stored.model.multi_modal_projector.linear_1)
    stored.set_attn_implementation("sdpa")
    stored.save_pretrained(out)
    processor.save_pretrained(out)


def build(
    data: Path, tower: Path, size: int | None, bank: FeatureBank
) -> tuple[LlavaForConditionalGeneration, Captioner]:
    """The untrained model, and its parts for training; features of `bank` give the scale of the standardisation."""
    learned = [(*lesson.captions, *chain.from_iterable(lesson.questions)) for lesson in read_lessons(data, TRAIN)]
    words = vocabulary(chain.from_iterable(learned))
    model = build_model(load_tower(tower, size), words)
    packer = LessonPacker(build_tokenizer(words), model.config.image_seq_length)
    sample = bank.features(np.arange(min(64, len(bank))))  # enough for means: 196 patches each
    return model, Captioner(model, packer, sample).train()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m train.photos.train", description=__doc__)
    parser.add_argument(
        "--data", type=Path, required=True, help="folder with captions.txt and images, maybe questions.jsonl"
    )
    parser.add_argument("--tower", type=Path, required=True, help="folder of the vision tower of CLIP or DINOv2")
    parser.add_argument("--features", type=Path, required=True, help="folder that train.photos.features has written")
    parser.add_argument("--out", type=Path, required=True, help="folder for checkpoint, log and model")
    parser.add_argument("--steps", type=int, default=2400, help="training steps over all calls; 2 to 3 s each")
    parser.add_argument("--size", type=int, help="pixels of an image's side, as the features have")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--export-only", action="store_true", help="write the model from the checkpoint as it is")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(options.seed)
    train, development = (FeatureBank(options.data, options.features, split) for split in (TRAIN, DEVELOPMENT))
    model, captioner = build(options.data, options.tower, options.size, train)
    hidden = (captioner.projector, captioner.decoder)
    optimiser = Optimiser(hidden, matrix_lr=0.01, other_lr=2e-3, readouts=(captioner.words,))
    budget = Budget(steps=0 if options.export_only else options.steps)
    trainer = Trainer(captioner, train, development, options.seed)
    stage = Stage("captions", optimiser, {"captioner": captioner}, budget, options.out)
    # Two thirds of the time of float32, also in the optimiser; the cache would keep weights from before a step.
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        stage.run(PHASES, trainer.step, trainer.validate)
    processor = build_processor(captioner.packer.tokenizer, model.model.vision_tower)
    export(model, captioner, processor, options.out / "model")


if __name__ == "__main__":
    main()
