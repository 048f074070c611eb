"""The budget if nobody gives one: one definition, that of the model's family, in every room."""

import pytest
import typer.testing
from support.cases import FAMILIES
from support.families import smooth_image

import covist
from covist.api.setup import Setup
from covist.budget import Count, Share
from covist.cli.app import COMMANDS, app
from covist.cli.options import DEFAULT_BUDGET
from covist.contract.profile import FamilyProfile
from covist.families.registry import default_budget, families
from covist.request.inputs import prepare
from covist.request.loading import LoadedModel

PAPERS = {"llava-1.5", "llava-next"}


def case_of(family):
    return next(case for case in FAMILIES if case.family == family)


def test_only_the_paper_s_llavas_keep_64():
    assert FamilyProfile.default_budget == Share(0.2)
    assert {family.name for family in families() if family.default_budget == Count(64)} == PAPERS
    assert all(family.default_budget == Share(0.2) for family in families() if family.name not in PAPERS)


@pytest.mark.parametrize("family", ["llava-1.5", "llava-next", "qwen2.5-vl", "internvl"])
@pytest.mark.filterwarnings("ignore:no clip= given")
def test_python_takes_it_and_a_given_budget_wins(family):
    model = case_of(family).model
    expected = Count(64) if family in PAPERS else Share(0.2)
    with covist.compress(model, method="divprune") as handle:
        assert handle.setup.budget == handle.settings.budget == expected
    with covist.compress(model, method="divprune", budget=7) as handle:
        assert handle.setup.budget == Count(7)


def test_plans_take_that_of_their_preset():
    assert default_budget("llava-1.5-13b") == default_budget("llava-next-7b") == Count(64)
    assert default_budget("qwen3-vl-8b") == default_budget("gemma-3-4b") == Share(0.2)


def test_every_help_says_the_same():
    others = FamilyProfile.default_budget
    assert f"{Count(64)} for LLaVA-1.5 and LLaVA-NeXT, {others} for other models" == DEFAULT_BUDGET
    for name in COMMANDS:
        shown = " ".join(typer.testing.CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "400"}).stdout.split())
        if "--budget " in shown:
            assert f"[default: ({DEFAULT_BUDGET})]" in shown, name


def test_a_small_image_is_compressed():
    """Of 8 x 8 tokens, as Qwen3-VL has of 256 x 256 pixels, 64 would keep all."""
    case = case_of("qwen2.5-vl")
    processor = case.chatting_processor()
    loaded = LoadedModel("qwen", case.model, processor)
    request = prepare(loaded, [smooth_image(224, 224)], "what is this ?")
    with covist.compress(case.model, processor, concentration=0.1) as handle:
        case.model.generate(**request.inputs(case.model), max_new_tokens=1)
    (image,) = handle.report.images
    assert image.tokens == 64 and handle.report.mean_tokens == 13


def test_a_setup_leaves_it_open_until_the_model_is_known():
    assert Setup().resolved().budget is None and str(Setup("covist-pro")) == "covist-pro"
