//! Histories recorded from real mounts (`tests/e2e/recorder.py`): lines of JSON, one for each call.
//!
//! A line `{"round": N}` begins a new history, of an empty tree of its own. All others have `who` (a process),
//! `from` and `to` (nanoseconds of one monotonic clock), `op` with its arguments, and `error`, the name of an errno, if
//! the call failed. Inodes are `st_ino`; 0 is the root of the history. A system call is several requests of the kernel,
//! so only facts that one moment must have shown are taken from it:
//!
//! - a rename with NOREPLACE whose target exists shows that the target exists, and nothing about its source, which the
//!   kernel looked up before;
//! - a link through a descriptor that fails with ENOENT shows nothing: the kernel uses a count of its own;
//! - files whose bytes are recorded have one name, and keep it;
//! - stat shows that a name led to an inode at one moment, and the links of this inode at another;
//! - a change that fails with EIO or ENOSPC may have been made, fully or in part.

use crate::checkers::{self, Complaint, appends::Append};
use crate::history::{History, Moment};
use bytes::Bytes;
use hekate_proto::{
    Attr, AttrChanges, DataOp, Entry, Error, InodeId, InodeOp, Layout, Lock, LockKind, LockOp, LockOwner, LockStyle,
    Name, NameOp, NewNode, NodeKind, Op, ROOT, RenameMode, Reply, SessionId, Time,
};
use serde::Deserialize;

/// Permission bits of new inodes; no checker looks at them.
const MODE: u16 = 0o644;

#[derive(Deserialize)]
struct Recorded {
    who: u32,
    from: Moment,
    to: Moment,
    error: Option<String>,
    #[serde(flatten)]
    what: What,
}

#[derive(Deserialize)]
#[serde(tag = "op", rename_all = "lowercase")]
enum What {
    Mkdir { dir: u64, name: String, inode: Option<u64> },
    Create { dir: u64, name: String, inode: Option<u64> },
    Unlink { dir: u64, name: String },
    Link { inode: u64, dir: u64, name: String },
    Rename { dir: u64, name: String, to_dir: u64, to_name: String, mode: Mode },
    Stat { dir: u64, name: String, inode: Option<u64>, links: Option<u32> },
    List { dir: u64, names: Vec<(String, u64)> },
    Size { inode: u64, size: u64 },
    Write { inode: u64, offset: u64, data: Cells },
    Read { inode: u64, offset: u64, length: u32, data: Cells },
    Truncate { inode: u64, size: u64 },
    Append { inode: u64, data: Cells, offset: Option<u64> },
    Lock { inode: u64, style: Style, kind: Kind, start: u64, end: u64, owner: u64 },
}

#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "lowercase")]
enum Mode {
    Replace,
    NoReplace,
    Exchange,
}

#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "lowercase")]
enum Style {
    Posix,
    Flock,
}

#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Read,
    Write,
    Unlock,
}

/// Bytes as hexadecimal digits.
struct Cells(Bytes);

impl<'de> Deserialize<'de> for Cells {
    fn deserialize<D: serde::Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        let digits = String::deserialize(input)?;
        let byte = |at: usize| digits.get(at..at + 2).and_then(|pair| u8::from_str_radix(pair, 16).ok());
        let bytes: Option<Vec<u8>> = (0..digits.len()).step_by(2).map(byte).collect();
        bytes.map(|bytes| Self(bytes.into())).ok_or_else(|| serde::de::Error::custom("no hexadecimal digits"))
    }
}

/// One history, and the parts that are judged separately.
#[derive(Default)]
pub struct Round {
    pub history: History,
    pub appends: Vec<Append>,
}

/// The rounds of a recording.
///
/// # Errors
///
/// A line is malformed; the text names the line and the cause.
pub fn read(text: &str) -> Result<Vec<Round>, String> {
    let mut rounds: Vec<Vec<(usize, Recorded)>> = Vec::new();
    for (number, line) in text.lines().enumerate().map(|(at, line)| (at + 1, line)) {
        let wrong = |error: serde_json::Error| format!("line {number}: {error}");
        let value: serde_json::Value = serde_json::from_str(line).map_err(wrong)?;
        if value.get("round").is_some() {
            rounds.push(Vec::new());
            continue;
        }
        let round = rounds.last_mut().ok_or_else(|| format!("line {number}: no round has begun"))?;
        round.push((number, serde_json::from_value(value).map_err(wrong)?));
    }
    rounds.into_iter().map(round).collect()
}

/// The complaints about a round.
pub fn check(round: &Round) -> Vec<Complaint> {
    let history = &round.history;
    let names = checkers::names::check(history).into_iter();
    let locks = checkers::locks::check(history);
    names
        .chain(checkers::contents::check(history))
        .chain(locks)
        .chain(checkers::appends::check(&round.appends))
        .collect()
}

