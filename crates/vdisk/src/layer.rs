//! A layer: the blocks that were written between two snapshots, as a map over segments. A vDisk is a stack of layers, of
//! which only the uppermost is written.

use crate::format::{BLOCK_BYTES, LayerId, LayerState, Record};
use crate::store::{OpenFile, Store, Version};
use bytes::Bytes;
use hekate_proto::{Condition, Error, InodeId, Result};
use hekate_threads::{HashMap, Mutex};
use std::sync::Arc;

/// Name of the directory of layers.
const LAYERS: &str = "layers";
const STATE: &str = "state";

/// A bit for each page of a map.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Pages(Vec<u8>);

impl Pages {
    pub fn has(&self, page: u64) -> bool {
        self.0.get((page / 8) as usize).is_some_and(|byte| byte >> (page % 8) & 1 == 1)
    }

    pub fn set(&mut self, page: u64) {
        let at = (page / 8) as usize;
        if self.0.len() <= at {
            self.0.resize(at + 1, 0);
        }
        self.0[at] |= 1 << (page % 8);
    }

    /// The pages from `from` to `to`, without `to`.
    pub fn range(&self, from: u64, to: u64) -> impl Iterator<Item = u64> + '_ {
        let end = to.min(self.0.len() as u64 * 8);
        let mut page = from;
        std::iter::from_fn(move || {
            while page < end {
                if page.is_multiple_of(8) && self.0[(page / 8) as usize] == 0 {
                    page += 8;
                    continue;
                }
                page += 1;
                if self.has(page - 1) {
                    return Some(page - 1);
                }
            }
            None
        })
    }

    pub fn to_bytes(&self) -> Bytes {
        self.0.clone().into()
    }

    pub fn count(&self) -> u64 {
        self.0.iter().map(|byte| u64::from(byte.count_ones())).sum()
    }
}

/// The number of pages in a layer's state.
pub(crate) fn count_pages(pages: &Bytes) -> u64 {
    Pages(pages.to_vec()).count()
}

/// Name of a segment's file.
pub(crate) fn segment_name(number: u32) -> String {
    format!("{number:08x}")
}

/// The number of the segment whose file has this name.
pub(crate) fn segment_number(name: &str) -> Option<u32> {
    (name.len() == 8).then(|| u32::from_str_radix(name, 16).ok()).flatten()
}

/// Begin of the names of maps.
pub(crate) const MAP: &str = "map-";

/// Name of a map's file.
pub(crate) fn map_name(number: u32) -> String {
    format!("{MAP}{number}")
}

/// A layer that is open.
pub(crate) struct Layer {
    pub id: LayerId,
    pub directory: InodeId,
    files: Mutex<Files>,
    /// The version of its state, as this process has read or written it.
    version: Mutex<Version>,
}

/// What a scrub replaces.
struct Files {
    /// The layer below.
    parent: Option<LayerId>,
    pages: Arc<Pages>,
    map: u32,
    map_file: Option<Arc<OpenFile>>,
    segments: HashMap<u32, Arc<OpenFile>>,
}

impl Layer {
    /// Opens a layer.
    ///
    /// # Errors
    /// `NotFound` if there is none of this id; `Damaged` if its state cannot be read.
    pub fn open(store: &dyn Store, id: LayerId) -> Result<(Self, LayerState)> {
        let layers = store.find(store.root(), LAYERS)?;
        let directory = store.find(layers, &id.text())?;
        let (state, version) = Self::read_state(store, directory)?;
        if state.layer != id {
            return Err(Error::Damaged { what: format!("layer {} has the state of another one", id.text()) });
        }
        Ok((Self::with(id, directory, &state, version), state))
    }

    fn with(id: LayerId, directory: InodeId, state: &LayerState, version: Version) -> Self {
        let files = Files {
            parent: state.parent,
            pages: Arc::new(Pages(state.pages.to_vec())),
            map: state.map,
            map_file: None,
            segments: HashMap::default(),
        };
        Self { id, directory, files: Mutex::new(files), version: Mutex::new(version) }
    }

