#!/usr/bin/env python3
"""Prints the licences of all crates that are linked into the program, with their texts: what permissive licences ask for."""

import json
import pathlib
import subprocess

NAMES = ("LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE")


def linked(metadata):
    """Packages that the program `hekate` is made of, without those that only build or test it."""
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    waiting = [id for id, package in packages.items() if package["name"] == "hekate"]
    seen = set()
    while waiting:
        id = waiting.pop()
        if id in seen:
            continue
        seen.add(id)
        for dependency in nodes[id]["deps"]:
            if any(kind["kind"] is None for kind in dependency["dep_kinds"]):
                waiting.append(dependency["pkg"])
    return [packages[id] for id in seen if packages[id]["source"]]


def main():
    triple = next(line.split()[1] for line in run("rustc", "-vV").splitlines() if line.startswith("host:"))
    metadata = json.loads(run("cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", triple))
    texts = {}
    print("Hekate is linked with Rust's standard library (MIT OR Apache-2.0, https://www.rust-lang.org) and with these crates:\n")
    for package in sorted(linked(metadata), key=lambda package: (package["name"], package["version"])):
        name = f"{package['name']} {package['version']}"
        print(f"{name}: {package['license']}; {package['repository'] or 'https://crates.io/crates/' + package['name']}")
        for path in sorted(pathlib.Path(package["manifest_path"]).parent.iterdir()):
            if path.is_file() and path.name.upper().startswith(NAMES):
                texts.setdefault(path.read_text(errors="replace").strip(), []).append(f"{name} ({path.name})")
    for text, users in texts.items():
        print(f"\n{'=' * 80}\n{', '.join(users)}\n{'=' * 80}\n\n{text}")


def run(*words):
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


main()
