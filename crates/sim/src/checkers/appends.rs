//! Appends (O_APPEND): each acknowledged append is in the file once and whole, appends follow each other without a gap,
//! and one that returned before another began comes before it in the file.

use crate::checkers::Complaint;
use crate::history::Moment;
use hekate_proto::InodeId;
use std::collections::BTreeMap;

/// An acknowledged append, and the place where its bytes were found after the run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Append {
    pub inode: InodeId,
    pub from: Moment,
    pub to: Moment,
    pub length: u64,
    /// None: not found.
    pub offset: Option<u64>,
}

/// Checks files that only these appends have changed.
pub fn check(appends: &[Append]) -> Vec<Complaint> {
    let mut files: BTreeMap<InodeId, Vec<&Append>> = BTreeMap::new();
    for append in appends {
        files.entry(append.inode).or_default().push(append);
    }
    files.into_iter().flat_map(|(inode, appends)| complaints(inode, appends)).collect()
}

fn complaints(inode: InodeId, mut appends: Vec<&Append>) -> Vec<Complaint> {
    let about = format!("appends to {inode:?}");
    let complaint = |what: String| Complaint::new(about.clone(), what);
    let missing = appends.iter().filter(|append| append.offset.is_none());
    let mut all: Vec<_> = missing.map(|append| complaint(format!("not in the file: {append:?}"))).collect();
    appends.retain(|append| append.offset.is_some());
    appends.sort_by_key(|append| append.offset);
    let mut end = 0;
    for append in &appends {
        if append.offset != Some(end) {
            all.push(complaint(format!("does not begin where the append before it ends, at {end}: {append:?}")));
        }
        end = append.offset.unwrap_or(end) + append.length;
    }
    // From the last append backwards: the earliest return among those behind it.
    let mut behind: Option<&Append> = None;
    for append in appends.iter().rev() {
        if let Some(late) = behind.filter(|late| late.to < append.from) {
            all.push(complaint(format!("{late:?} returned before {append:?} began, but stands behind it in the file")));
        }
        behind = behind.into_iter().chain([*append]).min_by_key(|append| append.to);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn append(from: Moment, to: Moment, offset: Option<u64>) -> Append {
        Append { inode: InodeId::new(1, 1, 2), from, to, length: 10, offset }
    }

    #[test]
    fn a_lost_and_a_swapped_append_and_one_over_another_are_noticed() {
        let right = vec![append(0, 5, Some(10)), append(1, 3, Some(0)), append(6, 7, Some(20))];
        assert_eq!(check(&right), []);
        let mut lost = right.clone();
        lost[2].offset = None;
        assert_eq!(check(&lost).len(), 1);
        let mut swapped = right.clone();
        (swapped[0].offset, swapped[2].offset) = (Some(20), Some(10));
        assert_eq!(check(&swapped).len(), 1);
        let mut over = right;
        over[2].offset = Some(10);
        assert_eq!(check(&over).len(), 1);
    }
}
