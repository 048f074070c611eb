"""What several methods do in the same way: turns of groups, and tokens that take the place of others."""

import torch

from covist.grid import Grid
from covist.methods.shared import joined, represented, rewritten, turns
from covist.state import VisualState


def state_of(features):
    return VisualState.initial(features, torch.arange(len(features)), None, Grid(((1, len(features)),)))


def test_every_group_takes_its_tokens_in_the_order_of_all():
    order, group = torch.tensor([4, 0, 2, 1, 3]), torch.tensor([7, 0, 7, 0, 7])
    assert turns(order, group).tolist() == [1, 0, 2, 1, 0]


def test_a_kept_token_joins_itself_even_if_a_copy_of_it_is_kept_too():
    similarity = torch.tensor([[1.0, 1.0, 0.2], [1.0, 1.0, 0.2], [0.1, 0.3, 0.2], [0.2, 0.2, 1.0]])
    assert joined(similarity, torch.tensor([0, 1, 3])).tolist() == [0, 1, 1, 2]


def test_a_state_is_rewritten_at_some_places_in_its_own_dtype_and_stays_as_it_was():
    before = state_of(torch.zeros(4, 2, dtype=torch.float16))
    after = rewritten(before, torch.tensor([2, 0]), torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([5.0, 6.0]))
    assert after.features.dtype == torch.float16 and after.features.tolist() == [[3, 4], [0, 0], [1, 2], [0, 0]]
    assert after.weights.tolist() == [6, 1, 5, 1]
    assert rewritten(before, torch.tensor([1]), torch.ones(1, 2)).weights.tolist() == [1, 1, 1, 1]
    assert not before.features.any()


def test_removed_tokens_are_replaced_by_one_for_each_cluster_which_has_their_weight():
    removed, cluster = torch.tensor([0, 2, 3, 5]), torch.tensor([1, 0, 1, 1])
    outcome = represented(
        state_of(torch.zeros(6, 1)), removed, torch.tensor([2, 3]), cluster, torch.tensor([[8.0], [9.0]])
    )
    assert outcome.state.indices.tolist() == [1, 2, 3, 4]
    assert outcome.state.features[:, 0].tolist() == [0, 8, 9, 0] and outcome.state.weights.tolist() == [1, 1, 3, 1]
    assert outcome.assignment.tolist() == [2, 0, 1, 2, 3, 2]
