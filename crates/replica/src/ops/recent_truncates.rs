//! Truncates that a leader has made: what was written below where a file was cut stands, though the layout is another one by then.

use hekate_proto::planted::{Bug, is_planted};
use hekate_proto::*;
use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};

/// Cuts that a leader remembers. What was written before one that it has forgotten is asked for again, as if it had been cut.
const CUTS_MAX: usize = 1024;

/// A file was made shorter: its layout has another version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// The file.
    pub file: (VolumeId, InodeId),
    /// Version of its layout before and after.
    pub versions: (u32, u32),
    /// It ends there.
    pub size: u64,
}

/// See the module.
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

    /// What is told of bytes that no cut since can have taken counts under the layout of now. Its client would write them once more, though
    /// others may have seen them meanwhile, and written over them. -> the op, and whether its client knows an earlier layout
    pub fn carry_over<'a>(&self, volume: VolumeId, op: &'a Op) -> (Cow<'a, Op>, bool) {
        let Op::Data { op: DataOp::Wrote { inode, layout_version, end, reach, drop_set_id, .. } } = op else {
            return (Cow::Borrowed(op), false);
        };
        let (mut version, last) = (*layout_version, *end.max(reach));
        while let Some(cut) = self.by_version.get(&((volume, *inode), version)).filter(|cut| last <= cut.size) {
            version = cut.versions.1;
        }
        if version == *layout_version || is_planted(Bug::WriteRepeatedAfterTruncate) {
            return (Cow::Borrowed(op), false);
        }
        // With a record, whose answer has the layout.
        let (inode, end, reach, drop_set_id, fast) = (*inode, *end, *reach, *drop_set_id, false);
        let op = DataOp::Wrote { inode, layout_version: version, end, reach, drop_set_id, fast };
        (Cow::Owned(Op::Data { op }), true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: (VolumeId, InodeId) = (VolumeId(1), InodeId::from_bits(77));

    fn carried(cuts: &Cuts, version: u32, end: u64, reach: u64) -> u32 {
        let (inode, layout_version) = (FILE.1, version);
        let op = DataOp::Wrote { inode, layout_version, end, reach, drop_set_id: false, fast: true };
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
