//! Checks contents, attributes and shards.

use super::collect::Found;
use hekate_proto::*;
use std::collections::BTreeMap;

/// Complaints about a volume's entries outside of its tree.
pub fn check(found: &Found) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut owners: BTreeMap<DataId, InodeId> = BTreeMap::new();
    for (id, inode) in &found.inodes {
        for piece in &inode.layout.pieces {
            if let Some(other) = owners.insert(piece.data, *id) {
                wrong.push(format!("{:?} is in the layouts of {other:?} and {id:?}", piece.data));
            }
        }
    }
    let twice = owners.iter().filter(|(data, _)| found.garbage.contains(data));
    wrong.extend(twice.map(|(data, owner)| format!("{data:?} is garbage, but in the layout of {owner:?}")));
    let nobodys = found.shards.iter().filter(|s| !owners.contains_key(&s.data) && !found.garbage.contains(&s.data));
    wrong.extend(nobodys.map(|shard| format!("{shard:?} belongs to no inode and is no garbage")));
    let bare = found.with_checksums.difference(&found.shards);
    wrong.extend(bare.map(|shard| format!("checksums of {shard:?}, which is not there")));
    let inodes = &found.inodes;
    let contents = found.contents.iter().filter(|id| !inodes.get(id).is_some_and(may_have_content));
    wrong.extend(contents.map(|id| format!("bytes rest beside {id:?}, which has none there")));
    let xattrs = found.with_xattrs.iter().filter(|id| !inodes.contains_key(id));
    wrong.extend(xattrs.map(|id| format!("extended attributes of {id:?}, which is not there")));
    wrong
}

fn may_have_content(inode: &InodeRecord) -> bool {
    inode.layout.is_inline() && matches!(inode.kind, NodeKind::File | NodeKind::Symlink)
}
