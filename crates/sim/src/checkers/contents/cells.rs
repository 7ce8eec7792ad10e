//! A file cut at every border that an operation has, so that its state is a short list of numbers whatever its length.

use crate::history::CallNumber;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

/// The bytes of a cell: equal numbers mean equal bytes.
pub type Content = u32;

/// Zeros: a hole, or bytes that were never written.
pub const ZEROS: Content = 0;

/// The borders of the cells of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grid {
    borders: Vec<u64>,
}

impl Grid {
    /// A grid with these borders.
    pub fn new(borders: BTreeSet<u64>) -> Self {
        Self { borders: borders.into_iter().collect() }
    }

    /// How many cells there are.
    pub fn len(&self) -> usize {
        self.borders.len().saturating_sub(1)
    }

    /// The cells of `from..to`, which must be borders.
    pub fn cells(&self, from: u64, to: u64) -> Range<usize> {
        self.at(from)..self.at(to)
    }

    /// The cells from `border` on.
    pub fn from(&self, border: u64) -> Range<usize> {
        self.at(border).min(self.len())..self.len()
    }

    /// The byte range of a cell.
    pub fn bytes(&self, cell: usize) -> Range<u64> {
        self.borders[cell]..self.borders[cell + 1]
    }

    fn at(&self, border: u64) -> usize {
        let at = self.borders.partition_point(|known| *known < border);
        assert_eq!(self.borders.get(at), Some(&border), "it is a border of a cell");
        at
    }
}

/// Numbers for all bytes that were written to or read from cells.
#[derive(Debug, Clone)]
pub struct Palette {
    known: BTreeMap<(usize, Bytes), Content>,
    writers: Vec<Option<CallNumber>>,
}

impl Palette {
    /// A palette with zeros only.
    pub fn new() -> Self {
        Self { known: BTreeMap::new(), writers: vec![None] }
    }

    /// The contents of consecutive cells, which are `bytes`. `writer`: the call that wrote them, if it is a write.
    pub fn contents(
        &mut self,
        grid: &Grid,
        cells: Range<usize>,
        bytes: &Bytes,
        writer: Option<CallNumber>,
    ) -> Vec<Content> {
        let mut at = 0;
        let mut contents = Vec::with_capacity(cells.len());
        for cell in cells {
            let length = grid.bytes(cell);
            let end = at + (length.end - length.start) as usize;
            contents.push(self.content(cell, bytes.slice(at..end), writer));
            at = end;
        }
        contents
    }

    fn content(&mut self, cell: usize, bytes: Bytes, writer: Option<CallNumber>) -> Content {
        if bytes.iter().all(|byte| *byte == 0) {
            return ZEROS;
        }
        let next = self.writers.len() as Content;
        let content = *self.known.entry((cell, bytes)).or_insert(next);
        if content == next {
            self.writers.push(writer);
        }
        content
    }

    /// True if two contents, perhaps of two cells, come from one writer.
    pub fn is_same_writer(&self, one: Content, other: Content) -> bool {
        self.writers[one as usize] == self.writers[other as usize] && (one == ZEROS) == (other == ZEROS)
    }

    /// A content as text.
    pub fn describe(&self, content: Content) -> String {
        match self.writers[content as usize] {
            _ if content == ZEROS => "zeros".into(),
            Some(writer) => format!("what call #{} wrote", writer.0),
            None => "bytes that no call wrote".into(),
        }
    }
}

/// A value, or the values that are possible after a power cut.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Known<T: Ord> {
    Is(T),
    OneOf(Rc<BTreeSet<T>>),
}

impl<T: Ord + Clone> Known<T> {
    /// One of these; none if there are none.
    pub fn one_of(values: BTreeSet<T>) -> Option<Self> {
        match values.len() {
            0 => None,
            1 => values.into_iter().next().map(Known::Is),
            _ => Some(Known::OneOf(Rc::new(values))),
        }
    }

    /// All possible values.
    pub fn values(&self) -> Vec<T> {
        match self {
            Known::Is(value) => vec![value.clone()],
            Known::OneOf(values) => values.iter().cloned().collect(),
        }
    }

    /// This value, or one of `others`.
    pub fn or(&self, others: &BTreeSet<T>) -> Self {
        let all = self.values().into_iter().chain(others.iter().cloned()).collect();
        Self::one_of(all).unwrap_or_else(|| self.clone())
    }

    /// The possible values that fit; none if no value fits.
    pub fn that(&self, fits: impl Fn(&T) -> bool) -> Option<Self> {
        match self {
            Known::Is(value) => fits(value).then(|| self.clone()),
            Known::OneOf(values) => Self::one_of(values.iter().filter(|value| fits(value)).cloned().collect()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_bytes_of_a_cell_have_equal_numbers() {
        let grid = Grid::new(BTreeSet::from([0, 2, 4]));
        let mut palette = Palette::new();
        let first = palette.contents(&grid, 0..2, &Bytes::from_static(b"ab\0\0"), Some(CallNumber(3)));
        let again = palette.contents(&grid, 0..1, &Bytes::from_static(b"ab"), None);
        assert_eq!((first[0], first[1]), (again[0], ZEROS));
        assert_eq!(palette.describe(again[0]), "what call #3 wrote");
        let stranger = palette.contents(&grid, 1..2, &Bytes::from_static(b"xy"), None);
        assert_eq!(palette.describe(stranger[0]), "bytes that no call wrote");
    }

    #[test]
    fn an_observation_leaves_the_values_that_fit() {
        let size = Known::one_of(BTreeSet::from([0, 10, 20])).unwrap();
        assert_eq!(size.that(|size| *size >= 10).unwrap().values(), [10, 20]);
        assert_eq!(size.that(|size| *size == 20), Some(Known::Is(20)));
        assert_eq!(size.that(|size| *size == 5), None);
    }
}
