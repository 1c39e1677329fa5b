"""A picture set made by the machines of a Ray cluster: every part is a task, and Ray restarts a task that fails.

    pip install . "ray>=2.40"    # in a clone
    python examples/ray_set.py --model /shared/model --prompts /shared/prompts.txt --out /shared/pictures --parts 64

The library needs no Ray for this, and nothing of Ray is in it: the parts of a set share nothing but its folder, and a
part that was begun goes on where it stopped. Make many more parts than there are machines, so that no machine waits for
a slow or lost one; each task opens the model anew. All machines must see ``--model`` and ``--out`` under the same paths
and have the same Python and versions of lantern-jax and JAX. ``--gpus 0`` is for machines without accelerators.
"""

import argparse
from pathlib import Path

import ray

from lantern_jax.apps.commands.prompt_files import read_prompts
from lantern_jax.apps.sets.making import make_set
from lantern_jax.apps.sets.opening import open_set
from lantern_jax.apps.sets.reading import read_set
from lantern_jax.apps.sets.set_plan import Part, begin


def make_part(model: str, prompts: tuple[str, ...], given: dict, directory: Path, part: Part) -> int:
    """Makes what is missing from a part of a set, on any machine; returns the number of pictures."""
    opened = open_set(model, prompts, **given)
    begin(directory, opened.plan)
    return make_set(opened, directory, part)


def parse() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="demo", help="checkpoint (default: demo)")
    parser.add_argument("--prompts", required=True, help="prompts, one per line")
    parser.add_argument(
        "--out", type=Path, required=True, help="folder of the set: new, or the same one to go on"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shard-size", type=int, default=256, help="pictures per file (default: 256)")
    parser.add_argument("--parts", type=int, default=16, help="tasks (default: 16)")
    parser.add_argument("--gpus", type=float, default=1, help="GPUs a task holds (default: 1)")
    parser.add_argument("--retries", type=int, default=3, help="how often a failed task is started again")
    parser.add_argument(
        "--address", help="of the cluster; local: this machine alone (default: what RAY_ADDRESS says)"
    )
    return parser.parse_args()


def main() -> None:
    """Makes all parts by tasks of Ray, then checks that the set is complete."""
    given = parse()
    # A folder's path is made absolute so that workers find it; otherwise it is "demo", or a repository on the hub.
    model = str(Path(given.model).absolute()) if Path(given.model).exists() else given.model
    prompts = read_prompts(given.prompts)
    settings = {"seed": given.seed, "shard_size": given.shard_size}
    directory = given.out.absolute()

    ray.init(address=given.address)
    # A new process for each task: one that lives on keeps its device's memory.
    task = ray.remote(
        num_gpus=given.gpus, max_retries=given.retries, retry_exceptions=True, max_calls=1, scheduling_strategy="SPREAD"
    )(make_part)  # fmt: skip
    numbers = range(1, given.parts + 1)
    parts = {
        task.remote(model, prompts, settings, directory, Part(number, given.parts)): number
        for number in numbers
    }
    waiting, failed = list(parts), []
    while waiting:
        (done,), waiting = ray.wait(waiting)
        try:
            print(f"part {parts[done]} of {given.parts}: {ray.get(done)} pictures", flush=True)
        except ray.exceptions.RayError as error:
            failed.append(parts[done])
            print(f"part {parts[done]} of {given.parts} failed: {error}", flush=True)
    if failed:
        raise SystemExit(f"parts {failed} failed, all others are written: give the same command to go on")
    print(f"{directory} is complete: {sum(1 for _ in read_set(directory))} pictures")


if __name__ == "__main__":
    main()
