//! Files and names: as the kernel shows them, as they are on the medium for sure, and the changes in between.

use super::SECTOR_BYTES;
use super::content::Content;
use super::survivors::{Choice, Kept, Survivors};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The number of a file, whatever its names. Files are numbered in the order in which they are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileNumber(u64);

/// A call that changes the disk, or makes a change durable.
#[derive(Clone)]
pub enum Call {
    CreateDirectory { path: String },
    Create { path: String },
    Remove { path: String },
    SyncDirectory { path: String },
    Write { file: FileNumber, bytes: Arc<[u8]>, offset: u64 },
    SetLength { file: FileNumber, length: u64 },
    Punch { file: FileNumber, offset: u64, length: u64 },
    Sync { file: FileNumber },
}

/// The disk of a machine. A clone shares all bytes.
#[derive(Clone, Default)]
pub struct Disk {
    /// Number of calls that were applied: a change is named by its call's number.
    calls: u64,
    files: BTreeMap<FileNumber, File>,
    next_file: u64,
    names: BTreeMap<String, FileNumber>,
    synced_names: BTreeMap<String, FileNumber>,
    unsynced_names: Vec<NameChange>,
    /// Directories, durable at once: a brick makes them before `brick.toml`.
    directories: BTreeSet<String>,
}

#[derive(Clone, Default)]
struct File {
    now: Content,
    synced: Content,
    unsynced: Vec<Change>,
}

/// The changes of one call in a file: the sectors as the page cache had them after it.
#[derive(Clone)]
struct Change {
    call: u64,
    length: u64,
    first_sector: u64,
    sectors: u64,
    /// `None`: zeros.
    bytes: Option<Arc<[u8]>>,
}

#[derive(Clone)]
struct NameChange {
    call: u64,
    path: String,
    /// `None`: removed.
    file: Option<FileNumber>,
}

impl Disk {
    /// Applies a call. One on a file or directory that does not exist does nothing.
    pub fn apply(&mut self, call: &Call) {
        let number = self.calls;
        self.calls += 1;
        match call {
            Call::CreateDirectory { path } => self.create_directory(path),
            Call::Create { path } => {
                let file = FileNumber(self.next_file);
                self.next_file += 1;
                self.files.insert(file, File::default());
                self.rename(number, path, Some(file));
            }
            Call::Remove { path } => self.rename(number, path, None),
            Call::SyncDirectory { path } => self.sync_directory(path),
            Call::Write { file, bytes, offset } => {
                let end = *offset + bytes.len() as u64;
                self.change(number, *file, *offset, end, |content| content.write(bytes, *offset));
            }
            Call::SetLength { file, length } => {
                // Bytes behind a truncation read as zeros if the file grows again.
                let end = self.files.get(file).map_or(0, |file| file.now.length());
                self.change(number, *file, *length, end.max(*length), |content| content.set_length(*length));
            }
            Call::Punch { file, offset, length } => {
                let length_now = self.files.get(file).map_or(0, |file| file.now.length());
                let end = offset.saturating_add(*length).min(length_now).max(*offset);
                self.change(number, *file, *offset, end, |content| content.zero(*offset, end));
            }
            Call::Sync { file } => {
                if let Some(file) = self.files.get_mut(file) {
                    file.synced = file.now.clone();
                    file.unsynced.clear();
                }
            }
        }
    }

    fn create_directory(&mut self, path: &str) {
        let ends = path.match_indices('/').map(|(end, _)| end).chain([path.len()]);
        self.directories.extend(ends.map(|end| path[..end].to_string()));
    }

    fn rename(&mut self, call: u64, path: &str, file: Option<FileNumber>) {
        set_name(&mut self.names, path, file);
        self.unsynced_names.push(NameChange { call, path: path.into(), file });
    }

    fn sync_directory(&mut self, path: &str) {
        let synced = &mut self.synced_names;
        self.unsynced_names.retain(|change| {
            let here = parent(&change.path) == path;
            if here {
                set_name(synced, &change.path, change.file);
            }
            !here
        });
    }

    fn change(&mut self, call: u64, file: FileNumber, from: u64, to: u64, change: impl FnOnce(&mut Content)) {
        let Some(file) = self.files.get_mut(&file) else { return };
        change(&mut file.now);
        let first_sector = from / SECTOR_BYTES as u64;
        let end = to.div_ceil(SECTOR_BYTES as u64).max(first_sector);
        let (sectors, bytes) = match to > from {
            true => (end - first_sector, file.now.sectors(first_sector, end)),
            false => (0, None),
        };
        file.unsynced.push(Change { call, length: file.now.length(), first_sector, sectors, bytes });
    }

    /// The file of a name.
    pub fn named(&self, path: &str) -> Option<FileNumber> {
        self.names.get(path).copied()
    }

