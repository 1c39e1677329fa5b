"""Wrong inputs of the training and evaluation scripts, and the folder of useless things that they name."""

import json
import re
from pathlib import Path

import numpy as np

from lantern_jax.checkpoints.store import model_directory

DEMO = str(model_directory("demo"))
CONFIGS = Path(__file__).parents[2] / "configs"
TOKENIZER, TARGET, DRAFTER, CLASSIFIER = (
    f"--config={CONFIGS}/tiny_{kind}.py" for kind in ("tokenizer", "target", "drafter", "tokenizer")
)
NEW = "--workdir=new/folder"
TOKENS = "--tokens=tokens"

# A script and what it is called with; folders and files are those of ``litter``.
WRONG = {
    "train.tokenizer": [
        [],
        [NEW],
        [TOKENIZER],
        [TOKENIZER, NEW, "--steps=3"],
        [TOKENIZER, NEW, "more"],
        ["--config=none.py", NEW],
        ["--config=empty", NEW],
        ["--config=", NEW],
        ["--config=text.txt", NEW],
        ["--config=bad.py", NEW],
        ["--config=none_in_it.py", NEW],
        ["--config=number.py", NEW],
        ["--config=noise.bin", NEW],
        [DRAFTER, NEW],
        [TARGET, NEW],
        [f"{TOKENIZER}:more", NEW],
        [TOKENIZER, "--workdir=text.txt"],
        [TOKENIZER, "--workdir=text.txt/in"],
        [TOKENIZER, "--workdir="],
        [TOKENIZER, "--workdir=runs[2]"],
        [TOKENIZER, "--workdir=other_run"],
        [TOKENIZER, "--workdir=damaged_run"],
        [TOKENIZER, f"--workdir={'a' * 5000}"],
        [TOKENIZER, NEW, "--config.step=3"],
        [TOKENIZER, NEW, "--config.steps=many"],
        [TOKENIZER, NEW, "--config.steps=1.5"],
        [TOKENIZER, NEW, "--config.steps="],
        [TOKENIZER, NEW, "--config.steps"],
        [TOKENIZER, NEW, "--config.steps=-1"],
        [TOKENIZER, NEW, "--config.steps=0"],
        [TOKENIZER, NEW, "--config.batch_size=0"],
        [TOKENIZER, NEW, "--config.batch_size=100000"],
        [TOKENIZER, NEW, "--config.save_every=0"],
        [TOKENIZER, NEW, "--config.keep=0"],
        [TOKENIZER, NEW, "--config.rate=nan"],
        [TOKENIZER, NEW, "--config.rate=inf"],
        [TOKENIZER, NEW, "--config.seed=-1"],
        [TOKENIZER, NEW, "--config.seed=99999999999999"],
        [TOKENIZER, NEW, "--config.pictures=0"],
        [TOKENIZER, NEW, "--config.held_out=0"],
        [TOKENIZER, NEW, "--config.size=0"],
        [TOKENIZER, NEW, "--config.size=31"],
        [TOKENIZER, NEW, "--config.model=3"],
        [TOKENIZER, NEW, "--config.model.ch=0"],
        [TOKENIZER, NEW, "--config.model.ch_mult=x"],
        [TOKENIZER, NEW, "--config.model.ch_mult=()"],
        [TOKENIZER, NEW, "--config.model.more=3"],
        [TOKENIZER, NEW, "--config.model.mid_attention=perhaps"],
        [TOKENIZER, NEW, "--config.loss.pyramid=x"],
        [f"--config={CONFIGS}/demo_decoder.py", NEW, "--config.start_from=none"],
    ],
    "train.encode": [
        [NEW],
        ["--tokenizer=none", NEW],
        ["--tokenizer=text.txt", NEW],
        ["--tokenizer=empty", NEW],
        ["--tokenizer=damaged_run", NEW],
        ["--tokenizer=other_run", NEW],
        [f"--tokenizer={DEMO}", NEW, "--pictures=0"],
        [f"--tokenizer={DEMO}", NEW, "--pictures=-3"],
        [f"--tokenizer={DEMO}", NEW, "--pictures=some"],
        [f"--tokenizer={DEMO}", NEW, "--validation=1e3"],
        [f"--tokenizer={DEMO}", "--workdir=text.txt"],
    ],
    "train.target": [
        [TARGET, NEW],
        [TARGET, NEW, "--tokens=none"],
        [TARGET, NEW, "--tokens=empty"],
        [TARGET, NEW, "--tokens=text.txt"],
        [TARGET, NEW, "--tokens=damaged_tokens"],
        [TARGET, NEW, TOKENS],
        [TOKENIZER, NEW, TOKENS],
        [TARGET, NEW, TOKENS, "--config.model.dim=7"],
        [TARGET, NEW, TOKENS, "--config.model.num_layers=0"],
        [TARGET, NEW, TOKENS, "--config.validation=0"],
        [TARGET, TOKENS, "--workdir=text.txt"],
    ],
    "train.features": [
        [NEW],
        ["--target=none", NEW],
        ["--target=empty", NEW, TOKENS],
        ["--target=damaged_run", NEW, TOKENS],
        [f"--target={DEMO}", NEW],
        [f"--target={DEMO}", NEW, "--folder=none"],
        [f"--target={DEMO}", NEW, "--folder=empty"],
        [f"--target={DEMO}", NEW, "--prompts=none.txt"],
        [f"--target={DEMO}", NEW, "--prompts=empty"],
        [f"--target={DEMO}", NEW, "--prompts=noise.bin"],
        [f"--target={DEMO}", NEW, "--prompts=blank.txt"],
        [f"--target={DEMO}", NEW, "--prompts=text.txt", TOKENS],
        [f"--target={DEMO}", NEW, "--prompts=nonsense.txt"],
        [f"--target={DEMO}", NEW, TOKENS, "--taps=x"],
        [f"--target={DEMO}", NEW, TOKENS, "--taps=2,2"],
        [f"--target={DEMO}", NEW, TOKENS, "--taps=2,9999"],
        [f"--target={DEMO}", NEW, TOKENS, "--batch_size=0"],
        [f"--target={DEMO}", NEW, TOKENS, "--dtype=float8"],
        [f"--target={DEMO}", NEW, TOKENS, "--mesh=data"],
        [f"--target={DEMO}", NEW, TOKENS, "--mesh=data=999"],
        [f"--target={DEMO}", NEW, TOKENS, "--seed=-1"],
        [f"--target={DEMO}", NEW, "--tokens=damaged_tokens"],
        [f"--target={DEMO}", NEW, TOKENS, "--samples=0", "--pictures=0"],
    ],
    "train.drafter": [
        [DRAFTER, NEW],
        [DRAFTER, NEW, f"--target={DEMO}", "--features=none"],
        [DRAFTER, NEW, f"--target={DEMO}", "--features=empty"],
        [DRAFTER, NEW, f"--target={DEMO}", "--features=features"],
        [DRAFTER, NEW, "--target=empty", "--features=features"],
        [DRAFTER, NEW, "--target=text.txt", "--features=features"],
        [DRAFTER, NEW, f"--target={DEMO}", "--features=features", "--mesh=x"],
        [DRAFTER, NEW, f"--target={DEMO}", "--features=features", "--hosts=x"],
        [DRAFTER, NEW, f"--target={DEMO}", "--features=damaged_features"],
        [DRAFTER, f"--target={DEMO}", "--features=features", "--workdir=text.txt"],
    ],
    "train.tree": [
        [NEW],
        ["--target=empty", "--drafter=empty", NEW],
        [f"--target={DEMO}", "--drafter=empty", NEW],
        [f"--target={DEMO}", "--drafter=damaged_run", NEW],
        [f"--target={DEMO}", "--drafter=other_run", NEW],
        [f"--target={DEMO}", "--drafter=other_run", NEW, "--sizes=0"],
        [f"--target={DEMO}", "--drafter=other_run", NEW, "--sizes=a,b"],
        [f"--target={DEMO}", "--drafter=other_run", NEW, "--pictures=0"],
    ],
    "train.export": [
        ["--out=new"],
        ["--drafter=empty"],
        ["--drafter=empty", "--out=text.txt"],
        ["--drafter=empty", "--out=new", f"--checkpoint={DEMO}"],
        ["--drafter=other_run", "--out=new", f"--checkpoint={DEMO}"],
        ["--drafter=damaged_run", "--out=new", f"--checkpoint={DEMO}"],
        ["--drafter=none", "--out=new", f"--checkpoint={DEMO}"],
        ["--drafter=empty", "--out=new", "--checkpoint=empty"],
        ["--drafter=empty", "--out=empty", f"--checkpoint={DEMO}", "--overwrite"],
        ["--drafter=empty", "--out=new", "--tokenizer=empty", "--target=empty"],
        ["--drafter=empty", "--out=new", "--tokenizer=empty", "--target=empty", "--trees=text.txt"],
        ["--drafter=empty", "--out=new", "--tokenizer=empty", "--target=empty", "--trees=other_run/config.json"],
        ["--drafter=empty", "--out=new", "--guidance=high"],
        ["--drafter=empty", "--out=new", "--guidance=-1"],
    ],
    "train.fit": [
        [],
        ["--out=empty"],
        ["--out=text.txt"],
        ["--out=new", "--checkpoint=none"],
        ["--out=new", "--checkpoint=empty"],
        ["--out=new", "--drafter=best"],
        ["--out=new", "--prompts=none"],
        ["--out=new", "--prompts=blank.txt"],
        ["--out=new", "--pictures=0"],
    ],
    "train.agreement": [
        [],
        ["--target=none", "--features=features"],
        [f"--target={DEMO}", "--features=empty"],
        [f"--target={DEMO}", "--features=features"],
        [f"--target={DEMO}", "--features=features", "--depths=0"],
        [f"--target={DEMO}", "--features=features", "--guidance=-1"],
        [f"--target={DEMO}", "--features=features", "--drafter=none"],
        [f"--target={DEMO}", "--features=damaged_features"],
    ],
    "train.classifier": [
        [TOKENIZER, NEW],
        [NEW, "--out=none/file.npz"],
        [NEW, "--out=empty"],
        [NEW, "--config.tokenizer=none"],
        [NEW, "--config.held_out=1"],
        [NEW, "--config.batch_size=1000000"],
        [NEW, "--config.size=0"],
        ["--workdir=text.txt"],
        ["--workdir=other_run"],
    ],
    "train.evaluate": [["--checkpoint=none"], ["--checkpoint=empty"], ["--pictures=1"], ["--pictures=x"]],
    "train.demo": [[], ["--workdir=text.txt"], [NEW, "--experiment=huge"], [NEW, "more"]],
    "eval.methods": [
        [],
        ["--work=text.txt"],
        ["--work=new", "--methods=best"],
        ["--work=new", "--methods=led:speed=3"],
        ["--work=new", "--model=none"],
        ["--work=new", "--model=empty"],
        ["--work=new", "--pictures=0"],
        ["--work=new", "--batch=-1"],
        ["--work=new", "--seed=-1"],
        ["--work=new", "--dtype=float8"],
        ["--work=new", "--replicates=0"],
        ["--work=new", "--minutes=-1"],
        ["--work=new", "--minutes=soon"],
        ["--work=new", "--out=none/rows.jsonl"],
        ["--work=new", "--plot=empty"],
    ],
    "eval.refill": [
        ["--model=none"],
        ["--pictures=0"],
        ["--repeats=0"],
        [f"--model={DEMO}", "--method=best"],
        ["--out=empty"],
    ],
    "eval.tuned": [["--file=none"], ["--file=text.txt"], ["--model=empty"], ["--minutes=0"], ["--out=empty"]],
    "eval.results": [["--docs=none"], ["--docs=empty"], ["--docs=text.txt"], ["--check", "more"]],
    "eval.accelerator": [
        ["--minutes=0"],
        ["--sizes=huge"],
        ["--sizes="],
        ["--batch=0"],
        ["--batch=x"],
        ["--passes=0"],
        ["--accept-lengths=x"],
        ["--dtype=int3"],
        ["--out=none/file.json"],
    ],
    "eval.ahead": [
        [],
        ["--for=v9"],
        ["--for=v5e:3x3"],
        ["--for=h100:9"],
        ["--for=v5e:4x4", "--mesh=data=3,model=4"],
        ["--for=v5e", "--mesh=rows=2"],
        ["--for=v5e", "--against=none"],
        ["--for=v5e", "--against=text.txt"],
        ["--for=v5e", "--json=none/rows.json"],
        ["--for=v5e", "--methods=owl"],
        ["--for=v5e", "--batch=x"],
    ],
    "eval.bfloat16": [["--model=none"], ["--trees", "oak"], ["--pictures=0"], ["--temperature=0"], ["--dtype=x"]],
    "eval.decoding": [["--pictures=3"], ["--out=none/file.json"], ["--out=empty"]],
    "eval.serve_load": [["--model=none"], ["--requests=0"], ["--connections=0"], ["--port=99999"]],
    "eval.side_by_side": [[], ["--old=none"], ["--old=text.txt"], ["--old=empty", "--restarts=0"]],
}  # fmt: skip


