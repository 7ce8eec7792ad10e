//! Directories whose names several partitions share. Their parts are read one after the other, so some answers about
//! them are of several moments and are not judged.

use hekate_proto::*;
use std::collections::BTreeSet;

/// Counter of the lists that are not judged.
pub const NOT_JUDGED: &str = "lists that are not judged: of several partitions, while others change them";

/// The directories that are known to be shared.
#[derive(Debug, Default)]
pub struct Spread(BTreeSet<InodeId>);

impl Spread {
    /// Remembers the shared directories that a server's reply shows. `asked`: the call that its client makes.
    pub fn note(&mut self, asked: Option<&Op>, reply: &Result<Reply>) {
        match reply {
            Ok(Reply::Node { attr, .. }) if attr.spread > 1 => _ = self.0.insert(attr.id),
            Ok(Reply::List { entries, .. }) => {
                let wide = entries.iter().filter_map(|entry| entry.attr.as_ref()).filter(|attr| attr.spread > 1);
                self.0.extend(wide.map(|attr| attr.id));
            }
            Err(Error::OtherSpread { .. }) => {
                if let Some(Op::Name { op }) = asked {
                    self.0.insert(op.dir());
                }
            }
            _ => {}
        }
    }

    /// True if an op lists the names of a shared directory.
    pub fn lists_parts(&self, op: &Op) -> bool {
        matches!(op, Op::Name { op: NameOp::List { dir, .. } } if self.0.contains(dir))
    }

    /// The reply of a list without the attributes of shared directories.
    pub fn without_parts(&self, mut reply: Reply) -> Reply {
        if let Reply::List { entries, .. } = &mut reply {
            let is_one = |attr: &Attr| !self.0.contains(&attr.id);
            entries.iter_mut().for_each(|entry| entry.attr = entry.attr.take().filter(is_one));
        }
        reply
    }
}
