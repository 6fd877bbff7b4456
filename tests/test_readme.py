"""The README's tables say what the code says. ``python tests/test_readme.py`` prints them anew."""

from __future__ import annotations

from pathlib import Path

from test_routes import table as routes_table

from sdpa_guard import LIMITS

README = Path(__file__).parent.parent / "README.md"


def limits_table() -> list[str]:
    """One row a limit, in the registry's order."""
    columns = "id, limit, backend and pass, counts, bound, torch, past the bound, cure, known by"
    rows = [f"| {columns.replace(', ', ' | ')} |", "|---" * 9 + "|"]
    for limit in LIMITS:
        cure = ", ".join(limit.cures) or "none"
        known = f"[{', '.join(limit.evidence)}]({limit.source})"
        rows.append(
            f"| {limit.id} | {limit.name} | {limit.backend}, {limit.pass_} | {limit.formula} "
            f"| {limit.bound} | {limit.releases} | {limit.effect} | {cure} | {known} |"
        )
    return rows


def test_the_readme_has_the_registry():
    assert "\n".join(limits_table()) in README.read_text()


def test_the_readme_has_the_table_of_routes():
    assert "\n".join(routes_table()) in README.read_text()


if __name__ == "__main__":
    print("\n".join([*routes_table(), "", *limits_table()]))
