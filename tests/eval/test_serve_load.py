"""``eval.serve_load`` with a server that does not start."""

import subprocess
import sys

from eval import serve_load
from tests.refused import refused


def test_a_server_that_ends_immediately_is_reported_in_one_line(monkeypatch):
    start = subprocess.Popen

    def ends(command, **options):
        return start([sys.executable, "-S", "-c", ""], **options)

    monkeypatch.setattr(serve_load.subprocess, "Popen", ends)
    with refused("the server did not start"), serve_load.served("demo", 1, 80):
        pass
