//! The options of `-o` and /etc/fstab, in one table from which the parser and the help come.
//!
//! mount(8) passes only one word of each pair of kernel flags to a mount helper: `nosuid`, `nodev`, `noexec`, and
//! nothing for `suid`, `dev`, `exec` and `defaults`, unless the line has `user` or `users`. It puts these words before
//! all others. So there are `allow_suid` and `allow_dev`, which it passes on as they are, and which `nosuid` and
//! `nodev` overrule in any order.

use hekate_gateway_fuse::Change;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// Time that a mount with `_netdev` waits for its server: less than the 90 s after which systemd gives up.
const NETWORK_WAIT: Duration = Duration::from_secs(60);
const SECONDS_MAX: f64 = 86_400.0;

/// The options of a mount. Of two that contradict each other, the later one counts.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Those that `remount` can change.
    pub change: Change,
    /// `allow_suid` and `allow_dev`, for [`Options::settled`].
    allow_set_id: bool,
    allow_devices: bool,
    pub remount: bool,
    pub allow_other: bool,
    pub export: bool,
    /// The mount asks for no pledges.
    pub no_pledges: bool,
    /// Requests of the kernel come over /dev/fuse, even if it offers io_uring.
    pub no_uring: bool,
    pub cache: Option<Duration>,
    pub soft: Option<Duration>,
    pub network: bool,
    pub wait: Option<Duration>,
    pub state: Option<PathBuf>,
    pub server: Option<String>,
    pub credential: Option<PathBuf>,
}

/// An option: its name, the word after `=` if it takes a value, its help, and its effect.
struct Known {
    name: &'static str,
    value: &'static str,
    does: &'static str,
    set: fn(&mut Options, &str) -> Result<(), String>,
}

const fn known(
    name: &'static str,
    value: &'static str,
    does: &'static str,
    set: fn(&mut Options, &str) -> Result<(), String>,
) -> Known {
    Known { name, value, does, set }
}

macro_rules! set {
    (|$options:ident| $what:expr) => {
        |$options, _| {
            $what;
            Ok(())
        }
    };
}

const KNOWN: &[Known] = &[
    known("ro", "", "read-only", set!(|o| o.change.read_only = Some(true))),
    known("rw", "", "read and write, which is the default", set!(|o| o.change.read_only = Some(false))),
    known("noexec", "", "no program can be executed from the mount", set!(|o| o.change.execute = Some(false))),
    known("exec", "", "programs can be executed, which is the default", set!(|o| o.change.execute = Some(true))),
    known(
        "nosuid",
        "",
        "set-user-id bits have no effect, which is the default",
        set!(|o| o.change.set_id = Some(false)),
    ),
    known(
        "allow_suid",
        "",
        "set-user-id bits have effect, unless nosuid is given (root only)",
        set!(|o| o.allow_set_id = true),
    ),
    known(
        "suid",
        "",
        "as allow_suid, for `hekate mount`; mount(8) passes it on only with user or users",
        set!(|o| o.change.set_id = Some(true)),
    ),
    known("nodev", "", "device nodes cannot be opened, which is the default", set!(|o| o.change.devices = Some(false))),
    known(
        "allow_dev",
        "",
        "device nodes open devices, unless nodev is given (root only)",
        set!(|o| o.allow_devices = true),
    ),
    known(
        "dev",
        "",
        "as allow_dev, for `hekate mount`; mount(8) passes it on only with user or users",
        set!(|o| o.change.devices = Some(true)),
    ),
    known("noatime", "", "reading changes no access times", set!(|o| o.change.access_times = Some(false))),
    known(
        "relatime",
        "",
        "reading changes access times that are older than the last change or a day, which is the default",
        set!(|o| { o.change.access_times = Some(true) }),
    ),
    known(
        "allow_other",
        "",
        "other users have access, as permissions allow; always so for mounts of root",
        set!(|o| { o.allow_other = true }),
    ),
    known("cache", "SECONDS", "time for which the kernel may cache names, attributes and pages", |o, value| {
        o.cache = Some(seconds(value)?);
        Ok(())
    }),
    known(
        "soft",
        "SECONDS",
        "fail ops after that time without an answer of the server; without this option they wait",
        |o, value| {
            o.soft = Some(seconds(value)?).filter(|limit| !limit.is_zero());
            Ok(())
        },
    ),
    known(
        "export",
        "",
        "file handles stay valid while it is mounted, for NFS; takes 48 bytes of memory for each inode seen",
        set!(|o| { o.export = true }),
    ),
    known(
        "nopledges",
        "",
        "ask the servers for each name and attribute anew: slower, and no client that changes them waits for this mount",
        set!(|o| { o.no_pledges = true }),
    ),
    known(
        "nouring",
        "",
        "take the kernel's requests over /dev/fuse, even if it offers io_uring",
        set!(|o| o.no_uring = true),
    ),
    known("server", "ADDRESS", "the server, as --server", |o, value| {
        o.server = Some(value.into());
        Ok(())
    }),
    known("credential", "FILE", "the credential that is shown over TCP, as --credential", |o, value| {
        o.credential = Some(value.into());
        Ok(())
    }),
    known("state", "DIR", "the state directory whose server and credential are used, as --state", |o, value| {
        o.state = Some(value.into());
        Ok(())
    }),
    known(
        "wait",
        "SECONDS",
        "time to wait for a server that does not answer yet; default 0, with _netdev 60",
        |o, value| {
            o.wait = Some(seconds(value)?);
            Ok(())
        },
    ),
    known(
        "_netdev",
        "",
        "the mount needs the network; implies wait=60 unless wait is given",
        set!(|o| o.network = true),
    ),
    known(
        "remount",
        "",
        "change options of an existing mount: ro, rw and exec, suid, dev with their opposites",
        set!(|o| { o.remount = true }),
    ),
    known("user", "[=NAME]", USERS, for_users),
    known("users", "", USERS, for_users),
    known("owner", "", OWNERS, for_owner),
    known("group", "", OWNERS, for_owner),
];