fn round(mut lines: Vec<(usize, Recorded)>) -> Result<Round, String> {
    lines.sort_by_key(|(_, call)| (call.from, call.who));
    let mut round = Round::default();
    for (number, call) in lines {
        if call.to < call.from {
            return Err(format!("line {number}: it returns before it is called"));
        }
        round.take(&call).map_err(|why| format!("line {number}: {why}"))?;
    }
    Ok(round)
}

impl Round {
    fn take(&mut self, call: &Recorded) -> Result<(), String> {
        if let (What::Append { inode, data, offset }, None) = (&call.what, &call.error) {
            let (from, to, length) = (call.from, call.to, data.0.len() as u64);
            self.appends.push(Append { inode: id(*inode), from, to, length, offset: *offset });
        }
        for (op, outcome) in said(&call.what, call.error.as_deref())? {
            let number = self.history.invoke(call.who, SessionId(call.who.into()), op, false, call.from);
            self.history.answer(number, call.to, outcome);
        }
        Ok(())
    }
}

/// Ops with their answers, each of some moment of the call.
type Said = Vec<(Op, hekate_proto::Result<Reply>)>;

fn said(what: &What, error: Option<&str>) -> Result<Said, String> {
    match what {
        What::Mkdir { dir, name, inode } => Ok(vec![made((*dir, name), NodeKind::Directory, *inode, error)?]),
        What::Create { dir, name, inode } => Ok(vec![made((*dir, name), NodeKind::File, *inode, error)?]),
        What::Unlink { dir, name } => {
            let op = NameOp::Unlink { dir: id(*dir), name: word(name)?, open_here: None };
            Ok(vec![(Op::Name { op }, done(error)?)])
        }
        What::Link { .. } if error == Some("ENOENT") => Ok(Vec::new()),
        What::Link { dir, name, .. } if error == Some("EEXIST") => {
            Ok(vec![made((*dir, name), NodeKind::File, None, error)?])
        }
        What::Link { inode, dir, name } => {
            let op = NameOp::Link { dir: id(*dir), name: word(name)?, inode: id(*inode) };
            Ok(vec![(Op::Name { op }, done(error)?)])
        }
        What::Rename { to_dir, to_name, mode: Mode::NoReplace, .. } if error == Some("EEXIST") => {
            Ok(vec![made((*to_dir, to_name), NodeKind::File, None, error)?])
        }
        What::Rename { dir, name, to_dir, to_name, mode } => {
            let (dir, name, to_dir, to_name) = (id(*dir), word(name)?, id(*to_dir), word(to_name)?);
            let mode = RenameMode::from(*mode);
            let op = NameOp::Rename { dir, name, to_dir, to_name, mode, open_here: None };
            Ok(vec![(Op::Name { op }, done(error)?)])
        }
        What::Stat { dir, name, inode, links } => looked_up(*dir, name, *inode, *links, error),
        What::List { dir, names } => Ok(vec![listed(*dir, names, error)?]),
        other => on_inode(other, error).map(|said| vec![said]),
    }
}

fn on_inode(what: &What, error: Option<&str>) -> Result<(Op, hekate_proto::Result<Reply>), String> {
    if let (Some("EIO" | "ENOSPC"), false) = (error, matches!(what, What::Lock { .. })) {
        let (op, _) = on_inode(what, None)?;
        return Ok((op, done(error)?));
    }
    let write = |inode: u64, offset: u64, data: &Bytes| Op::Data {
        op: DataOp::Write { inode: id(inode), offset, data: data.clone(), drop_set_id: false },
    };
    if let (Some(error), false) = (error, matches!(what, What::Lock { .. })) {
        return Err(format!("no call on bytes may answer {error}"));
    }
    match what {
        What::Size { inode, size } => {
            let attr = Attr { size: *size, ..attr(*inode, NodeKind::File) };
            Ok((Op::Inode { op: InodeOp::GetAttr { inode: id(*inode) } }, Ok(Reply::Node { attr, created: false })))
        }
        What::Truncate { inode, size } => {
            let attr = Attr { size: *size, ..attr(*inode, NodeKind::File) };
            let changes = AttrChanges { size: Some(*size), ..AttrChanges::default() };
            Ok((
                Op::Inode { op: InodeOp::SetAttr { inode: id(*inode), changes } },
                Ok(Reply::Node { attr, created: false }),
            ))
        }
        What::Write { inode, offset, data } => Ok((write(*inode, *offset, &data.0), Ok(Reply::Done))),
        // An append whose bytes are not in the file was not read by any call; the checker of appends complains of it.
        What::Append { inode, data, offset } => {
            Ok((write(*inode, offset.unwrap_or(u64::MAX >> 1), &data.0), Ok(Reply::Done)))
        }
        What::Read { inode, offset, length, data } => {
            let reply = Reply::FileData { bytes: data.0.clone(), attr: attr(*inode, NodeKind::File) };
            Ok((
                Op::Data { op: DataOp::Read { inode: id(*inode), offset: *offset, length: *length, touch: false } },
                Ok(reply),
            ))
        }
        What::Lock { inode, style, kind, start, end, owner } => {
            let owner = LockOwner(*owner);
            let lock = Lock { kind: (*kind).into(), style: (*style).into(), start: *start, end: *end, owner, pid: 0 };
            Ok((Op::Lock { op: LockOp::Set { inode: id(*inode), lock, wait: false } }, done(error)?))
        }
        _ => Err("it is about a name".into()),
    }
}

