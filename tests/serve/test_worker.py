"""The server's worker: places in its queue, what it ignores of prompts, and how it ends by an error."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from tests.serve.running import Gate, running
from tests.serve.test_pictures import PLAIN, codes_of


def test_an_error_that_ends_the_worker_ends_every_request(server, caplog):
    def fail():
        raise RuntimeError("no lock")

    with pytest.MonkeyPatch.context() as monkeypatch, running(server.library()) as failing:
        gate = Gate(failing.engine, monkeypatch)
        with ThreadPoolExecutor(2) as clients:
            first = clients.submit(failing.ask)
            failing.wait_for(decoding=1)
            second = clients.submit(partial(failing.ask, temperature=0.5))
            failing.wait_for(queue_length=1)
            monkeypatch.setattr(failing.worker, "_wait", fail)
            gate.open()
            assert first.result().status_code == 200
            for refused in (second.result(5), failing.ask()):
                assert refused.status_code == 503 and "start it again" in refused.json()["error"]["message"]
        health = failing.client.get("/health")
        assert (health.status_code, health.json()["status"]) == (503, "failed")
    assert "no lock" in caplog.text


@pytest.mark.filterwarnings("ignore::lantern_jax.IgnoredWords")
def test_unknown_words_are_ignored_with_a_note(server):
    answer = server.ask(prompt="a castle by a lake, bad weather", negative_prompt="fog frog", **PLAIN)
    known = "'weather' (say which: clear, cloudy, foggy, snowy, stormy)"
    assert answer.json()["lantern"]["notes"] == [
        f"ignored, the model does not know: 'castle', 'bad', {known}",
        "negative_prompt: ignored, the model does not know: 'frog' (did you mean fog?)",
    ]
    assert codes_of(server.ask(prompt="a castle by a lake", details=True, seed=1, **PLAIN)).tolist() == (
        server.library().generate("a lake", seed=1, **PLAIN).tokens.tolist()
    )
    for prompt, words in (
        ("a castle", "unknown word 'castle'"),
        ("a lake without fog", "give 'fog' as negative_prompt"),
    ):
        error = server.ask(prompt=prompt).json()["error"]
        assert error["param"] == "prompt" and words in error["message"]