const USERS: &str = "noexec, nosuid, nodev, unless a later option overrules them; mount(8) lets users mount it";
const OWNERS: &str = "nosuid, nodev, unless a later option overrules them; mount(8) lets its owner mount it";

/// As mount(8) defines `user` and `users`.
fn for_users(options: &mut Options, _: &str) -> Result<(), String> {
    options.change.execute = Some(false);
    for_owner(options, "")
}

/// As mount(8) defines `owner` and `group`.
fn for_owner(options: &mut Options, _: &str) -> Result<(), String> {
    (options.change.set_id, options.change.devices) = (Some(false), Some(false));
    Ok(())
}

/// Options that have a meaning for mount(8) or systemd only, comments, and options that the kernel lists for each
/// mount, which mount(8) passes back for a remount.
const IGNORED: &[&str] = &[
    "defaults",
    "async",
    "auto",
    "noauto",
    "nofail",
    "nouser",
    "comment",
    "default_permissions",
    "user_id",
    "group_id",
    "max_read",
];

/// `name` or `name=value` of one option.
fn split(option: &str) -> (&str, &str) {
    option.split_once('=').unwrap_or((option, ""))
}

impl FromStr for Options {
    type Err = String;

    /// # Errors
    ///
    /// In words: an option that is not known, or a malformed value.
    fn from_str(text: &str) -> Result<Self, String> {
        Self::parse(text, false)
    }
}

impl Options {
    /// Parses options that are separated by commas. `sloppy`: ignore options that are not known, as mount(8) -s.
    ///
    /// # Errors
    ///
    /// In words: an option that is not known, or a malformed value.
    pub fn parse(text: &str, sloppy: bool) -> Result<Self, String> {
        let mut options = Self::default();
        for option in text.split(',').filter(|option| !option.is_empty()) {
            let (name, value) = split(option);
            if let Some(known) = KNOWN.iter().find(|known| known.name == name) {
                match (known.value, option.contains('=')) {
                    ("", true) => return Err(format!("{name} takes no value")),
                    (wanted, false) if !wanted.is_empty() && !wanted.starts_with('[') => {
                        return Err(format!("{name} needs a value: {name}={wanted}"));
                    }
                    _ => (known.set)(&mut options, value).map_err(|what| format!("{option}: {what}"))?,
                }
            } else if option == "help" {
                return Err(format!("the options are:\n{}", help()));
            } else if !sloppy && !is_ignored(name) {
                return Err(format!("{name:?} is no option of Hekate; there are: {}", list()));
            }
        }
        Ok(options)
    }

