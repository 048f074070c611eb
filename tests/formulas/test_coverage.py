import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import coverage as reference

from covist.config import CovistConfig
from covist.formulas import coverage
from covist.formulas.ops import gram, unit_rows
from covist.grid import Grid
from formulas.inputs import STRUCTURED, array, close, generator, image

CONFIG = CovistConfig()


@pytest.mark.parametrize("name", STRUCTURED)
def test_affinity_matches_the_reference(name):
    made = STRUCTURED[name]()
    close(coverage.affinity(made.keys, made.embeddings), reference.affinity(array(made.keys), array(made.embeddings)))


def test_opposite_features_have_no_affinity():
    features = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    close(coverage.affinity(features, features), [[1, 0], [0, 1]], 1e-6)


@given(st.integers(1, 3000), st.floats(0, 1), st.one_of(st.none(), st.floats(0, 1)), st.floats(0.5, 2))
def test_uniform_coefficient_matches_the_reference(count, concentration, running, multiplier):
    config = CONFIG.replace(uniform_multiplier=multiplier)
    found = coverage.uniform_coefficient(count, concentration, running, config)
    assert found == pytest.approx(reference.uniform_coefficient(count, concentration, running, multiplier), abs=1e-12)
    assert 0 <= found <= 0.60


@pytest.mark.parametrize(
    "count, u", [(1, 0.40), (64, 0.40), (96, 0.35), (128, 0.30), (160, 0.275), (192, 0.25), (640, 0.25)]
)
def test_uniform_coefficient_at_the_budgets_of_the_paper(count, u):
    assert coverage.uniform_coefficient(count, 0.2, None, CONFIG) == pytest.approx(u)


def test_diffuse_attention_raises_the_uniform_coefficient_up_to_its_ceiling():
    assert coverage.uniform_coefficient(64, 0.0, 0.3, CONFIG) == 0.60
    assert coverage.uniform_coefficient(64, 0.6, 0.3, CONFIG) == pytest.approx(0.20)


@pytest.mark.parametrize("uniform", [0.0, 0.25, 0.6])
def test_coverage_weights_match_the_reference(uniform):
    evidence = torch.rand(30, generator=generator()).softmax(0)
    close(coverage.coverage_weights(evidence, uniform, CONFIG), reference.coverage_weights(array(evidence), uniform))


def omega_of(weights, unit_keys, unit_embeddings, coordinates, config):
    """The weights of all tokens, rebalanced over the regions of their descriptors."""
    distances = coverage.descriptor_distances(gram(unit_keys), gram(unit_embeddings), coordinates)
    return coverage.balance_regions(weights, coverage.assign_regions(weights, distances, config.regions), config)


@pytest.mark.parametrize("name", STRUCTURED)
def test_region_weights_match_the_reference(name):
    made = STRUCTURED[name]()
    weights = torch.rand(made.size, generator=generator(3)).softmax(0)
    found = omega_of(weights, unit_rows(made.keys), unit_rows(made.embeddings), made.grid.coordinates(), CONFIG)
    points = reference.descriptors(array(made.keys), array(made.embeddings), made.grid.views)
    assigned = reference.regions(array(weights), points)
    close(found, reference.region_weights(array(weights), assigned))
    assert float(found.sum()) == pytest.approx(1, abs=1e-5)


def test_regions_of_a_video_see_time_as_a_third_coordinate():
    made = image(((3, 4),) * 5)
    made.grid = Grid(made.grid.views, "frames")
    weights = torch.rand(made.size, generator=generator(3)).softmax(0)
    found = omega_of(weights, unit_rows(made.keys), unit_rows(made.embeddings), made.grid.coordinates(), CONFIG)
    points = reference.descriptors(array(made.keys), array(made.embeddings), made.grid.views, in_time=True)
    close(found, reference.region_weights(array(weights), reference.regions(array(weights), points)))


def test_a_region_without_weight_still_gets_its_even_share():
    keys = torch.cat([torch.eye(2)[:1].repeat(3, 1), torch.eye(2)[1:].repeat(3, 1)])
    weights = torch.tensor([0.5, 0.3, 0.2, 0.0, 0.0, 0.0])
    omega = omega_of(weights, keys, keys, torch.full((6, 2), 0.5), CONFIG.replace(regions=2))
    close(omega, [0.475, 0.285, 0.19, 0.05 / 3, 0.05 / 3, 0.05 / 3], 1e-6)
