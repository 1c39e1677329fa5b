"""A server under load: lost requests, growth of memory, slots of killed clients, what batching gains.

    python -m eval.serve_load [--model demo] [--requests 200] [--connections 8] [--batch 4] [--port 0] [--out FILE.json]

It starts `lantern serve` and sends it requests as clients do:

    first_rows      seconds from a request to the first picture that shows rows, once warm: median and worst of 5
    load            requests over connections: answered, lost (anything but a picture of the seed's tokens), seconds,
                    the server's resident memory after every tenth of them
    killed          slots that are still taken two seconds after a client was killed in the middle of its stream
    together        seconds of four clients one after another over seconds of four together, by method: plain decoding
                    reads all weights for each client, so it gains most from a batch
"""

import collections
import contextlib
import json
import re
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

from eval.report import report
from lantern_jax.apps.commands import arguments
from lantern_jax.apps.commands.command_line import Parser, run_script
from lantern_jax.io.errors import LanternError

PATH = "/v1/images/generations"
SEEDS = 16
METHODS, TRIALS = ("auto", "ar"), 3


@contextlib.contextmanager
def served(model: str, batch: int, port: int) -> Iterator[tuple[str, int]]:
    """Starts a server; yields its address and process id once it is warm. Raises LanternError if it does not start."""
    flags = ["--model", model, "--batch", str(batch), "--port", str(port)]
    command = [sys.executable, "-m", "lantern_jax", "serve", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            started = re.search(r"(http://\S+)/,", process.stdout.readline())
            if started is None:
                raise LanternError(
                    "the server did not start, as it says above: give another --port or --model"
                )
            url = started[1]
            while not httpx.get(f"{url}/health").json()["warm"]:
                time.sleep(0.2)
            yield url, process.pid
        finally:
            process.terminate()


def megabytes(process: int) -> float:
    """Reads the resident memory of a process."""
    status = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024


def metric(url: str, name: str) -> float:
    """Reads one of the server's metrics."""
    return float(re.search(rf"^lantern_{name} (\S+)$", httpx.get(f"{url}/metrics").text, re.MULTILINE)[1])


def first_rows(url: str, prompt: str) -> list[float]:
    """Measures the seconds until a stream shows a picture, five times."""
    found = []
    for seed in range(5):
        asked = {"prompt": prompt, "seed": seed, "stream": True, "details": True}
        began = time.perf_counter()
        with httpx.stream("POST", url + PATH, json=asked, timeout=600) as response:
            lines = response.iter_lines()
            next(line for line in lines if "b64_json" in line)
            found.append(time.perf_counter() - began)
            collections.deque(lines, maxlen=0)
    return found


def load(url: str, process: int, prompt: str, requests: int, connections: int) -> dict[str, Any]:
    """Sends requests over several connections; a seed must give the same tokens, no matter what runs beside it."""
    digests: dict[int, str] = {}
    memory, lost, done, lock = [], [], [0], threading.Lock()
    clients = [httpx.Client(base_url=url, timeout=600) for _ in range(connections)]

    def ask(number: int) -> None:
        seed = number % SEEDS
        try:
            answer = clients[number % connections].post(PATH, json={"prompt": prompt, "seed": seed})
            digest = answer.json()["data"][0]["lantern"]["digest"]
        except (httpx.HTTPError, KeyError, ValueError) as error:
            lost.append(f"request {number}: {error!r}")
            return
        with lock:
            if digests.setdefault(seed, digest) != digest:
                lost.append(f"request {number}: other tokens than before for seed {seed}")
            done[0] += 1
            if done[0] % max(requests // 10, 1) == 0:
                memory.append(round(megabytes(process)))

    began = time.perf_counter()
    with ThreadPoolExecutor(connections) as pool:
        list(pool.map(ask, range(requests)))
    seconds = time.perf_counter() - began
    for client in clients:
        client.close()
    return {
        "requests": requests,
        "answered": done[0],
        "lost": lost,
        "seconds": round(seconds, 2),
        "pictures_a_second": round(done[0] / seconds, 3),
        "megabytes": memory,
    }


def killed(url: str, prompt: str) -> dict[str, Any]:
    """Counts decoded and waiting pictures before and two seconds after a client leaves in the middle of its stream."""
    host, port = url.removeprefix("http://").split(":")
    body = json.dumps({"prompt": prompt, "n": 10, "stream": True, "details": True}).encode()
    head = f"POST {PATH} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        connection.recv(1024)
        while not metric(url, "decoding"):
            time.sleep(0.01)
        before = metric(url, "decoding") + metric(url, "queue_length")
    time.sleep(2)
    return {"before": before, "after": metric(url, "decoding") + metric(url, "queue_length")}


def together(url: str, prompt: str, method: str, clients: int = 4) -> dict[str, float]:
    """Measures the seconds of clients one after another, and together."""

    # Made beforehand: making a client takes longer than the server waits for other requests.
    with httpx.Client(base_url=url, timeout=600) as client, ThreadPoolExecutor(clients) as pool:

        def ask(seed: int) -> None:
            asked = {"prompt": prompt, "seed": seed, "method": method}
            client.post(PATH, json=asked).raise_for_status()

        began = time.perf_counter()
        for seed in range(clients):
            ask(seed)
        middle = time.perf_counter()
        list(pool.map(ask, range(clients)))
        alone, at_once = middle - began, time.perf_counter() - middle
    return {"one_after_another": alone, "at_once": at_once, "ratio": alone / at_once}


def main(argv: Sequence[str] | None = None) -> None:
    """Starts a server, measures and reports."""
    parser = Parser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=arguments.model, default="demo")
    parser.add_argument("--requests", type=arguments.whole(), default=200)
    parser.add_argument("--connections", type=arguments.whole(), default=8)
    parser.add_argument("--batch", type=arguments.whole(), default=4)
    parser.add_argument("--port", type=arguments.whole(0, 65535), default=0)
    parser.add_argument("--out", type=arguments.new_file)
    given = parser.parse_args(argv)
    began = time.perf_counter()
    with served(given.model, given.batch, given.port) as (url, process):
        found: dict[str, Any] = {"seconds_until_warm": round(time.perf_counter() - began, 1)}
        prompt = httpx.get(f"{url}/v1/models").json()["data"][0]["lantern"]["examples"][0]
        rows = first_rows(url, prompt)
        found["first_rows"] = {"median": statistics.median(rows), "worst": max(rows)}
        # The first trial compiles.
        tried = {name: [together(url, prompt, name) for _ in range(TRIALS + 1)][1:] for name in METHODS}
        found["together"] = tried
        found["killed"] = killed(url, prompt)
        found["load"] = load(url, process, prompt, given.requests, given.connections)
    report(found, given.out)


if __name__ == "__main__":
    run_script(main)