    /// Makes an empty layer above `parent`.
    ///
    /// # Errors
    /// Those of the store.
    pub fn make(store: &dyn Store, parent: Option<LayerId>, segment_blocks: u32) -> Result<(Self, LayerState)> {
        let id = LayerId(u128::from(store.random()?) << 64 | u128::from(store.random()?));
        let layers = match store.make_directory(store.root(), LAYERS) {
            Err(Error::Exists) => store.find(store.root(), LAYERS)?,
            made => made?,
        };
        let directory = store.make_directory(layers, &id.text())?;
        let state = LayerState::empty(id, parent, segment_blocks, store.random()?);
        let version = store.put(directory, STATE, state.seal(), Condition::Absent)?;
        Ok((Self::with(id, directory, &state, version), state))
    }

    /// All layers, also those that are being made.
    ///
    /// # Errors
    /// Those of the store.
    pub fn all(store: &dyn Store) -> Result<Vec<(LayerId, InodeId)>> {
        let layers = match store.find(store.root(), LAYERS) {
            Err(Error::NotFound) => return Ok(Vec::new()),
            found => found?,
        };
        let ids = store.list(layers)?.into_iter().filter_map(|name| LayerId::parse(&name));
        ids.map(|id| Ok((id, store.find(layers, &id.text())?))).collect()
    }

    /// Removes a layer with all of its files, its state last.
    ///
    /// # Errors
    /// Those of the store; a second call goes on.
    pub fn remove(store: &dyn Store, id: LayerId) -> Result<()> {
        let layers = store.find(store.root(), LAYERS)?;
        let directory = match store.find(layers, &id.text()) {
            Err(Error::NotFound) => return Ok(()),
            found => found?,
        };
        let mut names = store.list(directory)?;
        names.sort_by_key(|name| name == STATE);
        for name in names {
            absent_is_fine(store.remove(directory, &name))?;
        }
        absent_is_fine(store.remove_directory(layers, &id.text()))
    }

    pub fn state_in(store: &dyn Store, directory: InodeId) -> Result<LayerState> {
        Ok(Self::read_state(store, directory)?.0)
    }

    fn read_state(store: &dyn Store, directory: InodeId) -> Result<(LayerState, Version)> {
        let (bytes, version) = store.fetch_version(directory, STATE)?;
        Ok((LayerState::unseal(&bytes)?, version))
    }

    /// Replaces the layer's state, if no other process has since this one read or replaced it.
    ///
    /// # Errors
    /// `ConditionFailed` if one has; those of the store.
    pub fn put_state(&self, store: &dyn Store, state: &LayerState) -> Result<()> {
        assert_eq!(state.layer, self.id, "a layer keeps its id");
        let mut version = self.version.lock();
        *version = store.put(self.directory, STATE, state.seal(), version.condition())?;
        self.files.lock().parent = state.parent;
        Ok(())
    }

    /// True if the state is still the one that this process has read or written last.
    ///
    /// # Errors
    /// Those of the store.
    pub fn is_unchanged(&self, store: &dyn Store) -> Result<bool> {
        let version = self.version.lock();
        match store.version(self.directory, STATE) {
            Err(Error::NotFound | Error::Stale) => Ok(false),
            now => Ok(now? == *version),
        }
    }

    /// The state, if it is still the one that this process has read or written last.
    ///
    /// # Errors
    /// Those of the store.
    pub fn state_if_unchanged(&self, store: &dyn Store) -> Result<Option<LayerState>> {
        match Self::read_state(store, self.directory) {
            Err(Error::NotFound | Error::Stale) => Ok(None),
            read => read.map(|(state, version)| (version == *self.version.lock()).then_some(state)),
        }
    }

    /// True if both are open with the same version of the state.
    pub fn has_state_of(&self, other: &Self) -> bool {
        let version = other.version.lock().clone();
        *self.version.lock() == version
    }

    /// Reads the map from now on from this file.
    pub fn use_map(&self, number: u32, file: Arc<OpenFile>) {
        let mut files = self.files.lock();
        (files.map, files.map_file) = (number, Some(file));
    }

    /// Opens a segment that this process has made. Not by its name, under which the next owner may have made another one.
    pub fn add_segment(&self, store: &Arc<dyn Store>, number: u32, made: InodeId) -> Arc<OpenFile> {
        let file = Arc::new(OpenFile::new(store, made));
        self.files.lock().segments.insert(number, file.clone());
        file
    }

