"""A deadline that ends work which hangs."""

import signal

import pytest


class Hung(BaseException):
    pass


@pytest.fixture
def deadline():
    """Yields a function that sets how many seconds are left from then on; 0 sets no limit."""

    def hung(*_):
        raise Hung

    before = signal.signal(signal.SIGALRM, hung)
    yield signal.alarm
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