    /// Whether the path's directory exists.
    pub fn has_directory(&self, path: &str) -> bool {
        path.is_empty() || self.directories.contains(path)
    }

    /// The bytes of a file as a reader sees them.
    pub fn content(&self, file: FileNumber) -> Option<&Content> {
        self.files.get(&file).map(|file| &file.now)
    }

    /// Changes bytes of a file on the medium and in the page cache, as damage does.
    pub fn rot(&mut self, path: &str, offset: u64, mask: u8) {
        let Some(file) = self.names.get(path).and_then(|file| self.files.get_mut(file)) else { return };
        for content in [&mut file.now, &mut file.synced] {
            let mut byte = [0];
            if content.read(&mut byte, offset) == 1 {
                content.write(&[byte[0] ^ mask], offset);
            }
        }
    }

    /// All names, sorted.
    pub fn paths(&self) -> Vec<String> {
        self.names.keys().cloned().collect()
    }

    /// A file's names, for people.
    pub fn name_of(&self, file: FileNumber) -> Option<&str> {
        self.names.iter().find(|(_, named)| **named == file).map(|(path, _)| path.as_str())
    }

    /// The calls whose changes a power cut may take.
    pub fn unsynced(&self) -> Vec<u64> {
        let reachable = self.reachable();
        let changes = reachable.iter().filter_map(|file| self.files.get(file)).flat_map(|file| &file.unsynced);
        let names = self.unsynced_names.iter().map(|change| change.call);
        let mut calls: Vec<u64> = changes.map(|change| change.call).chain(names).collect();
        calls.sort_unstable();
        calls
    }

    /// Files that may have a name after a power cut.
    fn reachable(&self) -> BTreeSet<FileNumber> {
        let unsynced = self.unsynced_names.iter().filter_map(|change| change.file);
        self.synced_names.values().copied().chain(unsynced).collect()
    }

    /// The disk after a power cut now. All of it is on the medium.
    pub fn after_power_cut(&self, survivors: Survivors) -> Self {
        let mut choice = Choice::new(survivors);
        let mut names = self.synced_names.clone();
        if !self.unsynced_names.is_empty() {
            let mut kept = choice.of(&mut self.unsynced_names.iter().map(|change| change.call));
            for change in &self.unsynced_names {
                let keep = match kept.keeps(change.call) {
                    Kept::All => true,
                    Kept::None => false,
                    Kept::Torn => kept.keeps_part(),
                };
                if keep {
                    set_name(&mut names, &change.path, change.file);
                }
            }
        }
        let mut files = BTreeMap::new();
        for number in names.values() {
            if let Some(file) = self.files.get(number) {
                let content = file.after_power_cut(&mut choice);
                files.insert(*number, File { now: content.clone(), synced: content, unsynced: Vec::new() });
            }
        }
        Self {
            calls: 0,
            files,
            next_file: self.next_file,
            synced_names: names.clone(),
            names,
            unsynced_names: Vec::new(),
            directories: self.directories.clone(),
        }
    }
}

impl File {
    fn after_power_cut(&self, choice: &mut Choice) -> Content {
        let mut content = self.synced.clone();
        if self.unsynced.is_empty() {
            return content;
        }
        let mut kept = choice.of(&mut self.unsynced.iter().map(|change| change.call));
        let mut length = self.synced.length();
        // Space for all sectors first: which of them are inside the file is known once its length is.
        content.set_length(self.unsynced.iter().map(Change::end).fold(length, u64::max));
        for change in &self.unsynced {
            match kept.keeps(change.call) {
                Kept::None => {}
                Kept::All => {
                    length = change.length;
                    change.put(&mut content, |_| true);
                }
                Kept::Torn => {
                    if kept.keeps_part() {
                        length = change.length;
                    }
                    change.put(&mut content, |_| kept.keeps_part());
                }
            }
        }
        content.set_length(length);
        content
    }
}

impl Change {
    fn end(&self) -> u64 {
        self.length.max((self.first_sector + self.sectors) * SECTOR_BYTES as u64)
    }

    fn put(&self, content: &mut Content, mut keeps: impl FnMut(u64) -> bool) {
        for sector in 0..self.sectors {
            if !keeps(sector) {
                continue;
            }
            let at = (self.first_sector + sector) * SECTOR_BYTES as u64;
            match &self.bytes {
                Some(bytes) => content.write(&bytes[sector as usize * SECTOR_BYTES..][..SECTOR_BYTES], at),
                None => content.zero(at, at + SECTOR_BYTES as u64),
            }
        }
    }
}

fn set_name(names: &mut BTreeMap<String, FileNumber>, path: &str, file: Option<FileNumber>) {
    match file {
        Some(file) => names.insert(path.into(), file),
        None => names.remove(path),
    };
}

/// The directory that a path is in; the root is the empty path.
pub fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}
