#!/usr/bin/env python3
"""All mutants of a crate in one program: mutants_switch.py build CRATE [FILE...] | run PROGRAM [TEST...]; docs/mutants.md.

`build` asks cargo-mutants for its list, of all files of a crate or of those that are named from its `src`, and writes a copy
of the workspace in which each function begins with a switch on HEKATE_MUTANT: number n takes the function's body with the
change of mutant n, any other the body as it is. What the compiler refuses is taken out again ("unviable"). `run` gives each
mutant to the tests that reach its function, the quickest first, until one fails. Both go on where they were ended; while the
file $HEKATE_QUIET exists `run` waits. With HEKATE_MISSED=1 it tries only what another program's tests have missed; with
HEKATE_SECONDS=2 it leaves out tests that take longer alone (without, a second run gives these what the first has missed); with
HEKATE_PART=1/2 it tries every second mutant.
"""

import collections
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
import zlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUT = pathlib.Path(os.environ.get("HEKATE_SWITCH", ROOT / "target/mutants/switch"))
TREE, LIST, RESULTS = OUT / "tree", OUT / "mutants.json", OUT / "results.jsonl"
# Not code that decides anything: tests and their models, what is printed.
LEFT_OUT = re.compile(r"(^|/)(tests|testing|model)(/|\.rs$)")
FIRST = "fast heal learner leader follower level compare proof retention legs drive partition serve rounds".split()
MEMORY_BYTES_MAX = 8 << 30
# Tests that a mutant is given one by one.
SINGLY = 8
SWITCH = """//! Which mutant this process runs, and which functions with mutants it comes through.
use std::collections::BTreeSet;
use std::io::Write;
use std::sync::{LazyLock, Mutex};

static NUMBER: LazyLock<u32> = LazyLock::new(|| std::env::var("HEKATE_MUTANT").map_or(0, |text| text.parse().unwrap_or(0)));
static REACHED: LazyLock<Option<Mutex<(std::fs::File, BTreeSet<u32>)>>> = LazyLock::new(|| {
    let path = std::env::var("HEKATE_REACHED").ok()?;
    Some(Mutex::new((std::fs::File::create(path).ok()?, BTreeSet::new())))
});

pub fn number(first: u32) -> u32 {
    if let Some(reached) = &*REACHED {
        let mut reached = reached.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if reached.1.insert(first) {
            let _ = writeln!(reached.0, "{first}");
        }
    }
    *NUMBER
}
"""


def listed(crate, files):
    """What cargo-mutants lists, numbered, with what of it this tool leaves out."""
    named = [word for file in files for word in ("-f", f"crates/{crate}/src/{file}")]
    said = output("cargo", "mutants", "--list", "--json", "-p", f"hekate-{crate}", *named, cwd=ROOT)
    mutants = []
    for mutant in json.loads(said):
        if LEFT_OUT.search(mutant["file"]) or not mutant["function"] or "Debug" in mutant["function"]["function_name"]:
            continue
        # Bodies of one function must have one type: those of `impl Trait` have a type each, and are left out.
        opaque = "impl " in mutant["function"]["return_type"]
        # An alias of Result, which cargo-mutants does not see through.
        if "-> Stepped<" in mutant["function"]["return_type"] and mutant["replacement"] == "Default::default()":
            mutant["replacement"] = "Ok(Default::default())"
        mutant.update(number=len(mutants) + 1, viable=not opaque, opaque=opaque)
        mutants.append(mutant)
    return mutants


class Source:
    """A file's text, and where a line and column of it is (both count from 1)."""

    def __init__(self, path):
        self.text = path.read_text()
        self.starts = [0]
        for line in self.text.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))

    def at(self, place):
        return self.starts[place["line"] - 1] + place["column"] - 1

    def range(self, span):
        return self.at(span["start"]), self.at(span["end"])


# Comments, strings, characters (but not lifetimes): no brace in them counts.
NO_CODE = re.compile(r'//[^\n]*|/\*.*?\*/|b?r(#*)".*?"\1|b?"(?:\\.|[^"\\])*"|b?\'(?:\\.[^\']*|[^\'\\])\'', re.DOTALL)


def body_of(text, start, end):
    """Where the body of the function at start..end is, without its braces."""
    depth, at = 0, start
    while at < end:
        skipped = NO_CODE.match(text, at)
        if skipped:
            at = skipped.end()
            continue
        if text[at] == "{" and depth == 0:
            return at + 1, text.rindex("}", at, end)
        depth += (text[at] in "([") - (text[at] in ")]")
        at += 1
    raise ValueError(f"a function without a body: {text[start:end]}")


