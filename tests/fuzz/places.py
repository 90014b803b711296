"""Paths that are no ordinary file. Every case finds all of them in its folder, under `places/`."""

from __future__ import annotations

import os
import random
import socket
import stat
from pathlib import Path

DEVICES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8)}
"""Major and minor numbers."""
LINKS = {
    "loop": "loop",
    "dangling": "nowhere",
    "to-null": "null",
    "to-zero": "zero",
    "to-full": "full",
    "to-file": "file",
    "to-folder": "folder",
}
NAMES = (*DEVICES, *LINKS, "fifo", "socket", "folder", "missing", "unreadable", "unwritable", "readonly/new")
PLACES = tuple(f"places/{name}" for name in NAMES)


def make_places(folder: Path) -> None:
    """Make them. Devices are made by their numbers where that is allowed: only root could do harm to those in /dev."""
    folder.mkdir()
    for name, (major, minor) in DEVICES.items():
        try:
            os.mknod(folder / name, stat.S_IFCHR | 0o666, os.makedev(major, minor))
        except PermissionError:
            (folder / name).symlink_to(f"/dev/{name}")
    for name, target in LINKS.items():
        (folder / name).symlink_to(target)
    os.mkfifo(folder / "fifo")
    with socket.socket(socket.AF_UNIX) as listening:
        # Its address has room for 108 bytes.
        before = os.open(".", os.O_RDONLY)
        os.chdir(folder)
        listening.bind("socket")
        os.fchdir(before)
        os.close(before)
    (folder / "folder").mkdir()
    (folder / "file").write_text("kept\n")
    (folder / "unreadable").write_text("kept\n")
    (folder / "unreadable").chmod(0o000)
    (folder / "unwritable").write_text("kept\n")
    (folder / "unwritable").chmod(0o444)
    (folder / "readonly").mkdir()
    (folder / "readonly").chmod(0o555)


def hostile_path(rng: random.Random) -> str:
    """A path that is special or impossible."""
    if rng.random() < 0.6:
        return rng.choice(PLACES)
    return rng.choice(
        [
            "",
            " ",
            ".",
            "..",
            "/",
            "//",
            "/proc/self/mem",
            "/proc/self/fd/0",
            "/dev/stdin",
            "a" * 255,
            "a" * 300,
            "a" * 5000,
            "a/" * 3000,
            f"folder/{'b' * 300}.json",
            "policy.yaml/below",
            "places/null/below",
            "places/file/below/below",
            "places/folder/",
            "policy.yaml/",
            "new\nline.json",
            "[/red].json",
            "[bold]x.yaml",
            "\x1b[31mred.json",
            "\udcff\udcfe.json",
            "é\u202e.json",
            "-",
            "--",
            "-x.json",
            "~",
            "~nobody/x",
            "$HOME/x",
            "{server}/page/1",
            "http://127.0.0.1:1/x",
            "models/target",
            "places/to-folder",
            "%s%n{0}",
            "CON.json",
            "x.json:stream",
            "*",
        ]
    )
