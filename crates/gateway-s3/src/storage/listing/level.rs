//! The keys of one directory in order: its names as they are, merged with its escaped names, with long segments in the
//! directories that hold their ends, and with the directory itself.

use super::walk::Reader;
use crate::key::{self, CUT, ESCAPED_BYTES_MAX, ESCAPED_DIRECTORY, Spelling, escape, spelling, unescape};
use crate::storage::error::Result;
use crate::storage::{context, is_gone};
use bytes::Bytes;
use hekate_client::KeyPage;
use hekate_proto::{Attr, ESCAPE, ESCAPED_NAME, Entry, InodeId, NodeKind};
use std::collections::VecDeque;

/// A key, or the begin of keys.
pub(super) struct Item {
    /// The escaped key; that of a directory ends in `/`, that of a directory of long segments in [`FIRST`].
    pub order: Vec<u8>,
    pub what: What,
}

pub(super) enum What {
    Object {
        inode: InodeId,
        attr: Option<Attr>,
    },
    Directory {
        inode: InodeId,
    },
    /// A directory that holds the ends of long segments.
    Cut {
        inode: InodeId,
    },
    /// A name that is no object, and hides an escaped one with its key.
    Hidden,
}

/// The least byte of an escaped key. A directory of long segments has the place of their begin and this byte: behind the
/// segment that is this begin alone, and before all others.
const FIRST: &[u8] = &[1];

/// How the names of a stream are to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Plain,
    File,
    Directory,
    Cut,
}

impl Form {
    fn begin(self) -> &'static [u8] {
        match self {
            Form::Plain => b"",
            Form::File => ESCAPED_NAME,
            Form::Directory => ESCAPED_DIRECTORY,
            Form::Cut => CUT,
        }
    }
}

/// Names of one form, in the order of their keys.
struct Stream {
    form: Form,
    prefix: Bytes,
    after: Bytes,
    items: VecDeque<Item>,
    end: bool,
}

/// A directory of a walk, or one that holds the ends of long segments.
pub(super) struct Level {
    inode: InodeId,
    /// The escaped begin of all of its keys.
    key: Vec<u8>,
    /// Where the segment begins that its names complete.
    segment_at: usize,
    /// Directories above it that hold the begin of that segment.
    cuts: usize,
    /// The directory as an object.
    itself: Option<Item>,
    /// In the order in which one name hides another.
    streams: Vec<Stream>,
    /// The directory of the long segments that come next.
    nested: Option<Box<Level>>,
    is_begun: bool,
}

impl Level {
    /// The directory with all keys that begin with `key`.
    pub fn directory(reader: &Reader, inode: InodeId, key: Vec<u8>) -> Self {
        let segment_at = key.len();
        let mut level = Self::new(inode, key, segment_at, 0);
        level.add(reader, Form::Plain);
        level
    }

    fn new(inode: InodeId, key: Vec<u8>, segment_at: usize, cuts: usize) -> Self {
        let (streams, nested) = (Vec::new(), None);
        Self { inode, key, segment_at, cuts, itself: None, streams, nested, is_begun: false }
    }

    /// The directory of long segments that begin with `key[segment_at..]`.
    fn cut(reader: &Reader, inode: InodeId, key: Vec<u8>, segment_at: usize, cuts: usize) -> Self {
        let mut level = Self::new(inode, key, segment_at, cuts);
        level.add_escaped(reader);
        level.is_begun = true;
        level
    }

    fn add_escaped(&mut self, reader: &Reader) {
        for form in [Form::File, Form::Directory, Form::Cut] {
            self.add(reader, form);
        }
    }

    fn add(&mut self, reader: &Reader, form: Form) {
        let prefix = reader.prefix_below(&self.key);
        let after = reader.after_below(&self.key);
        let prefix = match form {
            Form::Plain => unescape(&prefix).unwrap_or(prefix),
            Form::Cut => prefix[..prefix.len().min(ESCAPED_BYTES_MAX)].to_vec(),
            Form::File | Form::Directory => prefix,
        };
        let prefix = Bytes::from([form.begin(), &prefix].concat());
        let after = after.map(|after| bound(form, &after)).unwrap_or_default();
        self.streams.push(Stream { form, prefix, after, items: VecDeque::new(), end: false });
    }