def switched(source, mutants):
    """The text with a switch in each function, and the lines (from, to) of each mutant's body in it."""
    functions = collections.defaultdict(list)
    for mutant in mutants:
        functions[source.range(mutant["function"]["span"])].append(mutant)
    pieces, done = [], 0
    for (start, end), of_function in sorted(functions.items()):
        if start < done:
            raise ValueError(f"a function in a function: {of_function[0]['name']}")
        first, last = body_of(source.text, start, end)
        head = re.sub(r"\bconst fn\b", "fn", source.text[start:first])
        pieces += [source.text[done:start], head, f" match crate::mutant::number({of_function[0]['number']}) {{\n"]
        for mutant in of_function:
            if not mutant["viable"]:
                continue
            from_, to = source.range(mutant["span"])
            from_, to = max(from_, first), min(to, last)
            body = source.text[first:from_] + mutant["replacement"] + source.text[to:last]
            pieces.append((mutant, f"{mutant['number']} => {{{body}\n}}\n"))
        pieces.append(f"_ => {{{source.text[first:last]}\n}} }} ")
        done = last
    pieces.append(source.text[done:])
    text, lines, line = "", {}, 1
    for piece in pieces:
        mutant, piece = piece if isinstance(piece, tuple) else (None, piece)
        if mutant:
            lines[mutant["number"]] = (line, line + piece.count("\n") - 1)
        line += piece.count("\n")
        text += piece
    return text, lines


def build(crate, files):
    """Writes the copy and takes out of it what does not compile."""
    OUT.mkdir(parents=True, exist_ok=True)
    mutants = json.loads(LIST.read_text()) if LIST.exists() else listed(crate, files)
    if not TREE.exists():
        shutil.copytree(ROOT, TREE, ignore=shutil.ignore_patterns("target", ".git"))
    root = TREE / "crates" / crate / "src"
    (root / "mutant.rs").write_text(SWITCH)
    by_number = {mutant["number"]: mutant for mutant in mutants}
    while True:
        LIST.write_text(json.dumps(mutants))
        lines = {}
        for file in sorted({mutant["file"] for mutant in mutants}):
            of_file = [mutant for mutant in mutants if mutant["file"] == file]
            text, lines[file] = switched(Source(ROOT / file), of_file)
            if file.endswith("src/lib.rs"):
                continue
            (TREE / file).write_text(text)
        lib = (ROOT / "crates" / crate / "src/lib.rs").read_text()
        (root / "lib.rs").write_text(lib.replace("\nmod ", "\nmod mutant;\nmod ", 1))
        refused = refused_by_compiler(crate, lines)
        print(f"{sum(mutant['viable'] for mutant in mutants)} mutants, the compiler refuses {len(refused)}", flush=True)
        if not refused:
            return
        for number in refused:
            by_number[number]["viable"] = False


def refused_by_compiler(crate, lines):
    """The numbers of the mutants in which the compiler finds errors."""
    command = ["cargo", "check", "--profile", "mutants", "-p", f"hekate-{crate}", "--message-format", "json"]
    environment = {**os.environ, "RUSTFLAGS": "--cap-lints allow"}
    run = subprocess.run(command, cwd=TREE, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    refused, unknown = set(), []
    for said in map(json.loads, run.stdout.splitlines()):
        message = said.get("message")
        if not isinstance(message, dict) or message["level"] != "error" or not message["spans"]:
            continue
        found = set()
        for span in message["spans"]:
            while span:
                for number, (from_, to) in lines.get(span["file_name"], {}).items():
                    if from_ <= span["line_start"] <= to and span["is_primary"]:
                        found.add(number)
                span = span["expansion"] and {**span["expansion"]["span"], "is_primary": True}
        if not found:
            unknown.append(message["rendered"])
        refused |= found
    if run.returncode and not refused:
        sys.exit("the compiler refuses what is no mutant:\n" + "\n".join(unknown[:5]))
    return refused


def output(*command, **options):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, **options).stdout