# More than a float holds, and more than Python reads.
for script, lines in WRONG.items():
    source = (Path(__file__).parents[2] / script.replace(".", "/")).with_suffix(".py").read_text()
    numbers = re.findall(r'"(--[\w-]+)",\s*type=arguments\.(?:wholes?|number|seed)\b', source)
    lines += [[f"{flag}={'9' * digits}"] for flag in numbers for digits in (400, 5000)]
for name in ("steps", "rate", "model.ch", "model.ch_mult"):
    WRONG["train.tokenizer"] += [
        [TOKENIZER, NEW, f"--config.{name}={'9' * digits}"] for digits in (400, 5000)
    ]


def litter() -> None:
    """Fills the current folder with things that scripts cannot use."""
    for name in ("empty", "damaged_tokens", "tokens", "features", "damaged_features"):
        Path(name).mkdir()
    for run_folder in ("other_run", "damaged_run"):
        Path(run_folder, "checkpoints", "step_000010").mkdir(parents=True)
    Path("other_run", "config.json").write_text(json.dumps({"size": 64, "model": {"dim": 3}, "seed": 7}))
    Path("damaged_run", "config.json").write_bytes(b'{"size": \xff')
    Path("text.txt").write_text("a lake\n")
    Path("nonsense.txt").write_text("xyzzy plugh\n")
    Path("blank.txt").write_text("\n\n")
    Path("noise.bin").write_bytes(bytes(range(256)))
    Path("bad.py").write_text("def get_config(:\n")
    Path("none_in_it.py").write_text("steps = 3\n")
    Path("number.py").write_text("def get_config():\n    return 3\n")
    for folder in ("damaged_tokens", "tokens"):
        for name in ("train", "validation"):
            Path(folder, f"{name}.npz").write_bytes(b"PK\x03\x04 and no more")
    for name in ("train", "validation"):
        np.savez(
            Path("tokens", f"{name}.npz"),
            tokens=np.full((3, 5), 9, np.int16),
            attributes=np.zeros((3, 2), int),
        )
    for name in ("features", "prefix", "tokens"):
        Path("damaged_features", f"{name}_00000.npy").write_bytes(b"\x93NUMPY\x01\x00")
        np.save(Path("features", f"{name}_00000.npy"), np.zeros((1, 2, 3, 4), np.float16))


def is_quick(words: list[str]) -> bool:
    """Whether nothing of the demo is read for it."""
    return not any(DEMO in word for word in words)
