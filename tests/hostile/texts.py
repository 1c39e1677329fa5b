"""Texts in files, and names of files, that steer a terminal, break lines or fill the screen; and the commands that read
them. Every kind of file has one in each of its texts.
"""

import io
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from lantern_jax.apps.sets.plan import SetPlan, begin
from tests.hostile.files import CONTROL, as_bytes
from tests.hostile.mutations import at, places, renamed, replaced

STEERING = {
    "escapes": f"a{CONTROL}lantern: all is well",
    "eight bits": "a\x9b2J\x9d0;owned\x9c\x85\x7f",
    "directions": "a\u202egnp.exe\u2066\u2028b\u200f",
    "markup": "[/x][bold]:smile:[link=http://a.b]",
    "endless": "a\x1b[2J" * 40_000,
}


def altered(values: Any, text: str) -> Iterator[tuple[str, Any]]:
    """Yields (where, the values with another text there) for every text and every name in JSON."""
    for path in places(values):
        where = ".".join(map(str, path))
        if isinstance(path[-1], str):
            yield f"{where}.name", renamed(values, path, text)
        if isinstance(at(values, path), str):
            yield f"{where}.text", replaced(values, path, text)


def lines(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Yields (what it is, words of a command); its file is in the current folder when the line is asked for.

    Args:
        folder: the current one, as ``hostile.commands.clutter`` fills it.
    """
    for kind, text in STEERING.items():
        for name, words in _of_text(folder, text):
            yield f"{kind}, {name}", words
        for left in folder.glob("steering*"):
            shutil.rmtree(left) if left.is_dir() else left.unlink()


def _of_text(folder: Path, text: str) -> Iterator[tuple[str, list[str]]]:
    def file(name: str, content: Any) -> str:
        (folder / name).write_bytes(as_bytes(content))
        return name

    lake = ["generate", "lake", "--model", "tiny", "--out", "new.png"]
    for where, values in altered(_tuned(), text):
        yield f"tuned, {where}", [*lake, "--tuned", file("steering.json", values)]
    config = json.loads((folder / "tiny" / "config.json").read_text())
    config["metadata"] = {"by": ["somebody"]}
    shown = {name: config[name] for name in ("model", "family", "metadata", "defaults", "drafters", "format")}
    for where, values in altered(shown, text):
        shutil.copytree(folder / "tiny", folder / "steering", dirs_exist_ok=True)
        kept = {name: value for name, value in config.items() if name not in shown}
        file("steering/config.json", kept | values)
        yield f"config, {where}", ["info", "steering"]
        yield f"config, {where}, all of it", ["info", "steering", "--verbose"]
        yield f"config, {where}", ["generate", "lake", "--model", "steering", "--out", "new.png"]
    yield from _of_sets(folder, text, file)
    # Names of files are shorter, and hold neither a slash nor a zero byte.
    name = "steering" + text.replace("/", "").replace("\0", "")[:60]
    yield "name of nothing", ["info", name]
    shutil.copytree(folder / "tiny", folder / name.replace("[", ""), dirs_exist_ok=True)
    yield "name of a checkpoint", ["info", name.replace("[", ""), "--verify"]
    shutil.rmtree(folder / "steering")
    (folder / "steering").mkdir()
    file(f"steering/{name}.png", b"no picture")
    yield "name of a picture", ["metrics", "steering", "--reference", "steering"]
    image, texts = Image.new("RGB", (16, 16)), PngInfo()
    texts.add_itxt("prompt", text), texts.add_itxt("number", text)
    image.save(content := io.BytesIO(), "PNG", pnginfo=texts)
    shutil.rmtree(folder / "steering")
    (folder / "steering").mkdir()
    file("steering/a.png", content.getvalue())
    yield "texts of a picture", ["metrics", "steering", "--scores", "agreement"]


def _tuned() -> dict[str, Any]:
    key = {"model": "tiny", "checkpoint": "", "device": "cpu", "batch": 1, "dtype": "float32", "guidance": 2.0,
           "temperature": 1.0, "top_k": 0, "top_p": 1.0}  # fmt: skip
    return {"format": "lantern_jax tuned settings", "version": 1, "key": key, "options": {"method": "gumbel"},
            "name": "chain", "speedup": 1.5, "substituted": 0.0, "budget": {}, "found": {}}  # fmt: skip


def _of_sets(folder: Path, text: str, file) -> Iterator[tuple[str, list[str]]]:
    settings = {"method": "gumbel", "temperature": 1.0}
    plan = SetPlan(("a lake",), 1, 0, "0" * 32, "float32", settings, "png", 2, "features")
    shutil.rmtree(folder / "steering")
    begin(folder / "steering", plan)
    again = ["set", "--prompts", "lake.txt", "--model", "tiny", "--out", "steering", "--shard-size", "2"]
    file("lake.txt", "a lake\n")
    for where, values in altered(json.loads((folder / "steering" / "set.json").read_text()), text):
        file("steering/set.json", values)
        file("steering/shard-00000.npz", b""), file("steering/shard-00000.tar", b"")
        yield f"set, {where}", ["set", "--out", "steering", "--merge"]
        yield f"set, {where}", ["metrics", "steering", "--reference", "steering"]
        yield f"set, {where}", again
