//! `hekate doctor`: what this machine lacks, and the fix.

mod credential;

use crate::cli::Cli;
use crate::failure::Failure;
use crate::output;
use crate::paths::Paths;
use rustix::process::{Resource, getrlimit};
use serde_json::{Value, json};
use std::borrow::Cow;
use std::path::Path;

struct Check {
    what: &'static str,
    state: State,
    found: String,
    fix: Cow<'static, str>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Good,
    Weak,
    Bad,
}

impl State {
    fn text(self) -> &'static str {
        match self {
            State::Good => "good",
            State::Weak => "weak",
            State::Bad => "bad",
        }
    }
}

fn checks(cli: &Cli) -> Vec<Check> {
    let mut checks = vec![kernel(), fuse_device(), fusermount(), mount_helper(), files(), server(cli), clock()];
    checks.extend(credential::credentials(cli));
    checks
}

fn count_bad(checks: &[Check]) -> usize {
    checks.iter().filter(|check| check.state == State::Bad).count()
}

/// All checks as JSON.
pub fn answer(cli: &Cli) -> Value {
    to_json(&checks(cli))
}

fn to_json(checks: &[Check]) -> Value {
    let row = |check: &Check| json!({ "check": check.what, "state": check.state.text(), "found": check.found, "fix": check.fix });
    json!({ "checks": checks.iter().map(row).collect::<Vec<_>>(), "bad": count_bad(checks) })
}

pub fn doctor(cli: &Cli) -> Result<(), Failure> {
    let checks = checks(cli);
    let bad = count_bad(&checks);
    if cli.json {
        output::json(&to_json(&checks));
    } else {
        let row = |check: &Check| {
            let fix = if check.state == State::Good { "" } else { &check.fix };
            vec![check.what.into(), check.state.text().into(), check.found.clone(), fix.into()]
        };
        output::table(&["CHECK", "STATE", "FOUND", "FIX"], &checks.iter().map(row).collect::<Vec<_>>());
    }
    if bad > 0 {
        // With --json the checks say it themselves: one document.
        return Err(match cli.json {
            true => Failure::printed(69),
            false => Failure::new(69, format!("{bad} check(s) failed; the column FIX has the remedy")),
        });
    }
    Ok(())
}

fn check(what: &'static str, state: State, found: impl Into<String>, fix: impl Into<Cow<'static, str>>) -> Check {
    Check { what, state, found: found.into(), fix: fix.into() }
}

/// Lowest kernel: 6.1, that of Debian 12.
fn kernel() -> Check {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut parts = release.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse::<u32>().ok());
    let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    let state = if version >= (6, 1) { State::Good } else { State::Bad };
    check("kernel", state, release, "6.1 or newer is needed")
}

fn fuse_device() -> Check {
    let fix = "load the module: modprobe fuse (in a container: --device /dev/fuse)";
    match std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse") {
        Ok(_) => check("/dev/fuse", State::Good, "can be opened", fix),
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            check("/dev/fuse", State::Weak, "not for this user", "chmod 666 /dev/fuse, or mount as root")
        }
        Err(error) => check("/dev/fuse", State::Bad, error.to_string(), fix),
    }
}

fn fusermount() -> Check {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&paths).map(|path| path.join("fusermount3")).find(|path| path.exists());
    let root = rustix::process::geteuid().is_root();
    match found {
        Some(path) => check("fusermount3", State::Good, path.display().to_string(), ""),
        None if root => check("fusermount3", State::Weak, "missing (root can do without)", "apt-get install fuse3"),
        None => check("fusermount3", State::Bad, "missing", "apt-get install fuse3"),
    }
}

/// mount(8) looks for a program named after the type; the type of an existing mount is fuse.hekate.
fn mount_helper() -> Check {
    let own = std::env::current_exe().and_then(|path| path.canonicalize()).unwrap_or_default();
    let links = ["/sbin/mount.hekate", "/sbin/mount.fuse.hekate"];
    let lacks: Vec<_> = links.iter().filter(|link| std::fs::canonicalize(link).is_err()).collect();
    let others = links.iter().find(|link| std::fs::canonicalize(link).is_ok_and(|found| found != own));
    let fix = links.map(|link| format!("ln -sf {} {link}", own.display())).join(" && ");
    match (&lacks[..], others) {
        ([], None) => check("mount helper", State::Good, links.join(", "), fix),
        ([], Some(other)) => check("mount helper", State::Weak, format!("{other} is another program"), fix),
        (lacks, _) => {
            let names = lacks.iter().map(|link| **link).collect::<Vec<_>>().join(", ");
            check("mount helper", State::Weak, format!("no {names}: `mount -t hekate` and fstab need it"), fix)
        }
    }
}

fn files() -> Check {
    let limit = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    let state = if limit >= 8192 { State::Good } else { State::Weak };
    check("open files", state, format!("at most {limit}"), "raise the hard limit to 8192 or more (ulimit -Hn)")
}

fn server(cli: &Cli) -> Check {
    let fix = "hekate init makes a cluster, hekate serve --detach starts it";
    let Ok(paths) = Paths::of(cli) else { return check("server", State::Weak, "no state directory", fix) };
    match super::control::look(cli, hekate_control::Status {}) {
        Ok(status) => check("server", State::Good, format!("process {}", status.pid), fix),
        Err(_) if hekate_server::state_directory::is_member(&paths.state) => {
            check("server", State::Weak, "not running", "hekate serve --detach")
        }
        Err(failure) => check("server", State::Weak, failure.text, fix),
    }
}

fn clock() -> Check {
    let source = Path::new("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    let name = std::fs::read_to_string(source).unwrap_or_default();
    let name = name.trim();
    let slow = matches!(name, "hpet" | "acpi_pm");
    let state = if slow { State::Weak } else { State::Good };
    check("clock", state, name, "a slow clock source costs every op; tsc or kvm-clock is better")
}