    /// Reads the layer's state again, after a scrub has replaced its files. A layer that is gone stays as it was: the one
    /// above it, into which it was merged, leads to it no more.
    ///
    /// # Errors
    /// Those of the store.
    pub fn refresh(&self, store: &dyn Store) -> Result<()> {
        let state = match Self::state_in(store, self.directory) {
            Err(Error::NotFound | Error::Stale) => return Ok(()),
            state => state?,
        };
        let mut files = self.files.lock();
        files.parent = state.parent;
        files.pages = Arc::new(Pages(state.pages.to_vec()));
        if files.map != state.map {
            (files.map, files.map_file) = (state.map, None);
            files.segments.clear();
        }
        Ok(())
    }

    /// The layer below.
    pub fn parent(&self) -> Option<LayerId> {
        self.files.lock().parent
    }

    /// The pages that the layer's map has.
    pub fn pages(&self) -> Arc<Pages> {
        self.files.lock().pages.clone()
    }

    /// Number of the map's file.
    pub fn map_number(&self) -> u32 {
        self.files.lock().map
    }

    /// Notes pages that were written to the map.
    pub fn add_pages(&self, pages: impl Iterator<Item = u64>) {
        let mut files = self.files.lock();
        let known = Arc::make_mut(&mut files.pages);
        pages.for_each(|page| known.set(page));
    }

    /// The layer's own page of the map: for each block 0, a hole, or a place. `None` if it has none. With it the layer
    /// below, as of the same state: the page has what a scrub has merged from others, and no hole that hid only those.
    ///
    /// # Errors
    /// `NotFound` if a scrub has replaced the map; those of reading.
    pub fn page(&self, store: &Arc<dyn Store>, page: u64) -> Result<(Option<Bytes>, Option<LayerId>)> {
        let (parent, number, open) = {
            let files = self.files.lock();
            if !files.pages.has(page) {
                return Ok((None, files.parent));
            }
            (files.parent, files.map, files.map_file.clone())
        };
        let file = match open {
            Some(file) => file,
            None => self.find_map(store, number, false)?,
        };
        Ok((Some(self.read_from(store, &file, page, 1)?), parent))
    }

    /// Pages of the layer's map, all of which it has.
    ///
    /// # Errors
    /// As [`Layer::page`].
    pub fn read_pages(&self, store: &Arc<dyn Store>, first: u64, count: u64) -> Result<Bytes> {
        let file = self.map_file(store, false)?;
        self.read_from(store, &file, first, count)
    }

    fn read_from(&self, store: &Arc<dyn Store>, file: &OpenFile, first: u64, count: u64) -> Result<Bytes> {
        let bytes = store.read(file.id, first * BLOCK_BYTES, (count * BLOCK_BYTES) as u32)?;
        if bytes.len() as u64 != count * BLOCK_BYTES {
            return Err(Error::Damaged {
                what: format!("page {first} of the map of layer {} ends early", self.id.text()),
            });
        }
        Ok(bytes)
    }

    /// The map's file.
    ///
    /// # Errors
    /// `NotFound` if there is none, unless `make` is set.
    pub fn map_file(&self, store: &Arc<dyn Store>, make: bool) -> Result<Arc<OpenFile>> {
        let number = {
            let files = self.files.lock();
            if let Some(file) = &files.map_file {
                return Ok(file.clone());
            }
            files.map
        };
        self.find_map(store, number, make)
    }

    fn find_map(&self, store: &Arc<dyn Store>, number: u32, make: bool) -> Result<Arc<OpenFile>> {
        let found = match store.find(self.directory, &map_name(number)) {
            Err(Error::NotFound) if make => store.make_file(self.directory, &map_name(number))?,
            found => found?,
        };
        let file = Arc::new(OpenFile::new(store, found));
        let mut files = self.files.lock();
        if files.map == number {
            files.map_file = Some(file.clone());
        }
        Ok(file)
    }

    /// A segment's file.
    ///
    /// # Errors
    /// `NotFound` if a scrub has removed it.
    pub fn segment(&self, store: &Arc<dyn Store>, number: u32) -> Result<Arc<OpenFile>> {
        if let Some(file) = self.files.lock().segments.get(&number) {
            return Ok(file.clone());
        }
        let found = store.find(self.directory, &segment_name(number))?;
        let file = Arc::new(OpenFile::new(store, found));
        Ok(self.files.lock().segments.entry(number).or_insert(file).clone())
    }

