"""``check``: one call judged by its shape alone."""

from __future__ import annotations

import json

import pytest
import torch

from sdpa_guard import check

SHAPE = (400, 4, 10496, 128)


def test_it_names_the_limit_the_count_and_the_plan():
    verdict = check(*SHAPE, torch_version="2.9.0")
    (finding,) = [f for f in verdict.findings if f.over]
    assert not verdict.ok
    assert finding.limit.id == "F1"
    assert (finding.counted, finding.bound) == (2149580800, 2147483648)
    assert finding.ratio == finding.counted / finding.bound
    assert (verdict.plan.axis, verdict.plan.sizes, len(verdict.plan)) == ("batch", (200, 200), 2)
    assert verdict.plan.inner is None


def test_a_call_that_fits_has_no_plan():
    verdict = check(*SHAPE, torch_version="2.12.0")
    assert verdict.ok
    assert verdict.plan is None
    assert "fits in one call" in str(verdict)


def test_the_installed_release_is_the_default():
    release = torch.__version__.split("+")[0]
    assert check(*SHAPE).as_dict() == check(*SHAPE, torch_version=release).as_dict()


def test_any_release_is_the_worst_of_all():
    worst = check(70000, 4, 8, 64, torch_version="any", backends=["efficient"])
    newest = check(70000, 4, 8, 64, torch_version="2.14.1", backends=["efficient"])
    assert [f.limit.id for f in worst.findings if f.over] == ["E1"]
    assert newest.ok


@pytest.mark.parametrize(
    ("facts", "over"),
    [
        ({}, {"F1"}),
        ({"requires_grad": False}, set()),
        ({"dtype": torch.float32}, set()),
        ({"dtype": torch.float64}, set()),
        ({"mask": True, "seq_k": 128}, set()),
        ({"seq_k": 128, "is_causal": True}, set()),
        ({"is_causal": True}, {"F1"}),
        ({"kv_heads": 2}, {"F1"}),
        ({"backends": ["efficient", "cudnn"]}, set()),
        ({"backends": []}, set()),
        ({"dropout_p": 0.1}, {"F1", "E7b"}),
    ],
    ids=lambda value: ", ".join(sorted(value)) if isinstance(value, set) else str(value),
)
def test_what_could_take_the_call_decides(facts, over):
    verdict = check(*SHAPE, torch_version="2.9.0", **facts)
    assert {f.limit.id for f in verdict.findings if f.over} == over
    assert verdict.ok == (not over)


def test_no_fused_backend_at_all():
    verdict = check(*SHAPE, dtype=torch.float64)
    assert verdict.ok
    assert verdict.findings == ()
    assert "no fused backend takes it" in str(verdict)


@pytest.mark.parametrize(
    ("backends", "facts", "said"),
    [
        (["cudnn"], {}, "cudnn could take it, with no known limit"),
        (["cudnn"], {"dtype": torch.float32}, "cudnn would not take it"),
        (["flash", "cudnn"], {"dtype": torch.float32}, "flash and cudnn would not take it"),
        ([], {}, "no backend was asked about"),
    ],
)
def test_no_finding_is_no_word_of_all_backends(backends, facts, said):
    verdict = check(8, 4, 1024, 64, torch_version="2.13.0", backends=backends, **facts)
    assert verdict.findings == ()
    assert str(verdict).endswith(f"fits in one call; {said}")


class Index:
    """A whole number of another library, such as numpy's, which may be 32 bits wide."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __index__(self) -> int:
        return self._number


def test_whole_numbers_of_other_libraries_are_plain_numbers():
    assert check(*map(Index, SHAPE)).as_dict() == check(*SHAPE).as_dict()


@pytest.mark.parametrize("torch_version", ["any", "2.9.0"])
def test_the_table_fits_and_the_dict_is_json(torch_version):
    verdict = check(2, 64, 2**19, 128, torch_version=torch_version)
    assert max(map(len, str(verdict).splitlines())) <= 100
    plain = json.loads(json.dumps(verdict.as_dict()))
    assert plain["ok"] is False
    assert plain["plan"]["calls"] == len(verdict.plan)
    assert plain["torch"] == torch_version
    assert {f["limit"] for f in plain["findings"] if f["over"]} >= {"F1", "E9b"}


@pytest.mark.parametrize(
    ("error", "match", "shape", "facts"),
    [
        (ValueError, "batch must be 1 or more, .* not 0", (0, 1, 1, 1), {}),
        (ValueError, "at most", (10**400, 1, 128, 64), {}),
        (TypeError, "mask must be True or False", (1, 1, 1, 1), {"mask": "no"}),
        (ValueError, "head_dim must be 1 or more, .* not -8", (1, 1, 1, -8), {}),
        (TypeError, "heads must be a whole number, not 4.0", (1, 4.0, 1, 1), {}),
        (TypeError, "seq_q must be a whole number, not True", (1, 1, True, 1), {}),
        (TypeError, "seq_k must be a whole number, not '7'", (1, 1, 1, 1), {"seq_k": "7"}),
        (ValueError, "kv_heads must divide heads", (1, 4, 1, 1), {"kv_heads": 3}),
        (TypeError, "dtype must be a torch.dtype", (1, 1, 1, 1), {"dtype": "bfloat16"}),
        (ValueError, "dropout_p must be between 0 and 1", (1, 1, 1, 1), {"dropout_p": 2}),
        (TypeError, "dropout_p must be a number", (1, 1, 1, 1), {"dropout_p": "half"}),
        (ValueError, "mask must be False", (1, 1, 1, 1), {"mask": True, "is_causal": True}),
        (ValueError, "without a mask", (1, 1, 1, 1), {"mask_requires_grad": True}),
        (ValueError, "backends must be among flash", (1, 1, 1, 1), {"backends": ["math"]}),
        (TypeError, "backends must be a tuple", (1, 1, 1, 1), {"backends": "flash"}),
        (ValueError, "torch_version must be", (1, 1, 1, 1), {"torch_version": "new"}),
    ],
)
def test_a_wrong_argument_names_what_is_allowed(error, match, shape, facts):
    with pytest.raises(error, match=match):
        check(*shape, **facts)
