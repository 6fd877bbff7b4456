"""The private names of torch: all there on this release, and what works without them."""

from __future__ import annotations

import json
import pkgutil
import re
from pathlib import Path

import pytest
from helpers.child import python
from helpers.inside import RUNNING_TORCH

from sdpa_guard import LIMITS, torch_private

ROOT = Path(__file__).parent.parent
HERE = [name for name in torch_private.NAMES if name.is_in(RUNNING_TORCH)]
#: Only the package is told that they are gone: torch itself needs some.
PROGRAM = """
import contextlib, io, json, pkgutil, sys
from sdpa_guard import torch_private

gone = {name.path for name in torch_private.NAMES}
names = [name for name in sys.modules if name.partition(".")[0].startswith("sdpa_guard")]
for name in names:
    del sys.modules[name]
resolve_name = pkgutil.resolve_name

def without_them(path):
    if path in gone:
        raise AttributeError(path)
    return resolve_name(path)

pkgutil.resolve_name = without_them
import torch
import sdpa_guard
from sdpa_guard.cli.main import main

said = {"check": sdpa_guard.check(400, 4, 10496, 128, torch_version="2.9.0").ok}
for command in (["check", "1x1x8x8"], ["limits", "--json"], ["doctor", "--json"]):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        status = main(command)
    said[command[0] + " command"] = status, out.getvalue()

def attempt(act):
    try:
        act()
        return "done"
    except sdpa_guard.SDPAGuardError as missing:
        return str(missing)

x = torch.ones(1, 1, 2, 2)
said["scope"] = attempt(sdpa_guard.SDPAGuard().__enter__)
said["enable"] = attempt(sdpa_guard.enable)
said["disable"] = attempt(sdpa_guard.disable)
said["rehearse"] = attempt(lambda: sdpa_guard.rehearse(torch.nn.Linear(1, 1), x))
said["enabled"] = sdpa_guard.is_enabled()
said["attention"] = torch.nn.functional.scaled_dot_product_attention(x, x, x).tolist()
print(json.dumps(said))
"""


@pytest.mark.parametrize("name", HERE, ids=lambda name: name.path)
def test_this_release_has_the_name(name):
    pkgutil.resolve_name(name.path)


def test_nothing_is_missing_here():
    torch_private.need_all()


def test_without_them_only_guarding_fails_and_says_what_is_missing():
    said = json.loads(python("-c", PROGRAM)[0])
    assert said["check"] is False
    assert said["check command"][0] == 0
    assert said["limits command"][0] == 0
    assert len(json.loads(said["limits command"][1])) == len(LIMITS)
    found = json.loads(said["doctor command"][1])
    assert found["limits"]
    for door in ("scope", "enable", "rehearse"):
        assert "has no torch" in said[door]
        for name in HERE:
            assert name.path.replace(":", ".") in said[door]
    assert said["disable"] == "done"
    assert said["enabled"] is False
    assert said["attention"] == [[[[1, 1], [1, 1]]]]


def test_no_other_module_holds_a_private_name():
    """The linter's rule sees attributes; this sees imports and dotted names in strings as well."""
    private = re.compile(r"\btorch(\.\w+)*[.:]_(?!_)\w+")
    for file in (ROOT / "sdpa_guard").rglob("*.py"):
        if file.name != "torch_private.py":
            found = private.search(file.read_text())
            assert found is None, f"{file}: {found}"