    /// Removes the segments and maps whose names are not used: what earlier owners have left. The next owner gives such
    /// names to files of its own, maybe before this call ends. So a file is removed only in the version that it had
    /// before this process was seen to be the owner: those of the next owner are made later.
    ///
    /// # Errors
    /// `ConditionFailed` if another process has replaced the state, and nothing was removed then; those of the store.
    pub fn remove_unused(&self, store: &dyn Store, is_used: impl Fn(&str) -> bool) -> Result<()> {
        let mut unused = Vec::new();
        for name in store.list(self.directory)? {
            let is_file = segment_number(&name).is_some() || name.starts_with(MAP);
            if !is_file || is_used(&name) {
                continue;
            }
            match store.version(self.directory, &name) {
                Err(Error::NotFound | Error::Stale) => {}
                version => unused.push((name, version?)),
            }
        }
        if !unused.is_empty() && !self.is_unchanged(store)? {
            return Err(Error::ConditionFailed);
        }
        for (name, version) in unused {
            match store.remove_version(self.directory, &name, &version) {
                // Another file has the name, or an earlier owner writes to this one, which the next opening removes.
                Err(Error::ConditionFailed) => {}
                removed => absent_is_fine(removed)?,
            }
            if let Some(number) = segment_number(&name) {
                self.files.lock().segments.remove(&number);
            }
        }
        Ok(())
    }

    /// Removes a segment that nothing leads to any more, whose number is never used again. Whoever reads it may go on.
    ///
    /// # Errors
    /// Those of the store.
    pub fn remove_segment(&self, store: &dyn Store, number: u32) -> Result<()> {
        absent_is_fine(store.remove(self.directory, &segment_name(number)))?;
        self.files.lock().segments.remove(&number);
        Ok(())
    }
}

/// The layers of a vDisk, from the lowest to the one that is written.
#[derive(Clone)]
pub(crate) struct Stack(pub Vec<Arc<Layer>>);

impl Stack {
    /// Opens a layer and all below it.
    ///
    /// # Errors
    /// `NotFound` if there is no such layer; `Damaged` if one below it is missing, or the layers form a circle.
    pub fn open(store: &dyn Store, head: LayerId) -> Result<(Self, LayerState)> {
        loop {
            if let Some(opened) = Self::open_unless_merged(store, head)? {
                return Ok(opened);
            }
        }
    }

    /// `None` if a layer was merged into the one above it, and collected, after that one was opened.
    fn open_unless_merged(store: &dyn Store, head: LayerId) -> Result<Option<(Self, LayerState)>> {
        let (layer, state) = Layer::open(store, head)?;
        let mut layers = vec![Arc::new(layer)];
        let mut parent = state.parent;
        while let Some(id) = parent {
            if layers.len() >= crate::format::DEPTH_MAX || layers.iter().any(|layer| layer.id == id) {
                return Err(Error::Damaged { what: format!("the layers below {} have no end", head.text()) });
            }
            let (layer, state) = match Layer::open(store, id) {
                Err(Error::NotFound | Error::Stale) if !layers[layers.len() - 1].is_unchanged(store)? => {
                    return Ok(None);
                }
                Err(Error::NotFound | Error::Stale) => {
                    return Err(Error::Damaged {
                        what: format!("layer {} is missing below {}", id.text(), head.text()),
                    });
                }
                opened => opened?,
            };
            layers.push(Arc::new(layer));
            parent = state.parent;
        }
        layers.reverse();
        Ok(Some((Self(layers), state)))
    }

    /// The depth of the layer that is written.
    pub fn head_depth(&self) -> u64 {
        self.0.len() as u64 - 1
    }

    pub fn head(&self) -> &Arc<Layer> {
        &self.0[self.0.len() - 1]
    }

    /// True if the map of any layer has the page.
    pub fn has_page(&self, page: u64) -> bool {
        self.0.iter().any(|layer| layer.files.lock().pages.has(page))
    }
}

/// A name that is gone already was removed.
pub(crate) fn absent_is_fine(removed: Result<()>) -> Result<()> {
    match removed {
        Err(Error::NotFound) => Ok(()),
        removed => removed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_found_in_their_order() {
        let mut pages = Pages::default();
        for page in [3, 8, 70, 71] {
            pages.set(page);
        }
        assert_eq!(pages.range(0, 1000).collect::<Vec<_>>(), [3, 8, 70, 71]);
        assert_eq!(pages.range(4, 71).collect::<Vec<_>>(), [8, 70]);
        assert!(pages.has(8) && !pages.has(9) && !pages.has(1 << 40));
        assert_eq!((pages.count(), Pages(pages.to_bytes().to_vec())), (4, pages));
    }
}
