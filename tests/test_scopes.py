"""The scoped door: nesting, re-entry, exceptions, other modes, policies, messages."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import textwrap
import threading
import warnings

import pytest
import torch
from helpers.autocast import cuda_autocast
from helpers.child import python
from helpers.lowered import BY_ID
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from sdpa_guard import OversizedCallError, SDPAGuard, SDPAGuardError, SDPAGuardWarning
from sdpa_guard.testing import record_calls

BATCH = BY_ID["F2b"]


def guard(policy: str = "split", bound: int = 2, **options: object) -> SDPAGuard:
    limits = [dataclasses.replace(BATCH, bound=bound)]
    return SDPAGuard(policy, limits=limits, device_types=("cpu",), **options)


def attend(batch: int = 5) -> torch.Tensor:
    query = torch.ones(batch, 2, 4, 8)
    return scaled_dot_product_attention(query, query, query)


def repeat(function, *args, **kwargs) -> list[torch.Tensor]:
    return [function(*args, **kwargs) for _ in range(3)]


def test_nothing_is_left_behind():
    with guard():
        attend()
    with record_calls() as calls:
        attend()
    assert len(calls) == 1


def test_the_inner_settings_win_and_each_call_counts_once():
    with record_calls() as calls, guard() as outer:
        attend()
        with guard(bound=1) as inner:
            attend()
        attend()
    assert [call.query[0] for call in calls] == [2, 2, 1] + [1] * 5 + [2, 2, 1]
    assert (outer.report.calls, outer.report.split, outer.report.chunks) == (2, 2, 6)
    assert (inner.report.calls, inner.report.split, inner.report.chunks) == (1, 1, 5)


def test_the_inner_settings_win_over_lower_ones_outside():
    with guard(bound=1) as outer, guard(bound=3) as inner:
        attend()
    assert (outer.report.calls, inner.report.chunks) == (0, 2)


def test_a_guard_is_reusable_and_reentrant():
    opened = guard()
    for _ in range(2):
        with opened:
            attend()
    with opened, opened:
        attend()
    assert (opened.report.calls, opened.report.chunks) == (3, 9)


def test_an_exception_closes_the_scope():
    opened = guard()
    with contextlib.suppress(ZeroDivisionError), opened:
        attend()
        raise ZeroDivisionError
    with record_calls() as calls:
        attend()
    assert len(calls) == 1
    with opened:
        attend()
    assert (opened.report.calls, opened.report.split) == (2, 2)


def test_a_call_that_torch_refuses_counts_what_reached_torch():
    query = torch.ones(5, 2, 4, 8)
    with guard() as opened:
        with pytest.raises(RuntimeError, match="dropout"):
            scaled_dot_product_attention(query, query, query, dropout_p=1.5)
        attend()
    assert (opened.report.calls, opened.report.split, opened.report.chunks) == (2, 2, 4)


def test_scopes_of_other_threads_are_their_own():
    counts = {}

    def work(name: str, bound: int) -> None:
        with guard(bound=bound) as opened:
            for _ in range(50):
                attend()
            counts[name] = opened.report.chunks

    threads = [threading.Thread(target=work, args=(str(bound), bound)) for bound in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == {"1": 250, "2": 150, "3": 100}


def test_a_guard_shared_by_threads_counts_every_call():
    shared = guard()

    def work() -> None:
        for _ in range(50):
            with shared:
                attend()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (shared.report.calls, shared.report.chunks) == (200, 600)


class Seen(TorchFunctionMode):
    """Somebody else's mode."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[int] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is scaled_dot_product_attention:
            self.shapes.append(args[0].shape[0])
        return func(*args, **(kwargs or {}))


def test_other_function_modes_keep_working():
    above, below = Seen(), Seen()
    with below, guard() as opened, above:
        attend()
    assert above.shapes == [5]
    assert below.shapes == [2, 2, 1]
    assert opened.report.split == 1


def test_device_contexts_keep_working():
    with torch.device("meta"), guard(), torch.device("cpu"):
        assert torch.ones(2).device.type == "cpu"
        assert attend().device.type == "cpu"


