"""A server among clients that mean no good: how long others wait, and how much memory settings of all kinds leave.

    python -m eval.serve_storm [--model demo] [--silent 1010] [--slow 60] [--again 5] [--seconds 60] [--storms 2]
        [--requests 200] [--programs 16] [--out FILE.json]

It starts `lantern serve` on this machine and asks nobody else:

    alone           seconds of `/health` and of a picture while nobody else is there: median and worst
    crowd           the same while connections that say nothing and such that send a byte of their headers a second are
                    held, each begun again some seconds after the server ended it; and what it ended how many for
    storms          after each storm of requests, every one of which compiles programs of its own: answers by status,
                    the server's memory in MB, programs that are kept and dropped
"""

import asyncio
import collections
import json
import random
import statistics
import threading
import time
from collections.abc import Sequence
from typing import Any

import httpx

from eval.serve_load import PATH, megabytes, metric, served
from lantern_jax.commands import arguments
from lantern_jax.commands.command_line import Parser, run_script
from lantern_jax.io.errors import LanternError
from lantern_jax.io.files import write_file
from lantern_jax.serve.server import connections_of_files

HEADERS = b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Slow: " + b"a" * 1000


class Crowd(threading.Thread):
    """Connections that are held until ``stop``; ``begun`` counts all that there were."""

    def __init__(self, url: str, silent: int, slow: int, again: int):
        super().__init__(daemon=True)
        self._host, port = url.removeprefix("http://").split(":")
        self._port, self._counts, self._again = int(port), (silent, slow), again
        self.begun, self.open, self._stopped = 0, 0, False

    def run(self) -> None:
        """Holds them."""
        asyncio.run(self._hold())

    def stop(self) -> None:
        """Lets go of them."""
        self._stopped = True
        self.join()

    async def _hold(self) -> None:
        silent, slow = self._counts
        await asyncio.gather(*(self._client(number < slow) for number in range(silent + slow)))

    async def _client(self, slow: bool) -> None:
        while not self._stopped:
            try:
                reader, writer = await asyncio.open_connection(self._host, self._port)
            except OSError:
                await self._rest()
                continue
            self.begun, self.open = self.begun + 1, self.open + 1
            try:
                for byte in HEADERS:
                    if slow:
                        writer.write(bytes([byte]))
                    if self._stopped or await self._ended(reader):
                        break
            except ConnectionError:
                pass
            finally:
                self.open -= 1
                writer.transport.abort()
            await self._rest()

    async def _rest(self) -> None:
        for _ in range(4 * self._again):
            if not self._stopped:
                await asyncio.sleep(0.25)

    async def _ended(self, reader: asyncio.StreamReader) -> bool:
        """Whether the server ends the connection within a second."""
        try:
            return not await asyncio.wait_for(reader.read(4096), 1)
        except TimeoutError:
            return False


def waited(url: str, prompt: str, seconds: float, pictures: int) -> dict[str, Any]:
    """Seconds of requests, each over a connection of its own, for so long: of `/health` all the while, of pictures now
    and then."""
    found: dict[str, list[float]] = {"health": [], "picture": []}
    end = time.perf_counter() + seconds

    def ask(kind: str, method: str, path: str, **options: Any) -> None:
        began = time.perf_counter()
        httpx.request(method, url + path, timeout=600, **options).raise_for_status()
        found[kind].append(time.perf_counter() - began)

    def paint() -> None:
        for seed in range(pictures):
            ask("picture", "POST", PATH, json={"prompt": prompt, "seed": seed})
            time.sleep(max(0, end - time.perf_counter()) / max(pictures - seed, 1) / 2)

    painter = threading.Thread(target=paint)
    painter.start()
    while time.perf_counter() < end or painter.is_alive():
        ask("health", "GET", "/health")
        time.sleep(0.2)
    return {
        kind: {"count": len(all_), "median": statistics.median(all_), "worst": max(all_)}
        for kind, all_ in found.items()
    }


def ended(url: str) -> dict[str, int]:
    """Connections that the server ended, by why."""
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    parts = [line.split('"') for line in lines if line.startswith("lantern_connections_ended_total{")]
    return {why: int(count.strip("} ")) for _, why, count in parts}


def tree(chance: random.Random) -> list[list[int]]:
    """A small draft tree, which hardly anybody else has."""
    paths: list[tuple[int, ...]] = [()]
    while len(paths) < 10:
        above = chance.choice([path for path in paths if len(path) < 5])
        paths.append((*above, sum(path[:-1] == above for path in paths if path)))
    return [list(path) for path in sorted(paths[1:], key=lambda path: (len(path), path))]


def storm(url: str, process: int, prompt: str, requests: int, chance: random.Random) -> dict[str, Any]:
    """So many requests one after another, every one with settings of its own."""
    answers, most = collections.Counter(), 0.0
    for _ in range(requests):
        asked = {"prompt": prompt, "method": "gumbel", "tree": tree(chance)}
        answers[httpx.post(url + PATH, json=asked, timeout=600).status_code] += 1
        most = max(most, megabytes(process))
    kept, dropped = metric(url, "programs"), metric(url, "programs_dropped_total")
    return {
        "answers": dict(answers),
        "megabytes": round(megabytes(process)),
        "most_megabytes": round(most),
        "programs": kept,
        "dropped": dropped,
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = Parser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=arguments.model, default="demo")
    for name, default in (("silent", 1010), ("slow", 60), ("again", 5), ("seconds", 60), ("storms", 2)):
        parser.add_argument(f"--{name}", type=arguments.whole(0), default=default)
    parser.add_argument("--requests", type=arguments.whole(), default=200)
    parser.add_argument("--programs", type=arguments.whole(), default=16)
    parser.add_argument("--out", type=arguments.new_file)
    given = parser.parse_args(argv)
    wanted = given.silent + given.slow
    if connections_of_files(wanted) < wanted:
        raise LanternError(f"{wanted} connections are more files than may be open here: raise it (ulimit -n)")
    found: dict[str, Any] = {}
    with served(given.model, 4, 0, "--programs", str(given.programs)) as (url, process):
        prompt = httpx.get(f"{url}/v1/models").json()["data"][0]["lantern"]["example"]
        found["megabytes_warm"] = round(megabytes(process))
        if given.seconds:
            found["alone"] = waited(url, prompt, given.seconds / 3, 5)
            crowd = Crowd(url, given.silent, given.slow, given.again)
            crowd.start()
            time.sleep(3)
            found["crowd"] = waited(url, prompt, given.seconds, 8)
            found["crowd"] |= {"held": crowd.open, "begun": crowd.begun, "ended": ended(url)}
            crowd.stop()
        chance = random.Random(0)
        found["storms"] = [storm(url, process, prompt, given.requests, chance) for _ in range(given.storms)]
    text = json.dumps(found, indent=1) + "\n"
    print(text, end="")
    if given.out is not None:
        write_file(given.out, text)


if __name__ == "__main__":
    run_script(main)
