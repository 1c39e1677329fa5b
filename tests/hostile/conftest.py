"""Work that hangs ends."""

import signal

import pytest


class Hung(BaseException):
    pass


@pytest.fixture
def deadline():
    """A function: from then on so many seconds are left; 0 for any number."""

    def hung(*_):
        raise Hung

    before = signal.signal(signal.SIGALRM, hung)
    yield signal.alarm
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
