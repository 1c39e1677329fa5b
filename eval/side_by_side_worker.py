"""The process that ``eval.side_by_side`` starts in either checkout: it decodes a picture for every line it is sent.

It is run by its path and uses public names alone, so that a checkout of any age can answer.
"""

import dataclasses
import json
import os
import sys
import time


def main() -> None:
    """Answers each line on standard input with a line on standard output."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Anything else that is printed goes to standard error.
    import lantern_jax

    checkpoint = dataclasses.replace(lantern_jax.load("demo").checkpoint, tokenizer_params=None)
    pipeline = lantern_jax.Pipeline(checkpoint)
    for line in sys.stdin:
        order = json.loads(line)
        wall, cpu = time.perf_counter(), time.process_time()
        asked = {"batch": 1, "temperature": 1.0, **order["options"]}
        made = pipeline.generate(order["prompt"], seed=order["seed"], **asked).statistics
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        answer = {"wall": wall / made.rounds, "cpu": cpu / made.rounds, "rounds": made.rounds}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