def run(program, names):
    """Tries each mutant that nothing has caught yet with the program's tests (those named, or all)."""
    mutants = json.loads(LIST.read_text())
    first = {}
    for mutant in mutants:
        first.setdefault(function_of(mutant), mutant["number"])
    tests, suite = reached_by(program, names), suite_of(program, names)
    if "HEKATE_SECONDS" in os.environ:
        tests = [test for test in tests if test["seconds"] <= float(os.environ["HEKATE_SECONDS"])]
        suite += f"-{os.environ['HEKATE_SECONDS']}s"
    part, parts = map(int, os.environ.get("HEKATE_PART", "1/1").split("/"))
    done = [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []
    over = {line["number"] for line in done if line["outcome"] != "missed" or line["suite"] == suite}
    if "HEKATE_MISSED" in os.environ:
        over |= {mutant["number"] for mutant in mutants} - {line["number"] for line in done}
    kills = collections.Counter(line["test"] for line in done)
    with RESULTS.open("a") as results:
        for mutant in sorted(mutants, key=lambda mutant: (rank(mutant["file"]), mutant["number"])):
            if mutant["number"] in over or not mutant["viable"] or mutant["number"] % parts != part % parts:
                continue
            reaching = [test for test in tests if first[function_of(mutant)] in test["reached"]]
            # What fails often, and near by, and soon comes first.
            near = [mutant["file"], function_of(mutant)]
            often = lambda name: 1 + kills[name] + sum(10 * kills[name, where] for where in near)
            reaching.sort(key=lambda test: (test["seconds"] + 0.01) / often(test["name"]))
            outcome, caught_by = tried(program, mutant["number"], reaching)
            kills.update([caught_by, *((caught_by, where) for where in near)])
            line = {"number": mutant["number"], "name": mutant["name"], "outcome": outcome, "test": caught_by,
                    "suite": suite, "reaching": len(reaching)}
            results.write(json.dumps(line) + "\n")
            results.flush()
            if outcome == "missed":
                print(f"{outcome}: {mutant['name']} ({len(reaching)} tests reach it)", flush=True)


def function_of(mutant):
    return mutant["file"], json.dumps(mutant["function"]["span"])


def rank(file):
    """The protocol before what rests on it."""
    path = file.split("/src/")[1]
    return next((at for at, first in enumerate(FIRST) if path.startswith(first)), len(FIRST)), file


def suite_of(program, names):
    """A name for these tests of a program; it is a part of a file's name, so of many it has a sum only."""
    named = "".join(f"-{name.rpartition(':')[2]}" for name in names)
    return pathlib.Path(program).name.split("-")[0] + (named if len(named) < 100 else f"-{zlib.crc32(named.encode()):08x}")


def tried(program, number, tests):
    """The likeliest one by one, the others in one process."""
    for group in [[test] for test in tests[:SINGLY]] + ([tests[SINGLY:]] if tests[SINGLY:] else []):
        while "HEKATE_QUIET" in os.environ and os.path.exists(os.environ["HEKATE_QUIET"]):
            time.sleep(5)
        names = [test["name"] for test in group]
        seconds_max = int(10 * sum(test["seconds"] for test in group) + 3)
        ended = some(program, names, HEKATE_MUTANT=str(number), seconds_max=seconds_max)
        if ended.returncode:
            failed = re.findall(r"^test (\S+) \.\.\. FAILED", ended.stdout, re.MULTILINE)
            return "timeout" if ended.returncode == -signal.SIGXCPU else "caught", (failed or names)[0]
    return "missed", None


def some(program, tests, seconds_max=600, **environment):
    """How a process with these tests ended: 0, they found nothing. The seconds are of CPU, as others may be at work here."""
    settings = {"PROPTEST_RNG_SEED": "1", "PROPTEST_MAX_SHRINK_ITERS": "0", "PROPTEST_DISABLE_FAILURE_PERSISTENCE": "1",
                "RUST_BACKTRACE": "0"}

    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
        resource.setrlimit(resource.RLIMIT_CPU, (seconds_max, seconds_max + 5))

    command = [program, "--exact", *tests, "--test-threads=1"]
    try:
        return subprocess.run(
            command, env={**os.environ, **settings, **environment}, cwd=TREE, preexec_fn=limit, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True, timeout=30 + 10 * seconds_max,
        )
    except subprocess.TimeoutExpired:
        # It waits for what does not come.
        return subprocess.CompletedProcess(command, -signal.SIGXCPU, stdout="")


def cpu_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def reached_by(program, names):
    """Each test, how long it takes, and the functions with mutants that it reaches."""
    tests = []
    kept = OUT / f"tests-{suite_of(program, names)}.json"
    if kept.exists():
        return json.loads(kept.read_text())
    for name in names or [line.removesuffix(": test") for line in output(program, "--list", "--format", "terse").splitlines()]:
        begun, reached = cpu_seconds(), OUT / "reached"
        reached.unlink(missing_ok=True)
        if some(program, [name], HEKATE_REACHED=str(reached)).returncode:
            sys.exit(f"{name} fails without a mutant")
        seconds = cpu_seconds() - begun
        numbers = reached.read_text().split() if reached.exists() else []
        tests.append({"name": name, "seconds": seconds, "reached": [int(number) for number in numbers]})
    kept.write_text(json.dumps(tests))
    return tests


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["build", crate, *files]:
            build(crate, files)
        case ["run", program, *names]:
            run(str(pathlib.Path(program).resolve()), names)
        case _:
            sys.exit(__doc__)
