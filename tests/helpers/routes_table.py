"""The README's table of routes: which door sees which way of calling attention."""

from __future__ import annotations

from helpers.eager_routes import ROUTES
from helpers.library_routes import LIBRARIES

LOCAL = (
    "yes, on the local shapes, where torch takes such calls to the local tensors (2.13 does, 2.9 "
    "does not)"
)
PASSED = "passed through untouched: call it on the local tensors"

#: Tested in test_routes.py, or where it is said.
OTHER_ROUTES = [
    (
        "`checkpoint(use_reentrant=True)`, backward after the scope",
        "forward yes; recompute no: keep the backward inside the scope",
        "yes",
    ),
    (
        "`checkpoint(use_reentrant=False)`, backward after the scope",
        "no, torch raises `CheckpointError`: keep the backward inside the scope, or open it "
        "inside the checkpointed function",
        "yes",
    ),
    (
        "nested and jagged tensors, `flex_attention`, tensor subclasses, `torch.fx`",
        "passed through untouched",  # test_passthrough.py
        "passed through untouched",
    ),
    (
        "`CausalBias` masks, and types that make other calls of a call by `__torch_function__`",
        "yes, by what reaches torch in the end",
        "yes, by what reaches torch in the end",
    ),
]

#: Tested in test_compiled.py.
COMPILED = [
    (
        "`torch.compile`, also with `fullgraph=True`, backends eager, aot_eager, inductor",
        "yes; code compiled outside follows the scope from torch 2.5 on",
        "yes; `enable` and `disable` have it compiled anew",
    ),
    (
        "a guard made before and entered inside a compiled function",
        "yes from torch 2.9 on, but not for `nn.MultiheadAttention`: open it around the compiled "
        "call; a guard made inside breaks the graph",
        "yes",
    ),
    ("eager parts of a compiled program, after graph breaks", "yes", "yes"),
    (
        "`torch.export`",
        "yes: the graph holds the chunks",
        "no: the graph keeps the call, which is split when the program runs",
    ),
    ("`make_fx`", "yes: the graph holds the chunks", "yes: the graph holds the chunks"),
    (
        "`make_fx(pre_dispatch=True)`",
        "yes: the graph holds the chunks",
        "no: the graph keeps the call, which is split when it runs",
    ),
]

#: Tested in test_processes.py.
PROCESSES = [
    ("a forked process", "yes", "yes"),
    (
        "a spawned process",
        "no: open the guard in its function",
        "with `SDPA_GUARD` or `run` yes; after `enable()` no: call it there as well",
    ),
]

#: Tested in test_distributed.py.
DISTRIBUTED = [
    ("`DistributedDataParallel`", "yes", "yes"),
    ("FSDP2 (`fully_shard`)", "yes", "yes"),
    (
        "tensor parallel (`parallelize_module`), heads sharded",
        "yes: judged by the heads of each rank",
        "yes: judged by the heads of each rank",
    ),
    ("`DTensor`s as query, key and value", PASSED, PASSED),
    (
        "the same under `torch.inference_mode`",
        LOCAL,
        LOCAL,
    ),
]


def table() -> list[str]:
    """The README's table of routes."""
    rows = [
        "| attention called by | seen by `with SDPAGuard():` | seen by `enable()`, `SDPA_GUARD` |",
        "|---|---|---|",
    ]
    found = [route.row() for route in ROUTES] + OTHER_ROUTES + COMPILED + PROCESSES + DISTRIBUTED
    found += [(route.name, "yes", "yes") for route in LIBRARIES]
    return rows + [f"| {' | '.join(row)} |" for row in found]