    /// The next key, or directory of keys.
    ///
    /// # Errors
    /// Those of the volume.
    pub fn next(&mut self, reader: &mut Reader) -> Result<Option<Item>> {
        self.settle(reader)?;
        Ok(self.pop(reader))
    }

    /// Reads until the first item is known and is no directory of long segments.
    fn settle(&mut self, reader: &mut Reader) -> Result<()> {
        self.begin(reader)?;
        loop {
            for at in 0..self.streams.len() {
                while self.streams[at].items.is_empty() && !self.streams[at].end {
                    self.read(reader, at)?;
                }
            }
            if let Some(nested) = &mut self.nested {
                nested.settle(reader)?;
                if nested.first().is_none() {
                    self.nested = None;
                }
            }
            match self.first() {
                Some(Item { order, what: What::Cut { inode } }) => {
                    let (inode, key) = (*inode, order[..order.len() - FIRST.len()].to_vec());
                    self.pop(reader);
                    let level = Self::cut(reader, inode, key, self.segment_at, self.cuts + 1);
                    self.nested = Some(Box::new(level));
                }
                _ => return Ok(()),
            }
        }
    }

    /// Reads the first page of a directory, which says whether there are escaped names, and what the directory is.
    fn begin(&mut self, reader: &mut Reader) -> Result<()> {
        if self.is_begun {
            return Ok(());
        }
        self.is_begun = true;
        let Some(page) = self.read(reader, 0)? else { return Ok(()) };
        if page.escaped {
            self.add_escaped(reader);
        }
        let is_wanted = reader.prefix.len() <= self.key.len() && reader.after_below(&self.key).is_none();
        if is_wanted && !self.key.is_empty() && !page.directory.implied {
            let what = What::Object { inode: self.inode, attr: Some(page.directory) };
            self.itself = Some(Item { order: self.key.clone(), what });
        }
        Ok(())
    }

    /// Reads names of a stream. `None` if the directory was removed. The page is returned without its names.
    fn read(&mut self, reader: &mut Reader, at: usize) -> Result<Option<KeyPage>> {
        let Stream { prefix, after, .. } = &self.streams[at];
        let (prefix, after) = (prefix.clone(), after.clone());
        let listed = reader.store.volume().list_keys(&context(), self.inode, prefix, after, reader.page());
        let mut page = match listed {
            Err(hekate_proto::Error::NotDirectory) => return Ok(self.ended(at)),
            Err(error) if is_gone(&error) => return Ok(self.ended(at)),
            page => page?,
        };
        let entries = std::mem::take(&mut page.entries);
        let form = self.streams[at].form;
        let next = entries.last().map(|last| after_entry(form, last));
        let items: Vec<Item> = entries.into_iter().filter_map(|entry| self.item(form, entry)).collect();
        reader.held += items.len();
        let stream = &mut self.streams[at];
        stream.end = page.end || next.is_none();
        stream.after = next.unwrap_or_default();
        stream.items.extend(items);
        Ok(Some(page))
    }

    fn ended(&mut self, at: usize) -> Option<KeyPage> {
        self.streams[at].end = true;
        None
    }

