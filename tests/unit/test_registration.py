"""Where a registration goes."""

from pathlib import Path

import pytest

from sft.registration import registry_place, registry_url

FILE = Path("/results/registry.db")


@pytest.mark.parametrize("url", ["", None])
def test_registry_is_the_file_where_no_url_is_set(monkeypatch, url):
    monkeypatch.delenv("SFT_REGISTRY_URL", raising=False)
    if url is not None:
        monkeypatch.setenv("SFT_REGISTRY_URL", url)

    assert (registry_url(FILE), registry_place(FILE)) == (f"sqlite:///{FILE}", str(FILE))


def test_place_of_a_database_shows_no_password(monkeypatch):
    monkeypatch.setenv("SFT_REGISTRY_URL", "postgresql://me:secret@host/models")

    assert registry_url(FILE).endswith("@host/models")
    assert "secret" not in registry_place(FILE)