    /// The union; where the two differ, `more` counts.
    pub fn and(self, more: &Options) -> Options {
        let (one, two) = (&self.change, &more.change);
        let change = Change {
            read_only: two.read_only.or(one.read_only),
            set_id: two.set_id.or(one.set_id),
            devices: two.devices.or(one.devices),
            execute: two.execute.or(one.execute),
            access_times: two.access_times.or(one.access_times),
        };
        Options {
            change,
            allow_set_id: self.allow_set_id || more.allow_set_id,
            allow_devices: self.allow_devices || more.allow_devices,
            remount: self.remount || more.remount,
            allow_other: self.allow_other || more.allow_other,
            export: self.export || more.export,
            no_pledges: self.no_pledges || more.no_pledges,
            no_uring: self.no_uring || more.no_uring,
            cache: more.cache.or(self.cache),
            soft: more.soft.or(self.soft),
            network: self.network || more.network,
            wait: more.wait.or(self.wait),
            state: more.state.clone().or(self.state),
            server: more.server.clone().or(self.server),
            credential: more.credential.clone().or(self.credential),
        }
    }

    /// Applies `allow_suid` and `allow_dev` once all options are known, unless `nosuid` and `nodev` overrule them.
    pub fn settled(mut self) -> Options {
        let change = &mut self.change;
        change.set_id = change.set_id.or(self.allow_set_id.then_some(true));
        change.devices = change.devices.or(self.allow_devices.then_some(true));
        self
    }

    /// Time to wait for the server.
    pub fn wait(&self) -> Duration {
        self.wait.unwrap_or(if self.network { NETWORK_WAIT } else { Duration::ZERO })
    }

    /// The options that the process of the mount needs, in the form of `-o`.
    pub fn words(&self) -> String {
        let Change { read_only, set_id, devices, execute, access_times } = self.change;
        let either = |choice: Option<bool>, yes, no| choice.map(|chosen| if chosen { yes } else { no });
        let flags = [
            either(read_only, "ro", "rw"),
            either(set_id, "suid", "nosuid"),
            either(devices, "dev", "nodev"),
            either(execute, "exec", "noexec"),
            either(access_times, "relatime", "noatime"),
            self.allow_other.then_some("allow_other"),
            self.export.then_some("export"),
            self.no_pledges.then_some("nopledges"),
            self.no_uring.then_some("nouring"),
        ];
        let limits = [("cache", self.cache), ("soft", self.soft), ("wait", Some(self.wait()))];
        let limits = limits.into_iter().filter_map(|(name, limit)| Some(format!("{name}={}", limit?.as_secs_f64())));
        let words: Vec<String> = flags.into_iter().flatten().map(String::from).chain(limits).collect();
        words.join(",")
    }
}

fn is_ignored(name: &str) -> bool {
    IGNORED.contains(&name) || name.starts_with("x-") || name.starts_with("X-")
}

/// Parses a time in seconds, such as 5 or 0.5.
///
/// # Errors
///
/// In words: the text is not a number of seconds within the limit.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let number = text.parse().ok().filter(|number| (0.0..=SECONDS_MAX).contains(number));
    number.map(Duration::from_secs_f64).ok_or_else(|| format!("{text:?} is not 0 to {SECONDS_MAX} seconds"))
}

impl Known {
    fn text(&self) -> String {
        let equals = if self.value.is_empty() || self.value.starts_with('[') { "" } else { "=" };
        format!("{}{equals}{}", self.name, self.value)
    }
}

fn ignored() -> String {
    let names = IGNORED.iter().map(|name| if *name == "comment" { "comment=" } else { name });
    names.chain(["x-*", "X-*"]).collect::<Vec<_>>().join(", ")
}

/// The options with an effect, then those without, for an error.
fn list() -> String {
    let own: Vec<String> = KNOWN.iter().map(Known::text).collect();
    format!("{}; and without effect: {}", own.join(", "), ignored())
}

/// Each option as written, and its help.
pub fn rows() -> Vec<(String, String)> {
    let known = KNOWN.iter().map(|known| (known.text(), known.does.to_owned()));
    known.chain([(ignored(), "accepted without effect".to_owned())]).collect()
}