    /// What a name is. `None` if no key leads to it.
    fn item(&self, form: Form, entry: Entry) -> Option<Item> {
        let (kind, inode) = (entry.kind, entry.inode);
        let (name, attr) = (entry.name, entry.attr);
        let segment = |rest: &[u8]| [&self.key[self.segment_at..], rest].concat();
        let with = |rest: &[u8], end: &[u8]| [&self.key, rest, end].concat();
        let item = |order, what| Some(Item { order, what });
        match (form, spelling(name.as_bytes()), kind) {
            (Form::Plain, Spelling::Plain(plain), kind) => {
                std::str::from_utf8(plain).ok()?;
                let escaped = escape(plain);
                match kind {
                    NodeKind::File => item(with(&escaped, b""), What::Object { inode, attr }),
                    NodeKind::Directory => item(with(&escaped, b"/"), What::Directory { inode }),
                    _ => item(with(&escaped, b""), What::Hidden),
                }
            }
            (Form::File, Spelling::File(rest), NodeKind::File) if key::is_file(&segment(rest), self.cuts) => {
                let order = with(rest, b"");
                if order.is_empty() { None } else { item(order, What::Object { inode, attr }) }
            }
            (Form::Directory, Spelling::Directory(rest), NodeKind::Directory) => {
                let leads = key::is_directory(&segment(rest), self.cuts);
                if leads { item(with(rest, b"/"), What::Directory { inode }) } else { None }
            }
            (Form::Cut, Spelling::Cut(rest), NodeKind::Directory) => item(with(rest, FIRST), What::Cut { inode }),
            _ => None,
        }
    }

    /// The first item of all sources.
    fn first(&self) -> Option<&Item> {
        let streams = self.streams.iter().filter_map(|stream| stream.items.front());
        let nested = self.nested.as_ref().and_then(|nested| nested.first());
        // Of equal keys the first counts.
        streams.chain(nested).chain(&self.itself).min_by(|one, two| one.order.cmp(&two.order))
    }

    /// Removes the first item, and others with its key, which it hides.
    fn pop(&mut self, reader: &mut Reader) -> Option<Item> {
        let order = self.first()?.order.clone();
        let mut first = None;
        for stream in &mut self.streams {
            if stream.items.front().is_some_and(|item| item.order == order) {
                reader.held = reader.held.saturating_sub(1);
                let item = stream.items.pop_front();
                first = first.or(item);
            }
        }
        if let Some(nested) = &mut self.nested
            && nested.first().is_some_and(|item| item.order == order)
        {
            let item = nested.pop(reader);
            first = first.or(item);
        }
        let itself = self.itself.take_if(|item| item.order == order);
        first.or(itself)
    }
}

/// Longest bound of names that is of use: no name has more than 255 bytes, and a directory's counts as one more.
const BOUND_BYTES_MAX: usize = 257;

/// The bound after which the names of a stream begin: those whose keys are greater than `after`, and those of directories
/// with such keys. `after` is escaped, and begins where the stream's names do.
fn bound(form: Form, after: &[u8]) -> Bytes {
    let plain = |bytes: &[u8]| match form {
        Form::Plain => unescape(bytes).unwrap_or_else(|| bytes.to_vec()),
        _ => bytes.to_vec(),
    };
    let slash = after.iter().position(|byte| *byte == b'/');
    let mut bound = form.begin().to_vec();
    match (form, slash) {
        // The directory itself is the first: its order is the segment and `/`, and no name is between.
        (Form::Plain | Form::Directory, Some(at)) => {
            bound.extend(plain(&after[..at]));
            bound.push(b'/' - 1);
            bound.resize(bound.len().max(BOUND_BYTES_MAX), 0xff);
        }
        (Form::File, Some(at)) => bound.extend(&after[..=at]),
        (Form::Cut, slash) => {
            let end = slash.map_or(after.len(), |at| at + 1);
            bound.extend(&after[..end.min(ESCAPED_BYTES_MAX)]);
        }
        (_, None) => bound.extend(plain(after)),
    }
    bound.truncate(BOUND_BYTES_MAX);
    bound.into()
}

/// The bound behind an entry.
fn after_entry(form: Form, entry: &Entry) -> Bytes {
    let name = entry.name.as_bytes();
    if form == Form::Plain && name.starts_with(ESCAPE) {
        // Other streams have the escaped names.
        return [ESCAPE, &[0xff; 255]].concat().into();
    }
    match entry.kind {
        NodeKind::Directory => [name, b"/"].concat().into(),
        _ => entry.name.bytes(),
    }
}
