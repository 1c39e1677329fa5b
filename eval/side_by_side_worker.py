"""What ``eval.side_by_side`` starts in either checkout: decodes pictures as told, line by line.

It is run by its path, and beside a library as old as may be: only what every version has is imported.
"""

import dataclasses
import json
import os
import sys
import time


def main() -> None:
    """Answers each line on standard input with a line on standard output."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Whatever else prints goes to standard error.
    import lantern_jax
    from lantern_jax.decoding.tree import DraftTree, named_tree
    from lantern_jax.devices.compilation import keep_compiled_programs

    keep_compiled_programs()
    checkpoint = dataclasses.replace(lantern_jax.load("demo").checkpoint, tokenizer_params=None)
    pipeline = lantern_jax.Pipeline(checkpoint)
    # The demo's own default tree is the chain of the rows' names.
    default = DraftTree.from_paths(pipeline.checkpoint.defaults["tree"]["cpu"])
    for line in sys.stdin:
        order = json.loads(line)
        knobs = {"batch": 1, "temperature": 1.0, "k": 10, "lam": 2.0, **order["knobs"]}
        if knobs["tree"] != "none":
            knobs["tree"] = default if knobs["tree"] == "chain" else named_tree(knobs["tree"])
        wall, cpu = time.perf_counter(), time.process_time()
        made = pipeline.generate(order["prompt"], seed=order["seed"], **knobs).statistics
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        answer = {"wall": wall / made.rounds, "cpu": cpu / made.rounds, "rounds": made.rounds}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
