"""The process-wide door: enable, disable, is_enabled, report."""

from __future__ import annotations

import dataclasses
import json
import warnings

import pytest
import torch
from helpers.child import python
from helpers.kernel_checks import CHECKS
from helpers.route import DEVICE_TYPES, LOWERED, process_wide, scoped
from torch.nn.functional import scaled_dot_product_attention

import sdpa_guard
from sdpa_guard import OversizedCallError, SDPAGuard, SDPAGuardWarning
from sdpa_guard.testing import record_calls


@pytest.fixture(autouse=True)
def _nothing_stays_enabled():
    yield
    sdpa_guard.disable()


def enable(policy: str = "split", bound: int = 2, **options: object) -> None:
    limits = [dataclasses.replace(limit, bound=bound) for limit in LOWERED]
    sdpa_guard.enable(policy, limits=limits, device_types=DEVICE_TYPES, **options)


def attend(batch: int = 5) -> torch.Tensor:
    query = torch.ones(batch, 2, 4, 8)
    return scaled_dot_product_attention(query, query, query)


@pytest.fixture(scope="module")
def wrong() -> dict[str, str | None]:
    """What the checks found in a process of their own."""
    found: dict[str, str | None] = json.loads(python("-m", "helpers.kernel_checks")[0])
    return found


@pytest.mark.parametrize("check", CHECKS)
def test_torch_has_its_own_kernels_back(check, wrong):
    assert wrong[check] is None


def test_the_report_stays_after_disable_and_begins_anew_with_enable():
    enable()
    attend()
    sdpa_guard.disable()
    attend()
    first = sdpa_guard.report()
    assert (first.calls, first.split, first.chunks) == (1, 1, 3)
    enable()
    attend()
    attend()
    assert (sdpa_guard.report().calls, first.calls) == (2, 1)


def test_enabling_again_replaces_the_settings():
    enable(bound=1)
    enable(bound=4)
    with record_calls() as calls:
        attend()
    assert [call.query[0] for call in calls] == [3, 2]
    sdpa_guard.disable()
    sdpa_guard.disable()
    with record_calls() as calls:
        attend()
    assert [call.query[0] for call in calls] == [5]


def test_enabling_for_other_devices_leaves_the_first_ones_alone():
    enable()
    sdpa_guard.enable(limits=LOWERED, device_types=("meta",))
    attend()
    assert sdpa_guard.report().calls == 0


@pytest.mark.parametrize("inner_bound", [1, 4])
def test_inside_a_scope_its_settings_win_and_each_call_counts_once(inner_bound):
    enable()
    limits = [dataclasses.replace(limit, bound=inner_bound) for limit in LOWERED]
    attend()
    with SDPAGuard(limits=limits, device_types=DEVICE_TYPES) as inner:
        attend()
    attend()
    assert (sdpa_guard.report().calls, inner.report.calls) == (2, 1)
    assert inner.report.chunks == (5 if inner_bound == 1 else 2)


def test_a_scope_may_outlive_the_process_wide_guard_and_the_other_way_around():
    with scoped() as inner:
        enable()
        attend()
        sdpa_guard.disable()
        attend()
        enable()
    attend()
    assert (inner.split, sdpa_guard.report().split) == (2, 1)


def test_policies_and_wrong_arguments_are_the_scoped_guards():
    enable("raise")
    with pytest.raises(OversizedCallError, match=r"test_process_wide\.py:\d+"):
        attend()
    enable("warn")
    with pytest.warns(SDPAGuardWarning, match=r"F2b .*: counted 5 > bound 2"):
        attend()
    with pytest.raises(ValueError, match="policy must be one of split, warn, raise"):
        sdpa_guard.enable("slice")
    with pytest.raises(TypeError, match="limits must be Limit objects"):
        sdpa_guard.enable(limits=["F1"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        attend()
    assert sdpa_guard.report().calls == 2  # a wrong argument changes nothing


def test_a_rehearsal_needs_no_lowered_limits():
    sdpa_guard.enable(torch_version="2.9.0")
    query = torch.empty(400, 4, 10496, 128, dtype=torch.bfloat16, device="meta", requires_grad=True)
    assert scaled_dot_product_attention(query, query, query).shape == query.shape
    assert (sdpa_guard.report().split, sdpa_guard.report().chunks) == (1, 2)


def test_torch_prints_nothing_about_our_kernels(capfd):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            with process_wide(), scoped():
                attend()
    assert capfd.readouterr() == ("", "")