fn made(
    (dir, name): (u64, &str),
    kind: NodeKind,
    inode: Option<u64>,
    error: Option<&str>,
) -> Result<(Op, hekate_proto::Result<Reply>), String> {
    let node = if kind == NodeKind::Directory { NewNode::Directory } else { NewNode::File };
    let name = word(name)?;
    let op =
        NameOp::Create { dir: id(dir), name, node, mode: MODE, uid: 0, gid: 0, exclusive: true, seed: 0, umask: 0 };
    let outcome = match (inode, error) {
        (Some(inode), None) => Ok(Reply::Node { attr: attr(inode, kind), created: true }),
        (None, None) => return Err("it lacks the inode that was made".into()),
        (_, Some(error)) => Err(error_of(error)?),
    };
    Ok((Op::Name { op }, outcome))
}

fn looked_up(
    dir: u64,
    name: &str,
    inode: Option<u64>,
    links: Option<u32>,
    error: Option<&str>,
) -> Result<Said, String> {
    let op = Op::Name { op: NameOp::Lookup { dir: id(dir), name: word(name)? } };
    match (inode, links, error) {
        (_, _, Some(error)) => Ok(vec![(op, Err(error_of(error)?))]),
        // The name was removed or replaced between the kernel's two requests: this answer is of no single moment.
        (Some(_), Some(0), None) => Ok(Vec::new()),
        (Some(inode), Some(nlink), None) => {
            let attr = Attr { nlink, ..attr(inode, NodeKind::File) };
            Ok(vec![(op, Ok(Reply::Node { attr, created: false }))])
        }
        _ => Err("it lacks what was found".into()),
    }
}

fn listed(dir: u64, names: &[(String, u64)], error: Option<&str>) -> Result<(Op, hekate_proto::Result<Reply>), String> {
    let op =
        Op::Name { op: NameOp::List { dir: id(dir), after: None, limit: u32::MAX, attributes: false, touch: false } };
    if let Some(error) = error {
        return Ok((op, Err(error_of(error)?)));
    }
    let entry = |(name, inode): &(String, u64)| {
        Ok(Entry { name: word(name)?, inode: id(*inode), kind: NodeKind::File, attr: None })
    };
    let entries = names.iter().map(entry).collect::<Result<Vec<_>, String>>()?;
    Ok((op, Ok(Reply::List { entries, end: true })))
}

fn done(error: Option<&str>) -> Result<hekate_proto::Result<Reply>, String> {
    Ok(match error {
        None => Ok(Reply::Done),
        Some(error) => Err(error_of(error)?),
    })
}

/// The store's error for an errno; after EIO and ENOSPC the outcome is unknown. A recording may not contain any other
/// errno.
fn error_of(errno: &str) -> Result<Error, String> {
    Ok(match errno {
        "ENOENT" => Error::NotFound,
        "EEXIST" => Error::Exists,
        "EAGAIN" => Error::WouldBlock,
        "EIO" => Error::Io { what: String::new() },
        "ENOSPC" => Error::NoSpace { what: String::new() },
        other => return Err(format!("no call of a recording may answer {other}")),
    })
}

fn id(number: u64) -> InodeId {
    if number == 0 { ROOT } else { InodeId::from_bits(u128::from(number)) }
}

fn word(name: &str) -> Result<Name, String> {
    Name::try_from(name).map_err(|_| format!("{name:?} is no name"))
}

/// Attributes of a new inode; only id, kind, links and size are looked at.
fn attr(inode: u64, kind: NodeKind) -> Attr {
    let nlink = if kind == NodeKind::Directory { 2 } else { 1 };
    let time = Time(0);
    Attr {
        id: id(inode),
        kind,
        mode: MODE,
        uid: 0,
        gid: 0,
        nlink,
        size: 0,
        device: 0,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
        change: 0,
        layout: Layout::inline(0),
        spread: 1,
        has_xattrs: false,
        etag: Bytes::new(),
        implied: false,
    }
}

impl From<Mode> for RenameMode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Replace => Self::Replace,
            Mode::NoReplace => Self::NoReplace,
            Mode::Exchange => Self::Exchange,
        }
    }
}

impl From<Style> for LockStyle {
    fn from(style: Style) -> Self {
        match style {
            Style::Posix => Self::Posix,
            Style::Flock => Self::Flock,
        }
    }
}

impl From<Kind> for LockKind {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Read => Self::Read,
            Kind::Write => Self::Write,
            Kind::Unlock => Self::Unlock,
        }
    }
}

#[cfg(test)]
mod tests;
