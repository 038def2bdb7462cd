"""What docs/checks.md says of LLaMA-Factory alone is what it does; --update-golden writes it."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.trainer.measure_alone import Measured, measure_all, update

DOCUMENT = Path(__file__).parents[2] / "docs" / "checks.md"


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Measured]:
    """What is measured now, by input; it takes a minute."""
    return measure_all(tmp_path_factory.mktemp("alone"))


def test_document_says_what_was_measured(measured, request):
    document = DOCUMENT.read_text()
    expected = update(document, measured)
    if request.config.getoption("--update-golden"):
        DOCUMENT.write_text(expected)
        document = expected

    assert document.splitlines() == expected.splitlines()
