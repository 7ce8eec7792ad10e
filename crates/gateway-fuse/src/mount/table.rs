//! The mount table, `/proc/self/mountinfo` (proc_pid_mountinfo(5)).

use hekate_proto::{Error, Result};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

const TABLE: &str = "/proc/self/mountinfo";

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Mount {
    /// The device number of its file system, as in sysfs: `0:35`.
    pub(super) device: String,
    pub(super) kind: String,
    pub(super) source: String,
    /// The options of the mount, followed by those of the file system.
    pub(super) options: Vec<String>,
}

impl Mount {
    pub(super) fn has(&self, option: &str) -> bool {
        self.options.iter().any(|one| one == option)
    }
}

/// The mount at an absolute path; of several the topmost.
pub(super) fn mounted_at(path: &Path) -> Result<Option<Mount>> {
    Ok(find(&read()?, path))
}

/// All mounts of the root of a file system, with their mount points, in the order of mounting.
pub(super) fn all() -> Result<Vec<(PathBuf, Mount)>> {
    Ok(list(&read()?))
}

fn read() -> Result<Vec<u8>> {
    std::fs::read(TABLE).map_err(|error| Error::io(format!("read {TABLE}"), error))
}

fn list(table: &[u8]) -> Vec<(PathBuf, Mount)> {
    let whole = |line: &&[u8]| line.split(|byte| *byte == b' ').nth(3) == Some(b"/".as_slice());
    table.split(|byte| *byte == b'\n').filter(whole).filter_map(parsed).collect()
}

fn find(table: &[u8], path: &Path) -> Option<Mount> {
    let lines = table.split(|byte| *byte == b'\n');
    lines.rev().filter_map(parsed).find_map(|(at, mount)| (at == path).then_some(mount))
}

/// Parses `36 35 98:0 /root /mount/point options shared:1 - type source options`.
fn parsed(line: &[u8]) -> Option<(PathBuf, Mount)> {
    let mut fields = line.split(|byte| *byte == b' ');
    let device = String::from_utf8_lossy(fields.nth(2)?).into_owned();
    let at = PathBuf::from(OsString::from_vec(unescaped(fields.nth(1)?)));
    let own = fields.next()?;
    fields.find(|field| *field == b"-")?;
    let mut text = || fields.next().map(|field| String::from_utf8_lossy(&unescaped(field)).into_owned());
    let (kind, source) = (text()?, text()?);
    let both = [String::from_utf8_lossy(own).into_owned(), text().unwrap_or_default()];
    let options = both.iter().flat_map(|list| list.split(',')).map(String::from).collect();
    Some((at, Mount { device, kind, source, options }))
}

/// Replaces `\` and three octal digits, which stand for blanks and backslashes.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        let octal = tail.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()).filter(|_| *first == b'\\') {
            Some(byte) => {
                out.push(byte);
                rest = &tail[3..];
            }
            None => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &[u8] = b"22 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n\
        40 22 0:35 / /mnt/my\\040files rw,nosuid shared:5 master:2 - fuse.hekate home rw,user_id=0\n\
        41 22 0:36 / /mnt/x rw - tmpfs tmpfs rw\n42 41 0:37 / /mnt/x rw - fuse.hekate top rw\n";

    #[test]
    fn a_mount_is_found_by_its_unescaped_path_the_topmost_first() {
        let found = |path: &str| find(SAMPLE, Path::new(path)).map(|mount| (mount.kind, mount.source));
        let wanted = |kind: &str, source: &str| Some((kind.into(), source.into()));
        assert_eq!(found("/mnt/my files"), wanted("fuse.hekate", "home"));
        assert_eq!(found("/mnt/x"), wanted("fuse.hekate", "top"));
        assert_eq!(find(SAMPLE, Path::new("/mnt")), None);
        assert_eq!(find(b"torn line\n\n1 2", Path::new("/")), None);
    }

    #[test]
    fn all_mounts_are_listed_in_order() {
        let found: Vec<_> = list(SAMPLE).into_iter().map(|(at, mount)| (at, mount.source)).collect();
        let wanted = [("/", "/dev/sda1"), ("/mnt/my files", "home"), ("/mnt/x", "tmpfs"), ("/mnt/x", "top")];
        assert_eq!(found, wanted.map(|(at, source)| (at.into(), source.to_string())));
    }

    #[test]
    fn its_options_are_those_of_the_mount_and_of_the_file_system() {
        let mount = find(SAMPLE, Path::new("/mnt/my files")).unwrap();
        assert!(mount.has("nosuid") && mount.has("user_id=0") && !mount.has("ro"), "{mount:?}");
        assert_eq!(mount.device, "0:35");
    }
}
