//! What an op of this session may change: of that the session has no pledge while the op is under way, since its leader
//! tells other sessions only.

use hekate_proto::*;
use hekate_threads::time_of_day;
use std::time::UNIX_EPOCH;

/// Difference of clocks up to which a client foresees that a read moves the time of access: an hour, in ns.
const CLOCK_SLACK: i64 = 3600 * 1_000_000_000;

/// Names and inodes that an op may change.
#[derive(Debug, Default)]
pub(crate) struct Touched {
    pub names: Vec<(InodeId, Name)>,
    pub inodes: Vec<InodeId>,
    /// Names whose inodes change too.
    pub leading: Vec<(InodeId, Name)>,
    /// Any file may change.
    pub any_file: bool,
    /// Inodes of `leading` may be directories.
    pub leads_to_directories: bool,
    /// Files whose bytes change.
    pub contents: Vec<InodeId>,
    /// The bytes of any file may change.
    pub any_content: bool,
}

impl Touched {
    fn inodes(inodes: impl IntoIterator<Item = InodeId>) -> Self {
        Self { inodes: inodes.into_iter().collect(), ..Self::default() }
    }

    fn content(inode: InodeId) -> Self {
        Self { contents: vec![inode], ..Self::inodes([inode]) }
    }

    /// A name in a directory, whose inode changes too.
    fn name(dir: InodeId, name: &Name) -> Self {
        let at = (dir, name.clone());
        Self { names: vec![at.clone()], inodes: vec![dir], leading: vec![at], ..Self::default() }
    }
}

/// What an op may change. `None`: nothing. `known`: attributes that are remembered.
pub(crate) fn touched_by(op: &Op, known: impl Fn(InodeId) -> Option<Attr>) -> Option<Touched> {
    let read = |inode: InodeId| {
        let due = known(inode).is_none_or(|attr| is_access_near(&attr));
        due.then(|| Touched::inodes([inode]))
    };
    match op {
        Op::Name { op } => named(op, read),
        Op::Inode { op } => match op {
            InodeOp::SetAttr { inode, changes } if changes.size.is_some() => Some(Touched::content(*inode)),
            InodeOp::SetAttr { inode, .. } | InodeOp::SetXattr { inode, .. } | InodeOp::RemoveXattr { inode, .. } => {
                Some(Touched::inodes([*inode]))
            }
            InodeOp::ReadLink { inode, touch: true } | InodeOp::Accessed { inode } => read(*inode),
            InodeOp::GetAttr { .. }
            | InodeOp::ReadLink { .. }
            | InodeOp::GetXattr { .. }
            | InodeOp::ListXattr { .. }
            | InodeOp::Parent { .. }
            | InodeOp::Map { .. }
            | InodeOp::Fetch { .. } => None,
        },
        Op::Data { op } => match op {
            DataOp::Copy { from, to, touch, .. } => {
                let mut touched = touch.then(|| read(*from)).flatten().unwrap_or_default();
                touched.inodes.push(*to);
                touched.contents.push(*to);
                Some(touched)
            }
            DataOp::Read { inode, touch: true, .. } => read(*inode),
            DataOp::Read { .. } | DataOp::Seek { .. } | DataOp::Fsync { .. } => None,
            other => other.inode().map(Touched::content),
        },
        Op::Lock { .. } | Op::Volume { .. } | Op::Leg { .. } => None,
    }
}

fn named(op: &NameOp, read: impl Fn(InodeId) -> Option<Touched>) -> Option<Touched> {
    Some(match op {
        // A name that exists leads to its inode, which does not change.
        NameOp::Create { dir, name, .. } => Touched { leading: Vec::new(), ..Touched::name(*dir, name) },
        NameOp::Link { dir, name, inode } => {
            let mut touched = Touched { leading: Vec::new(), ..Touched::name(*dir, name) };
            touched.inodes.push(*inode);
            touched
        }
        NameOp::Unlink { dir, name, open_here } => {
            let mut touched = Touched::name(*dir, name);
            touched.inodes.extend(*open_here);
            touched
        }
        NameOp::Rmdir { dir, name } | NameOp::RemovePrefix { dir, name } => {
            Touched { leads_to_directories: true, ..Touched::name(*dir, name) }
        }
        NameOp::Rename { dir, name, to_dir, to_name, open_here, .. } => {
            let (from, to) = ((*dir, name.clone()), (*to_dir, to_name.clone()));
            let mut inodes = vec![*dir, *to_dir];
            inodes.extend(*open_here);
            Touched {
                names: vec![from.clone(), to.clone()],
                inodes,
                leading: vec![from, to],
                leads_to_directories: true,
                ..Touched::default()
            }
        }
        NameOp::Put { dir, name, alternate, source, .. } => {
            let mut touched = Touched::name(*dir, name);
            if let Some(alternate) = alternate {
                touched.names.push((*dir, alternate.clone()));
                touched.leading.push((*dir, alternate.clone()));
            }
            if let PutSource::Inode { inode } = source {
                touched.inodes.push(*inode);
                touched.contents.push(*inode);
            }
            touched
        }
        NameOp::Remove { dir, name, alternate, .. } => {
            let mut touched = Touched::name(*dir, name);
            touched.names.extend(alternate.iter().map(|name| (*dir, name.clone())));
            touched.leading.extend(alternate.iter().map(|name| (*dir, name.clone())));
            touched
        }
        NameOp::MakePrefix { dir, name, alternate, .. } => {
            let mut touched = Touched::name(*dir, name);
            // A hidden file may have it, which loses the name.
            touched.names.push((*dir, alternate.clone()));
            touched.leading.push((*dir, alternate.clone()));
            touched
        }
        NameOp::Join { dir, parts, to, .. } => {
            let mut touched = Touched::name(*dir, to);
            touched.names.extend(parts.iter().map(|(name, _)| (*dir, name.clone())));
            (touched.any_file, touched.any_content) = (true, true);
            touched
        }
        NameOp::List { dir, after: None, touch: true, .. } => return read(*dir),
        NameOp::Lookup { .. }
        | NameOp::CreateUnnamed { .. }
        | NameOp::List { .. }
        | NameOp::ListPart { .. }
        | NameOp::Stub { .. }
        | NameOp::Fetch { .. }
        | NameOp::ListKeys { .. } => return None,
    })
}

/// True if a read may move the time of access, by any server's clock.
pub fn is_access_near(attr: &Attr) -> bool {
    let since = time_of_day().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = i64::try_from(since.as_nanos()).unwrap_or(i64::MAX);
    attr.is_access_due(Time(now.saturating_add(CLOCK_SLACK)))
}
