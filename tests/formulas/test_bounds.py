"""The paper's analysis, checked numerically on random measures: Eqs. 11, 12, 13 and 14."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

seeds = st.integers(0, 100_000)
SLACK = 1 + 1e-9


@given(seeds, st.integers(1, 30), st.floats(1e-3, 10), st.floats(1, 1e3))
def test_tilt_lemma(seed, size, low, ratio):
    """Reweighting by factors in [a, b] moves a distribution by at most 2 (sqrt b - sqrt a) / (sqrt b + sqrt a)."""
    random = np.random.default_rng(seed)
    p = random.dirichlet(np.full(size, 0.5))
    r = low * ratio ** random.random(size)
    tilted = p * r / (p * r).sum()
    a, b = np.sqrt(low), np.sqrt(low * ratio)
    assert np.abs(p - tilted).sum() <= 2 * (b - a) / (b + a) * SLACK + 1e-12


def test_tilt_lemma_is_attained():
    """Two atoms with mean factor sqrt(ab) reach the bound, so a smaller one would be wrong."""
    a, b = 0.25, 4.0
    weight = (np.sqrt(a * b) - a) / (b - a)
    p, r = np.array([1 - weight, weight]), np.array([a, b])
    tilted = p * r / (p * r).sum()
    assert np.isclose(np.abs(p - tilted).sum(), 2 * (np.sqrt(b) - np.sqrt(a)) / (np.sqrt(b) + np.sqrt(a)))


@given(seeds, st.integers(1, 8), st.integers(0, 5), st.floats(0, 2), st.floats(0, 3))
def test_attention_bound(seed, groups, texts, eta, delta):
    """Proposition 1: compressing groups costs at most eta + 2 V tanh(delta / 2)."""
    random = np.random.default_rng(seed)
    width = 4
    z = random.exponential(size=groups + texts)
    v = random.normal(size=(groups + texts, width))
    shift = random.normal(size=(groups, width))
    shift *= eta * random.random((groups, 1)) / np.linalg.norm(shift, axis=1, keepdims=True)
    z_hat, v_hat = z.copy(), v.copy()
    z_hat[:groups] *= np.exp(delta * random.uniform(-1, 1, groups))
    v_hat[:groups] += shift
    exact, compressed = z @ v / z.sum(), z_hat @ v_hat / z_hat.sum()
    largest = np.linalg.norm(v_hat, axis=1).max()
    assert np.linalg.norm(exact - compressed) <= (eta + 2 * largest * np.tanh(delta / 2)) * SLACK + 1e-12


@given(seeds, st.integers(1, 12))
def test_contribution_discrepancy(seed, members):
    """Eq. 13: within-group spread, logit perturbation and weight mismatch bound the log discrepancy."""
    random = np.random.default_rng(seed)
    w, logits = random.exponential(size=members), random.normal(size=members)
    reference, compressed, mu = random.normal(), random.normal(), random.exponential()
    spread = np.abs(logits - reference).max()
    discrepancy = abs(np.log(mu) + compressed - np.log((w * np.exp(logits)).sum()))
    bound = spread + abs(compressed - reference) + abs(np.log(mu) - np.log(w.sum()))
    assert discrepancy <= bound * SLACK + 1e-12


@given(seeds)
def test_key_perturbation(seed):
    """Eq. 14: rotation is orthogonal, so a changed representative moves its logit by at most the norms' product."""
    random = np.random.default_rng(seed)
    head, width = 6, 9
    query, projection = random.normal(size=head), random.normal(size=(head, width))
    before, after = random.normal(size=(2, width))
    rotation, _ = np.linalg.qr(random.normal(size=(head, head)))
    moved = abs(query @ rotation @ projection @ (after - before)) / np.sqrt(head)
    bound = np.linalg.norm(query) * np.linalg.norm(projection, 2) / np.sqrt(head) * np.linalg.norm(after - before)
    assert moved <= bound * SLACK
