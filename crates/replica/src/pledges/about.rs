//! What changes of the index are about, as pledges are.

use super::About;
use hekate_proto::planted::{Bug, is_planted};
use hekate_proto::*;

/// All that a change of the index is about, as pledges are.
pub(super) fn all_about(change: &Change) -> impl Iterator<Item = About> {
    about_of(change).into_iter().chain(moved_from(change))
}

/// All about which the session that asked for the change has no pledge any more. What a name that is held leads to is not
/// decided yet: the op may be undone, and find another session's work when it begins again.
pub(super) fn ended_by(change: &Change) -> impl Iterator<Item = About> {
    let is_hold = matches!(change, Change::Put { key, .. } if key.kind() == Some(Kind::Hold));
    Some(change).filter(|_| !is_hold).into_iter().flat_map(all_about)
}

/// The directory of a name that a rename holds: links of what has the new name already may be seen elsewhere.
fn moved_from(change: &Change) -> Option<About> {
    let Change::Put { key, .. } = change else { return None };
    let is_name = key.kind()? == Kind::Hold && !key.rest().is_empty();
    let is_recalled = is_name && !is_planted(Bug::HeldNamePledged);
    is_recalled.then_some((key.prefix()?.volume, Pledged::Attributes { inode: InodeId::from_bits(key.id()?) }))
}

/// What a change of the index is about, as pledges are.
fn about_of(change: &Change) -> Option<About> {
    let (Change::Put { key, .. } | Change::Delete { key }) = change else {
        // The bytes that were removed are read with no layout that is in use, and a new stamp changes no bytes.
        let is_kept = matches!(change, Change::Restamp { .. } | Change::DropShard { .. });
        let shard = change.shard().filter(|_| !is_kept && !is_planted(Bug::ShardChangedUnderPledge))?;
        return Some((shard.volume, Pledged::Shard { data: shard.data, index: shard.index }));
    };
    let id = || key.id().map(InodeId::from_bits);
    let is_put = matches!(change, Change::Put { .. });
    let about = match key.kind()? {
        // While a rename holds its old name, the new one may be seen already.
        Kind::Hold if is_put && !is_planted(Bug::HeldNamePledged) => {
            Pledged::Name { dir: id()?, name: Name::new(key.rest()).ok()? }
        }
        Kind::Name => Pledged::Name { dir: id()?, name: Name::new(key.rest()).ok()? },
        Kind::Inode | Kind::Stub | Kind::Content => Pledged::Attributes { inode: id()? },
        _ => return None,
    };
    Some((key.prefix()?.volume, about))
}

/// A shard that a change removes.
pub(super) fn removed_shard(change: &Change) -> Option<About> {
    let Change::DropShard { shard } = change else { return None };
    Some((shard.volume, Pledged::Shard { data: shard.data, index: shard.index }))
}
