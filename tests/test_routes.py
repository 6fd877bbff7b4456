"""The ways in which programs call attention, and which of them each door sees.

Every row of the README's table of routes is a test, here or in the module that
``helpers/routes_table.py`` names beside it.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from helpers.eager_routes import (
    QUERY_PADDING,
    ROUTES,
    OtherDispatchMode,
    OtherFunctionMode,
    attend,
    checkpointed,
    encoder,
    flop_counter,
    in_saved_tensor_hooks,
    profiler,
    query,
    selective_checkpoint,
    step,
)
from helpers.route import DOORS, guard, process_wide, scoped
from torch.utils.checkpoint import CheckpointError, checkpoint


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
@pytest.mark.filterwarnings(
    "ignore:There is a performance drop",
    "ignore:The PyTorch API of nested tensors",
    "ignore::DeprecationWarning",
)
def test_the_route_is_split_with_the_unguarded_results(route, door):
    if route.run is selective_checkpoint and not hasattr(
        torch.utils.checkpoint, "create_selective_checkpoint_contexts"
    ):
        pytest.skip("torch before 2.4 has no selective checkpointing")
    expected = route.run()
    with door() as report:
        actual = route.run()
    assert report.split == route.splits(door)
    for one, other in zip(actual, expected):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("door", DOORS)
def test_attention_in_hooks_of_a_judged_call_is_judged_as_well(door):
    expected = in_saved_tensor_hooks()
    with door() as report:
        actual = in_saved_tensor_hooks()
    assert report.calls == report.split > 1
    torch.testing.assert_close(actual, expected)


def test_the_process_wide_guard_leaves_the_native_encoder_as_it_is():
    """Padded rows included, to the last bit."""
    expected = encoder(train=False)
    with process_wide():
        actual = encoder(train=False)
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)
    assert not actual[0][QUERY_PADDING].any()


def test_the_scoped_guard_inside_other_modes_and_outside_of_them():
    expected = step(attend)
    for other in (OtherFunctionMode, OtherDispatchMode, flop_counter, profiler):
        with other(), scoped() as report:
            actual = step(attend)
        assert report.split == 1
        torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_process_wide_guard_covers_every_recompute(reentrant):
    with process_wide() as report:
        step(lambda x: checkpoint(attend, x, use_reentrant=reentrant))
    assert report.split == 2


def test_a_checkpoint_opened_after_the_scope_recomputes_unguarded():
    """use_reentrant=True: the recompute is right, but no longer guarded."""
    with guard() as opened:
        x = query()
        out = checkpoint(attend, x, use_reentrant=True)
    out.sin().sum().backward()
    assert opened.report.split == 1
    torch.testing.assert_close(x.grad, checkpointed(True)()[1])


def test_a_checkpoint_without_reentrance_refuses_a_backward_after_the_scope():
    """use_reentrant=False: torch counts other saved tensors in the recompute and says so."""
    with guard():
        out = checkpoint(attend, query(), use_reentrant=False)
    with pytest.raises(CheckpointError):
        out.sum().backward()


def test_attention_that_ends_a_checkpoint_is_counted_in_the_recompute():
    """torch stops such a recompute inside the last chunk."""
    with guard() as opened:
        step(lambda x: checkpoint(F.scaled_dot_product_attention, x, x, x, use_reentrant=False))
    assert (opened.report.split, opened.report.chunks) == (2, 6)


def test_a_scope_opened_inside_the_checkpoint_covers_its_recompute():
    def guarded(x: torch.Tensor) -> torch.Tensor:
        with opened:
            return attend(x)

    opened = guard()
    actual = step(lambda x: checkpoint(guarded, x, use_reentrant=False))
    assert opened.report.split == 2
    torch.testing.assert_close(actual, checkpointed(False)())
