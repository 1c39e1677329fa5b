"""Fixtures shared by the conversion tests."""

import pytest


@pytest.fixture(scope="session")
def published(tmp_path_factory):
    """{option of ``lantern convert llamagen``: path of a published file}; tests must not change the files."""
    pytest.importorskip("torch")
    from tests.published_files import write_published

    return write_published(tmp_path_factory.mktemp("published"))
