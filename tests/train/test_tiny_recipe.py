"""The recipe: losses fall within a few hundred steps from scratch, and a stopped run goes on as if never stopped."""

import numpy as np
import pytest

from covist.tiny.model import Size, build_clip, build_llava
from covist.tiny.questions import questions_for
from covist.tiny.scenes import GRID
from train.runner import Budget, phase_at
from train.tiny.data import SceneBank
from train.tiny.decoder import DecoderPhase, DecoderTrainer, choose_places
from train.tiny.packing import pack
from train.tiny.pointing import pointing_targets
from train.tiny.train import main, train_decoder, train_vision
from train.tiny.vision import VISION_PHASES, VisionPhase, VisionTrainer

SMALL = Size(width=64, vision_layers=2, text_layers=1, decoder_layers=2, decoder_mlp=128)
WINDOWS = (VisionPhase("windows", 1.0, images=6, window=6, views=2),)
CAPTIONED = (VisionPhase("tiles", 1.0, images=4, tiles=2),)
SAMPLED = (DecoderPhase("sampled", 1.0, images=2, sampled=48),)


@pytest.fixture(scope="module")
def bank(tmp_path_factory):
    return SceneBank(tmp_path_factory.mktemp("scenes"), 0, 96)


def test_the_tower_learns_from_scratch(bank, tmp_path):
    losses = train_vision(build_clip(SMALL), bank, Budget(steps=250), tmp_path, 0, WINDOWS)
    assert np.mean(losses[-20:]) < 0.5 * np.mean(losses[:20])


def test_the_decoder_learns_from_scratch(bank, tmp_path):
    trainer = DecoderTrainer(build_llava(SMALL), bank, tmp_path, seed=0)
    losses = train_decoder(trainer, Budget(steps=100), tmp_path, SAMPLED, validated=False)
    assert np.mean(losses[-10:]) < 0.5 * np.mean(losses[:5])
    assert all(parameter.grad is None for parameter in trainer.tower.parameters())


def test_a_stopped_run_goes_on_as_if_never_stopped(bank, tmp_path, monkeypatch):
    (straight := tmp_path / "straight").mkdir()
    (stopped := tmp_path / "stopped").mkdir()
    expected = train_vision(build_clip(SMALL), bank, Budget(steps=6), straight, 0, CAPTIONED)
    step = VisionTrainer.step

    def interrupted(trainer, phase, number):
        if number == 3:
            raise KeyboardInterrupt
        return step(trainer, phase, number)

    monkeypatch.setattr(VisionTrainer, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train_vision(build_clip(SMALL), bank, Budget(steps=6), stopped, 0, CAPTIONED)
    monkeypatch.undo()
    rest = train_vision(build_clip(SMALL, seed=9), bank, Budget(steps=6), stopped, 0, CAPTIONED)
    assert rest == pytest.approx(expected[3:], rel=1e-4)


def test_sampled_patches_show_every_thing_first(bank):
    owners = bank.owners[:20]
    places = choose_places(24, owners, np.random.default_rng(0)).numpy()
    assert places.shape == (20, 24)
    for shown, owner in zip(places, owners, strict=True):
        assert len(set(shown)) == 24
        assert set(owner[shown]) == set(owner)


def test_counting_points_at_each_thing_once_and_other_questions_at_all_of_it(bank):
    scene, owners = bank.scene(0), bank.owners[:1]
    asked = [questions_for(scene, 0, {"counting": 6, "digit": 1})]
    (target,) = pointing_targets([scene], asked, pack(asked), owners, np.arange(GRID * GRID)[None])
    for item, patches in zip(asked[0], target.patches, strict=True):
        shown = owners[0][patches.numpy() > 0]
        assert {scene.things[owner - 1] for owner in shown} == set(item.about)
        assert (len(shown) == len(item.about)) == (item.family == "counting")


def test_phases_follow_their_shares():
    assert phase_at(VISION_PHASES, 0.0) is VISION_PHASES[0]
    assert phase_at(VISION_PHASES, 0.999) is VISION_PHASES[-1]
    assert phase_at(VISION_PHASES, 1.0) is VISION_PHASES[-1]


def test_a_budget_counts_either_minutes_or_steps():
    budget = Budget(minutes=1)
    budget.advance(15)
    assert budget.fraction == 0.25
    with pytest.raises(ValueError, match="either in minutes or in steps"):
        Budget(minutes=1, steps=5)


def test_the_command_explains_itself(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "--minutes" in capsys.readouterr().out