def test_a_call_of_a_script_counts_once_and_is_no_modes_to_see():
    """C++ code makes it, past all modes."""

    @torch.jit.script
    def script(query: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(query, query, query)

    for batch, split in ((5, 1), (2, 0)):
        query = torch.ones(batch, 2, 4, 8)
        with guard() as opened, Seen() as above:
            for _ in range(2):
                script(query)
        assert (opened.report.calls, opened.report.split) == (2, 2 * split)
        assert above.shapes == []


@pytest.mark.parametrize("outside", [True, False])
def test_the_flop_counter_counts_the_same(outside):
    query = torch.ones(5, 2, 4, 8, dtype=torch.float64, requires_grad=True)
    mask = torch.zeros(4, 4, dtype=torch.float64, requires_grad=True)  # the math path has formulas
    limits = [dataclasses.replace(BATCH, backend="efficient", bound=2)]

    def flops(*contexts: contextlib.AbstractContextManager[object]) -> int:
        counter = FlopCounterMode(display=False)
        with contextlib.ExitStack() as stack:
            for context in (counter, *contexts) if outside else (*contexts, counter):
                stack.enter_context(context)
            scaled_dot_product_attention(query, query, query, mask).sum().backward()
        return counter.get_total_flops()

    opened = SDPAGuard(limits=limits, device_types=("cpu",))
    assert flops(opened) == flops() > 0
    assert opened.report.split == 1


def test_raise_comes_before_any_kernel():
    with record_calls() as calls, guard("raise") as opened:
        attend(batch=2)
        with pytest.raises(OversizedCallError) as caught:
            attend()
    assert len(calls) == 1
    assert isinstance(caught.value, SDPAGuardError)
    message = str(caught.value)
    for part in (__file__, "F2b (flash grid, batch)", "5 > bound 2", "launched", "3 calls of"):
        assert part in message
    assert opened.report.split == 0


def test_warn_leaves_the_call_and_warns_once_a_line():
    with (
        record_calls() as calls,
        guard("warn") as opened,
        warnings.catch_warnings(record=True) as w,
    ):
        warnings.simplefilter("always")
        for _ in range(3):
            attend()
        torch.nn.functional.scaled_dot_product_attention(*[torch.ones(4, 1, 2, 2)] * 3)
    assert [call.query[0] for call in calls] == [5, 5, 5, 4]
    assert [(warning.category, warning.filename) for warning in w] == [
        (SDPAGuardWarning, __file__)
    ] * 2
    assert w[0].lineno != w[1].lineno
    assert 'SDPAGuard(policy="split")' in str(w[0].message)
    assert (opened.report.calls, opened.report.split) == (4, 0)


def test_an_unsplittable_call_is_left_with_one_warning():
    rows = [dataclasses.replace(BATCH, counted=lambda call: call.seq_q, cures=("rows",), bound=2)]
    query = torch.ones(1, 1, 4, 8)
    opened = SDPAGuard(limits=rows, device_types=("cpu",))
    with record_calls() as calls, opened, pytest.warns(SDPAGuardWarning) as caught:
        repeat(scaled_dot_product_attention, query, query, query, is_causal=True)
    assert len(caught) == 1
    assert "is_causal forbids splitting query rows" in str(caught[0].message)
    assert (len(calls), opened.report.unsplittable, opened.report.split) == (3, 3, 0)
    assert "unsplittable" in str(opened.report).splitlines()[-1]


def test_a_fault_of_the_guards_own_leaves_the_call_with_one_warning():
    broken = dataclasses.replace(BATCH, counted=lambda call: 1 // 0)
    opened = SDPAGuard(limits=[broken], device_types=("cpu",))
    with record_calls() as calls, opened, pytest.warns(SDPAGuardWarning) as caught:
        results = repeat(attend)
    assert len(caught) == 1
    assert "could not judge" in str(caught[0].message)
    assert "ZeroDivisionError" in str(caught[0].message)
    assert [call.query[0] for call in calls] == [5, 5, 5]
    torch.testing.assert_close(results[0], attend())


def test_a_warning_turned_into_an_error_reaches_the_user():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with guard("warn"):
            for _ in range(2):
                with pytest.raises(SDPAGuardWarning):
                    attend()


@pytest.mark.parametrize(
    ("error", "match", "arguments"),
    [
        (ValueError, "policy must be one of split, warn, raise, not 'slice'", {"policy": "slice"}),
        (ValueError, "policy must be one of", {"policy": None}),
        (ValueError, "torch_version must be a release", {"torch_version": "newest"}),
        (ValueError, "torch_version must be 2.3.0 or later", {"torch_version": "1.13.1"}),
        (TypeError, "torch_version must be a string", {"torch_version": 2.9}),
        (ValueError, "device_types must be among cpu, cuda, meta", {"device_types": ("xpu",)}),
        (TypeError, "device_types must be a tuple", {"device_types": "cuda"}),
        (TypeError, "device_types must be a tuple of names", {"device_types": None}),
        (TypeError, "limits must be Limit objects", {"limits": ["F1"]}),
        (TypeError, "limits must be .* not 'F1'", {"limits": "F1"}),
        (TypeError, "limits must be", {"limits": 5}),
    ],
)
def test_a_wrong_argument_names_what_is_allowed(error, match, arguments):
    with pytest.raises(error, match=match):
        SDPAGuard(**arguments)


def test_a_local_version_is_its_release():
    with SDPAGuard(torch_version="2.12.0+cu130") as opened:
        query = torch.empty(400, 4, 10496, 128, dtype=torch.bfloat16, device="meta")
        query.requires_grad_()
        scaled_dot_product_attention(query, query, query)
    assert opened.report.split == 0


def test_the_report_is_a_table_and_json():
    with guard() as opened:
        for _ in range(2):
            attend()
        attend(batch=1)
    table = str(opened.report)
    assert max(map(len, table.splitlines())) <= 100
    for part in (
        "3 attention calls, 2 split into 6 chunks",
        "250.0%",
        "5x2x4x8 float32",
        "test_sc",
    ):
        assert part in table
    plain = json.loads(json.dumps(opened.report.as_dict()))
    assert (plain["calls"], plain["split"], plain["chunks"]) == (3, 2, 6)
    assert plain["ratios"] == {"F2b": 2.5}
    (site,) = plain["sites"]
    assert (site["file"], site["calls"]) == (__file__, 2)
    assert site["plan"]["sizes"] == [2, 2, 1]


def test_the_repr_of_a_report_is_one_line():
    with guard() as opened:
        attend()
    assert repr(opened.report) == "<Report calls=1 split=1 chunks=3>"


def test_a_call_that_was_left_is_listed_as_left():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with guard("warn") as opened:
            attend()
    assert "left; 3 calls of 1 or 2 batch entries" in " ".join(str(opened.report).split())
    assert opened.report.as_dict()["sites"][0]["split"] is False


def test_the_report_fits_with_a_long_path_and_a_deep_plan():
    query = torch.empty(2, 64, 2**19, 128, dtype=torch.bfloat16, device="meta", requires_grad=True)
    with SDPAGuard(torch_version="2.9.0") as opened:
        scaled_dot_product_attention(query, query, query)
    assert max(map(len, str(opened.report).splitlines())) <= 100


def test_autocast_counts_as_the_kernel_sees_it():
    limits = [dataclasses.replace(BATCH, bound=2)]
    query = torch.empty(5, 2, 4, 8, device="meta")
    with SDPAGuard(limits=limits) as opened:
        scaled_dot_product_attention(query, query, query)
        assert opened.report.split == 0  # float32 is no flash call
        with cuda_autocast():
            scaled_dot_product_attention(query, query, query)
    assert opened.report.split == 1
    assert "bfloat16" in opened.report.as_dict()["sites"][0]["shape"]


def test_autocast_makes_a_new_tensor_of_an_expanded_mask():
    query = torch.empty(1, 1, 70000, 64, device="meta")
    mask = torch.empty(1, 1, 1, 70000, device="meta").expand(1, 1, 70000, 70000)
    with cuda_autocast(), SDPAGuard(torch_version="2.9.0") as opened:
        scaled_dot_product_attention(query, query, query, mask)
    assert opened.report.as_dict()["sites"][0]["fullest"]["limit"] == "E6"


def test_cpu_autocast_gives_the_unguarded_result():
    query = torch.randn(5, 2, 4, 8, requires_grad=True)
    results = []
    for opened in (None, guard()):
        with torch.autocast("cpu", torch.bfloat16):
            if opened is None:
                results.append(scaled_dot_product_attention(query, query, query))
            else:
                with opened:
                    results.append(scaled_dot_product_attention(query, query, query))
    assert results[0].dtype is results[1].dtype is torch.bfloat16
    torch.testing.assert_close(*results)


def test_somebody_elses_kernel_does_not_stop_the_run():
    """In a process of its own: our kernel may be left in this one, where other threads run."""
    code = """
    import sdpa_guard, warnings, torch
    from helpers.route import LOWERED
    from helpers.torch_inside import call_the_composite_kernel, take_back

    def attend(batch=5):
        query = torch.ones(batch, 2, 4, 8)
        return torch.nn.functional.scaled_dot_product_attention(query, query, query)

    def guard():
        return sdpa_guard.SDPAGuard(limits=LOWERED, device_types=("cpu",))

    library = torch.library.Library("aten", "IMPL")
    made = []

    def theirs(*args, **kwargs):
        made.append(args[0].shape[0])
        return call_the_composite_kernel(*args, **kwargs)

    library.impl("scaled_dot_product_attention", theirs, "AutogradCPU")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with guard() as opened:
            attend()
            for _ in range(3):  # inside the bound
                attend(batch=1)
    print(opened.report.split, made.count(1), [type(w.message).__name__ for w in said])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for enter in (guard().__enter__, lambda: sdpa_guard.enable(device_types=("cpu",))):
            try:
                enter()
            except sdpa_guard.SDPAGuardWarning:
                print(sdpa_guard.is_enabled())
    take_back(library)
    del library  # torch 2.3 holds the key until then
    with guard() as opened:
        attend()
    print(opened.report.split, len(made))
    """
    printed = python("-c", textwrap.dedent(code))[0].splitlines()
    assert printed == ["1 4 ['SDPAGuardWarning']", "False", "False", "1 6"]
