//! Calls about objects: a few keys of one directory, which no other call touches.

use crate::checkers::objects::content_of;
use bytes::Bytes;
use hekate_brick::storage::Random;
use hekate_proto::*;

/// Keys that clients use.
const KEYS: u64 = 3;
/// ETags, files without names and directories that are remembered.
const KNOWN_MAX: usize = 4;

/// What the clients know of objects, from answers.
#[derive(Debug, Default)]
pub struct KnownObjects {
    etags: Vec<Bytes>,
    /// Files without a name, which may be put.
    unnamed: Vec<InodeId>,
    /// Directories that keys needed. Each is in a partition of its own choice.
    directories: Vec<InodeId>,
}

fn remember<T: PartialEq>(known: &mut Vec<T>, new: T) {
    if !known.contains(&new) {
        known.push(new);
    }
    if known.len() > KNOWN_MAX {
        known.remove(0);
    }
}

impl KnownObjects {
    /// Learns from an answer. Returns false if the call was not about objects.
    pub fn learn(&mut self, op: &Op, reply: &Reply) -> bool {
        match (op, reply) {
            (Op::Name { op: NameOp::Put { .. } }, Reply::Node { attr, .. }) => {
                remember(&mut self.etags, attr.etag.clone())
            }
            (Op::Name { op: NameOp::CreateUnnamed { .. } }, Reply::Node { attr, .. }) => {
                remember(&mut self.unnamed, attr.id);
            }
            (Op::Name { op: NameOp::MakePrefix { .. } }, Reply::Node { attr, .. }) => {
                remember(&mut self.directories, attr.id);
            }
            (Op::Name { op: NameOp::Rmdir { dir: SYSTEM, .. } }, _) => {}
            _ => return false,
        }
        true
    }

    /// A call about an object.
    pub fn next_op(&mut self, random: &mut Random) -> NameOp {
        let key = [b'o', b'0' + random.below(KEYS) as u8];
        let (dir, name, alternate) = (SYSTEM, named(&key), Some(named(&[ESCAPED_NAME, &key].concat())));
        match random.below(20) {
            0..=6 => {
                let (condition, etag) = (self.condition(random), Bytes::from(format!("{:016x}", random.number())));
                let source = match self.unnamed.pop().filter(|_| random.once_in(2)) {
                    Some(inode) => PutSource::Inode { inode },
                    None => {
                        let (content, attributes) = (content_of(&etag), Vec::new());
                        PutSource::Bytes { content, mode: 0o640, uid: 1, gid: 1, attributes }
                    }
                };
                let (keep, seed) = (random.once_in(4), random.number() as u32);
                NameOp::Put { dir, name, alternate, source, etag, condition, keep, seed }
            }
            7..=10 => NameOp::Fetch { dir, name, alternate, attribute: Bytes::from_static(b"none"), content: true },
            11 | 12 => NameOp::Remove { dir, name, alternate, condition: self.condition(random), keep: false },
            13 => {
                let (alternate, seed) = (named(&[ESCAPED_NAME, &key].concat()), random.number());
                NameOp::MakePrefix { dir, name, alternate, mode: 0o755, uid: 1, gid: 1, seed }
            }
            14 => NameOp::Rmdir { dir, name },
            15 | 16 => all_keys(),
            _ => {
                let dir = self.directories.last().copied().unwrap_or(SYSTEM);
                let seed = random.number();
                NameOp::CreateUnnamed { dir, mode: 0o600, uid: 1, gid: 1, umask: 0, linkable: true, seed }
            }
        }
    }

    fn condition(&self, random: &mut Random) -> Condition {
        match (random.below(6), self.etags.last()) {
            (0, _) => Condition::Absent,
            (1, _) => Condition::Exists,
            (2 | 3, Some(etag)) => Condition::Matches { etag: etag.clone() },
            _ => Condition::Always,
        }
    }
}

fn named(bytes: &[u8]) -> Name {
    match Name::new(Bytes::copy_from_slice(bytes)) {
        Ok(name) => name,
        Err(_) => unreachable!("letters and digits are a name"),
    }
}

/// A list of all keys.
pub fn all_keys() -> NameOp {
    NameOp::ListKeys { dir: SYSTEM, spread: 1, prefix: Bytes::new(), after: Bytes::new(), limit: 100 }
}
