"""What pytest does here beyond its own: tests in processes of their own, those that run alone, and those that run again.

With pytest-xdist the workers run all tests but those marked `alone`. The process that controls them runs these when the
workers have ended. With `--again` it then runs once more whatever failed: tests run in real time on shared machines, where
one late timer is no reason to refuse a change, but has to be seen.
"""

import os
import signal
import subprocess
import tempfile
import zlib

import pytest

from apart import limit_of, run_apart, stacks_of
from harness import Store, clean_up, has_measuring_modes

TOP_VARIABLE = "E2E_TOP"
# So many of a hundred tests may pass only when they run again.
UNSTABLE_PERCENT_MAX = 1
# Of a test in the name of its directory, in bytes.
NAME_MAX = 24
# The outcome of a test that failed and is to run again.
AGAIN = "again"


def pytest_addoption(parser):
    words = f"run failed tests again in the end, alone; fail if over {UNSTABLE_PERCENT_MAX} %% of all pass only then"
    parser.addoption("--again", action="store_true", help=words)


def is_worker(config):
    return hasattr(config, "workerinput")


def has_workers(config):
    return not is_worker(config) and bool(config.getoption("tx", None))


def pytest_configure(config):
    if not is_worker(config):
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        top = tempfile.mkdtemp(prefix="hekate-e2e.", dir=os.environ.get("E2E_DIR", "/var/tmp"))
        os.chmod(top, 0o711)  # other users pass through in their tests
        os.environ[TOP_VARIABLE] = top


def pytest_unconfigure(config):
    if not is_worker(config):
        clean_up(os.environ[TOP_VARIABLE])


# --- which tests, and in which order ---


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """The tests with the longest limits run first, so that none is left running at the end; those marked `alone` run last."""
    dropped = [item for item in items if is_dropped(config, item)]
    config.hook.pytest_deselected(items=dropped)
    items[:] = sorted(set(items) - set(dropped), key=lambda item: (is_alone(item), -limit_of(item), item.nodeid))
    measuring = [item for item in items if item.get_closest_marker("measuring")]
    # Here, once: each test has a process of its own.
    if measuring and not config.option.collectonly and not has_measuring_modes():
        for item in measuring:
            item.add_marker(pytest.mark.skip(reason="needs a program that is built with --features measuring"))


def is_dropped(config, item):
    if is_worker(config) and is_alone(item):
        return True
    return item.get_closest_marker("soak") is not None and not is_named(config, item)


def is_named(config, item):
    """By its whole name, or by an expression of markers."""
    words = [config.option.keyword, config.option.markexpr, *(word for word in config.args if "::" in word)]
    return bool(config.option.markexpr) or any(item.name.removeprefix("test_") in word for word in words)


def is_alone(item):
    return item.get_closest_marker("alone") is not None


@pytest.hookimpl(hookwrapper=True)
def pytest_runtestloop(session):
    (yield).get_result()
    config = session.config
    if is_worker(config) or session.shouldstop or session.shouldfail or config.option.collectonly:
        return
    count, items = session.testscollected, collected(session)
    alone = [item for item in items if is_alone(item)] if has_workers(config) else []
    run_all(session, alone)
    session.testscollected = count + len(alone)
    run_again(session, items)


def collected(session):
    """The tests, which the process that controls workers has not collected yet."""
    if has_workers(session.config):
        session.perform_collect()
    return session.items


def run_all(session, items):
    for item in items:
        session.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)


def run_again(session, items):
    """Exactly once: what fails now has failed."""
    session.config.option.again = False
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    first = {report.nodeid for report in reporter.stats.get(AGAIN, [])}
    run_all(session, [item for item in items if item.nodeid in first])
    unstable = len(first & with_outcome(reporter, "passed") - with_outcome(reporter, "failed", "error"))
    if unstable * 100 > UNSTABLE_PERCENT_MAX * session.testscollected:
        session.testsfailed += unstable


def with_outcome(reporter, *kinds):
    """Names of tests."""
    return {report.nodeid for kind in kinds for report in reporter.stats.get(kind, [])}


# --- a test ---


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item):
    hook = item.ihook
    hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in run_apart(item, directory_of(item)):
        if report.failed and item.config.option.again:
            report.outcome = AGAIN
        hook.pytest_runtest_logreport(report=report)
    hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def pytest_runtest_setup(item):
    if item.get_closest_marker("root") and os.geteuid() != 0:
        pytest.skip("needs root")
    if not item.get_closest_marker("no_fuse") and not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("needs access to /dev/fuse")


def directory_of(item):
    """Short, since a socket's path in it may have 107 bytes."""
    return f"{os.environ[TOP_VARIABLE]}/{item.name.removeprefix('test_')[:NAME_MAX]}-{zlib.crc32(item.nodeid.encode()):08x}"


@pytest.fixture
def store(request):
    """A cluster of the test's own, of which nothing exists yet."""
    return Store(directory_of(request.node))


@pytest.hookimpl(hookwrapper=True)
def pytest_pyfunc_call(pyfuncitem):
    outcome = yield
    if outcome.excinfo is None and "store" in pyfuncitem.funcargs:
        pyfuncitem.funcargs["store"].end()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    store = item.funcargs.get("store")
    if call.excinfo and call.excinfo.errisinstance(subprocess.TimeoutExpired) and store and store.server_pid:
        report.sections.append(("The server's threads", stacks_of(store.server_pid) or "no gdb"))


# --- what is told ---


def pytest_report_teststatus(report):
    return (AGAIN, "A", "AGAIN") if report.outcome == AGAIN else None


def pytest_terminal_summary(terminalreporter):
    first = terminalreporter.stats.get(AGAIN, [])
    passed, failed = with_outcome(terminalreporter, "passed"), with_outcome(terminalreporter, "failed", "error")
    for report in first:
        again = "failed again" if report.nodeid in failed else "unstable" if report.nodeid in passed else "not run again"
        terminalreporter.write_sep("_", f"{report.nodeid}: {again}; its first failure", red=True)
        terminalreporter.write_line(report.longreprtext)
        for title, text in report.sections:
            terminalreporter.write_sep("-", title)
            terminalreporter.write_line(text)
    unstable = sorted({report.nodeid for report in first} & passed - failed)
    if unstable:
        limit = f"at most {UNSTABLE_PERCENT_MAX} % of all tests may be"
        terminalreporter.write_line(f"hekate e2e: {len(unstable)} unstable ({limit}): {' '.join(unstable)}")
