"""`python -m tools.reference`: write the pages of docs/reference."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tools.reference import api, config, errors, evidence, metrics

FOLDER = Path(__file__).parents[2] / "docs" / "reference"
PAGES: dict[str, Callable[[], str]] = {
    "api.md": api.page,
    "config.md": config.page,
    "evidence.md": evidence.page,
    "metrics.md": metrics.page,
    "troubleshooting.md": errors.page,
}


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page())
        print(FOLDER / name)


if __name__ == "__main__":
    main()
