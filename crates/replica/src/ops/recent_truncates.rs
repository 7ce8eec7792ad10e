//! Recent truncates of this leader. A write below the new size is valid although its client used the layout before the
//! truncate.

use hekate_proto::planted::{Bug, is_planted};
use hekate_proto::*;
use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};

/// Truncates that are remembered. Writes from before an older one are refused, and their clients repeat them.
const CUTS_MAX: usize = 1024;

/// A truncate that made a file shorter. It gave the layout another version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// The file.
    pub file: (VolumeId, InodeId),
    /// The versions of the layout before and after.
    pub versions: (u32, u32),
    /// The new size, in bytes.
    pub size: u64,
}

/// Recent truncates, by file and by the version of the layout before.
#[derive(Debug, Default)]
pub(crate) struct Cuts {
    by_version: BTreeMap<((VolumeId, InodeId), u32), Cut>,
    order: VecDeque<((VolumeId, InodeId), u32)>,
}

impl Cuts {
    pub fn note(&mut self, cut: Cut) {
        let key = (cut.file, cut.versions.0);
        self.by_version.insert(key, cut);
        self.order.push_back(key);
        if self.order.len() > CUTS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.by_version.remove(&oldest);
        }
    }

    /// Moves a `Wrote` op to the current layout, if no truncate since can have removed its bytes. Otherwise its client
    /// would write them again, over what others may have written since. Returns the op, and true if it was moved: the
    /// client then knows an earlier layout.
    pub fn carry_over<'a>(&self, volume: VolumeId, op: &'a Op) -> (Cow<'a, Op>, bool) {
        let Op::Data { op: DataOp::Wrote { inode, layout_version, end, reach, drop_set_id, age, .. } } = op else {
            return (Cow::Borrowed(op), false);
        };
        let (mut version, last) = (*layout_version, *end.max(reach));
        while let Some(cut) = self.by_version.get(&((volume, *inode), version)).filter(|cut| last <= cut.size) {
            version = cut.versions.1;
        }
        if version == *layout_version || is_planted(Bug::WriteRepeatedAfterTruncate) {
            return (Cow::Borrowed(op), false);
        }
        // Not a fast one: the op makes a record, and its answer has the layout.
        let (inode, end, reach, drop_set_id, fast, age) = (*inode, *end, *reach, *drop_set_id, false, *age);
        let op = DataOp::Wrote { inode, layout_version: version, end, reach, drop_set_id, fast, age };
        (Cow::Owned(Op::Data { op }), true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: (VolumeId, InodeId) = (VolumeId(1), InodeId::from_bits(77));

    fn carried(cuts: &Cuts, version: u32, end: u64, reach: u64) -> u32 {
        let (inode, layout_version) = (FILE.1, version);
        let op = DataOp::Wrote { inode, layout_version, end, reach, drop_set_id: false, fast: true, age: 0 };
        match cuts.carry_over(FILE.0, &Op::Data { op }).0.into_owned() {
            Op::Data { op: DataOp::Wrote { layout_version, .. } } => layout_version,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_lies_below_all_cuts_is_carried_over() {
        let mut cuts = Cuts::default();
        cuts.note(Cut { file: FILE, versions: (3, 5), size: 100 });
        cuts.note(Cut { file: FILE, versions: (5, 9), size: 40 });
        cuts.note(Cut { file: (VolumeId(2), FILE.1), versions: (9, 11), size: 1 });
        assert_eq!(carried(&cuts, 3, 40, 40), 9);
        assert_eq!(carried(&cuts, 5, 40, 0), 9);
        assert_eq!(carried(&cuts, 3, 41, 0), 5, "the second cut has taken of it: the layout is not that of now");
        assert_eq!(carried(&cuts, 3, 10, 101), 3, "room up to there was cut");
        assert_eq!(carried(&cuts, 9, 200, 200), 9, "of now");
        assert_eq!(carried(&cuts, 4, 1, 1), 4, "never its version");
    }

    #[test]
    fn cuts_are_forgotten_in_their_order() {
        let mut cuts = Cuts::default();
        for version in 0..=CUTS_MAX as u32 {
            cuts.note(Cut { file: FILE, versions: (version, version + 1), size: 100 });
        }
        assert_eq!((cuts.by_version.len(), cuts.order.len()), (CUTS_MAX, CUTS_MAX));
        assert_eq!(carried(&cuts, 0, 1, 1), 0);
        assert_eq!(carried(&cuts, 1, 1, 1), CUTS_MAX as u32 + 1);
    }
}