/// The table for people.
pub fn help() -> String {
    let line = |(option, does): (String, String)| match option.contains(", ") {
        true => format!("  {option}: {does}"),
        false => format!("  {option:<15} {does}"),
    };
    rows().into_iter().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Options {
        Options::from_str(text).unwrap()
    }

    #[test]
    fn later_options_win() {
        let options = parse("ro,rw,noexec,cache=1,cache=2.5");
        assert_eq!((options.change.read_only, options.change.execute), (Some(false), Some(false)));
        assert_eq!(options.cache, Some(Duration::from_millis(2500)));
        let both = parse("ro,cache=1,export").and(&parse("rw"));
        assert_eq!((both.change.read_only, both.cache, both.export), (Some(false), Some(Duration::from_secs(1)), true));
    }

    #[test]
    fn what_users_mount_harms_nobody_unless_it_is_said() {
        let options = parse("user=jane,noauto,exec");
        let change = &options.change;
        assert_eq!((change.execute, change.set_id, change.devices), (Some(true), Some(false), Some(false)));
        let change = parse("owner").change;
        assert_eq!((change.execute, change.set_id, change.devices), (None, Some(false), Some(false)));
    }

    #[test]
    fn set_id_and_devices_are_allowed_unless_they_are_forbidden_in_any_order() {
        let settled = |text: &str| {
            let change = parse(text).settled().change;
            (change.set_id, change.devices)
        };
        let wanted = [
            ("rw", (None, None)),
            ("rw,allow_suid", (Some(true), None)),
            ("rw,allow_dev,allow_suid", (Some(true), Some(true))),
            ("allow_suid,nosuid", (Some(false), None)),
            ("nosuid,nodev,allow_dev,allow_suid", (Some(false), Some(false))),
            ("noexec,nosuid,nodev,user,suid,allow_dev", (Some(true), Some(false))),
        ];
        wanted.iter().for_each(|(text, flags)| assert_eq!(settled(text), *flags, "{text}"));
        let both = parse("allow_suid,allow_dev").and(&parse("nodev")).settled();
        assert_eq!((both.change.set_id, both.change.devices), (Some(true), Some(false)));
    }

    #[test]
    fn what_is_for_others_is_taken_and_what_is_for_nobody_refused() {
        let fstab = "defaults,async,auto,nofail,comment=a b,x-systemd.automount,X-mount.mkdir=0755,,_netdev";
        assert_eq!(parse(fstab).words(), "wait=60");
        let shown = "rw,nosuid,nodev,relatime,user_id=0,group_id=0,default_permissions,allow_other,max_read=1048576";
        assert_eq!(parse(shown).words(), "rw,nosuid,nodev,relatime,allow_other,wait=0");
        for wrong in ["acl", "strictatime", "sync", "user_xattr=1", "ro=1", "cache", "cache=x", "soft=-1", "cache=1e9"]
        {
            let refused = Options::from_str(wrong).unwrap_err();
            assert!(refused.contains(split(wrong).0), "{wrong}: {refused}");
        }
        assert!(Options::from_str("strictatime").unwrap_err().contains("relatime, allow_other, cache=SECONDS"));
        assert_eq!(Options::parse("strictatime,ro", true).unwrap().change.read_only, Some(true));
        assert!(Options::parse("cache=x", true).is_err());
    }

    #[test]
    fn words_say_the_same() {
        let text = "ro,suid,dev,noexec,noatime,allow_other,export,nopledges,cache=0.25,soft=30,wait=5";
        assert_eq!(parse(text).words(), text);
        assert_eq!(parse(&parse("user,cache=3").words()).words(), "nosuid,nodev,noexec,cache=3,wait=0");
    }

    #[test]
    fn the_help_names_each() {
        let help = help();
        assert!(KNOWN.iter().all(|known| help.contains(&format!("  {}", known.name))), "{help}");
        let refused = Options::from_str("nohelp").unwrap_err();
        for name in KNOWN.iter().map(|known| known.name).chain(IGNORED.iter().copied()) {
            assert!(refused.contains(name) && help.contains(name), "{name} is not listed: {refused}");
        }
    }
}
