"""What tests of conversion share."""

import pytest


@pytest.fixture(scope="session")
def published(tmp_path_factory):
    """{option of ``lantern convert llamagen``: path of a published file}; tests leave them as they are."""
    pytest.importorskip("torch")
    from tests.published_files import write_published

    return write_published(tmp_path_factory.mktemp("published"))
