//! Directories whose names several partitions share, from the client's side: `translators/distribute/wide.rs` as a
//! state machine that asks one part at a time.

use hekate_proto::*;

/// Rounds in which the parts of a directory are asked while the directory changes, and while subdirectories are made
/// and removed.
const EXACT_MAX: usize = 4;
const COLLECTS_MAX: usize = 16;

/// The progress of asking the parts of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Parts {
    List { dir: InodeId, spread: u32, attributes: bool, next: usize, entries: Vec<Entry> },
    Whole { dir: InodeId, spread: u32, home: Option<Attr>, views: Vec<StubView>, before: Vec<(u64, u32)>, tries: usize },
}

/// The next step.
pub enum Then {
    Ask(Parts, Position, Op),
    Answer(Result<Reply>),
}

pub fn is_wide(attr: &Attr) -> bool {
    attr.kind == NodeKind::Directory && attr.spread > 1
}

pub fn list(dir: InodeId, spread: u32, attributes: bool) -> Then {
    ask(Parts::List { dir, spread, attributes, next: 0, entries: Vec::new() })
}

pub fn whole(attr: &Attr) -> Then {
    let (dir, spread) = (attr.id, attr.spread);
    ask(Parts::Whole { dir, spread, home: None, views: Vec::new(), before: Vec::new(), tries: 0 })
}

fn ask(parts: Parts) -> Then {
    let place =
        |dir: InodeId, spread: u32, part: usize| name_positions(dir, spread).nth(part).unwrap_or(dir.position());
    let (position, op) = match &parts {
        Parts::List { dir, spread, attributes, next, .. } => {
            let (dir, spread, attributes) = (*dir, *spread, *attributes);
            let op = NameOp::ListPart { dir, spread, after: None, limit: 100, attributes };
            (place(dir, spread, *next), Op::Name { op })
        }
        Parts::Whole { dir, home: None, .. } => (dir.position(), Op::Inode { op: InodeOp::GetAttr { inode: *dir } }),
        Parts::Whole { dir, spread, views, .. } => {
            let op = NameOp::Stub { dir: *dir, spread: *spread };
            (place(*dir, *spread, views.len() + 1), Op::Name { op })
        }
    };
    Then::Ask(parts, position, op)
}

/// Handles the answer of a part.
pub fn answered(parts: Parts, reply: Reply) -> Then {
    match (parts, reply) {
        (Parts::List { dir, spread, attributes, next, mut entries }, Reply::List { entries: more, end: true }) => {
            entries.extend(more);
            if next + 1 < spread as usize {
                return ask(Parts::List { dir, spread, attributes, next: next + 1, entries });
            }
            entries.sort_by(|a, b| a.name.cmp(&b.name));
            Then::Answer(Ok(Reply::List { entries, end: true }))
        }
        (Parts::Whole { dir, spread, home: None, views, before, tries }, Reply::Node { attr, .. }) => {
            ask(Parts::Whole { dir, spread, home: Some(attr), views, before, tries })
        }
        (Parts::Whole { dir, spread, home: Some(home), mut views, before, tries }, Reply::Stub { stub }) => {
            views.push(stub);
            if views.len() + 1 < spread as usize {
                return ask(Parts::Whole { dir, spread, home: Some(home), views, before, tries });
            }
            let parts = views.iter().map(|view| (view.change, view.directories));
            let now: Vec<(u64, u32)> = std::iter::once((home.change, home.nlink)).chain(parts).collect();
            let counts = |of: &[(u64, u32)]| of.iter().map(|part| part.1).collect::<Vec<_>>();
            let tries = tries + 1;
            if now == before || tries >= EXACT_MAX && counts(&now) == counts(&before) || tries == COLLECTS_MAX {
                return Then::Answer(Ok(Reply::Node { attr: together(home, &views), created: false }));
            }
            ask(Parts::Whole { dir, spread, home: None, views: Vec::new(), before: now, tries })
        }
        _ => Then::Answer(Err(Error::Protocol { what: "a reply of another kind than the op's".into() })),
    }
}

fn together(home: Attr, views: &[StubView]) -> Attr {
    views.iter().fold(home, |sum, view| Attr {
        nlink: sum.nlink + view.directories,
        mtime: sum.mtime.max(view.mtime),
        ctime: sum.ctime.max(view.ctime),
        change: sum.change + view.change,
        ..sum
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkers::scenario::{FILE, attr};

    #[test]
    fn a_part_whose_mtime_was_set_back_keeps_the_directorys_ctime() {
        let (mtime, ctime) = (Time(1), Time(9));
        let part = StubView { spread: 2, entries: 1, directories: 0, mtime, ctime, change: 3 };
        assert_eq!(together(attr(FILE, NodeKind::Directory), &[part]).ctime, ctime);
    }
}
