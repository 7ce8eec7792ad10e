//! Copies a volume's tree from its root down, and then the inodes that no name on the brick leads to, into
//! `lost+found`.

use super::catalog::{Catalog, Inodes};
use super::known::Holds;
use super::report::{Finding, Report};
use super::target::{self, Made, NotMade};
use super::{ProgressLine, Source};
use crate::failure::Failure;
use hekate_proto::*;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::result::Result;

/// Most levels of directories, since each is an open descriptor. A deeper directory is copied into `lost+found`.
const DEPTH_MAX: usize = 200;

/// The export of one volume.
pub struct Walk<'a> {
    pub source: &'a Source<'a>,
    pub catalog: &'a Catalog,
    pub volume: VolumeId,
    pub ring: RingId,
    pub progress: &'a mut ProgressLine,
    pub report: &'a mut Report,
    top: BorrowedFd<'a>,
    inodes: &'a Inodes,
    done: HashSet<InodeId>,
    /// Paths of files with several names, and the differences in their bytes.
    links: HashMap<InodeId, (Vec<u8>, Option<Finding>)>,
}

/// Copies everything that the brick has of a volume into a directory.
///
/// # Errors
///
/// Nothing more can be written to the target. Anything else is reported as a finding.
pub fn volume(
    source: &Source,
    catalog: &Catalog,
    volume: VolumeId,
    top: &OwnedFd,
    progress: &mut ProgressLine,
    report: &mut Report,
) -> Result<(), Failure> {
    let Some(inodes) = catalog.inodes_of(volume) else { return Ok(()) };
    let (done, links, top) = (HashSet::new(), HashMap::new(), top.as_fd());
    let ring = inodes.ring;
    let mut walk = Walk { source, catalog, volume, ring, progress, report, top, inodes, done, links };
    if inodes.directories.contains(&ROOT) {
        walk.done.insert(ROOT);
        walk.directory(ROOT, top, b"", 0)?;
    } else {
        walk.missing(ROOT, b"");
    }
    walk.nameless()
}

impl Walk<'_> {
    pub fn find(&mut self, finding: Finding, path: &[u8], what: &str) {
        self.report.find(finding, Some(self.volume), path, what);
    }

    /// The copy, or None if it could not be made: then the difference is reported and the export continues.
    fn made<T>(&mut self, made: Made<T>, path: &[u8]) -> Result<Option<T>, Failure> {
        match made {
            Ok(value) => Ok(Some(value)),
            Err(NotMade::Ends(failure)) => Err(failure),
            Err(NotMade::Said(what)) => {
                self.find(Finding::NotMade, path, &what);
                Ok(None)
            }
        }
    }

    fn record(&self, id: InodeId) -> hekate_proto::Result<Option<InodeRecord>> {
        let value = self.source.contents.get(&Key::inode(self.ring, self.volume, id, Kind::Inode))?;
        Ok(value.map(InodeRecord::from_bytes).transpose()?)
    }

    /// Copies the contents of a directory, and then sets the directory's own attributes.
    fn directory(&mut self, id: InodeId, made: BorrowedFd, path: &[u8], depth: usize) -> Result<(), Failure> {
        self.progress.tick(&self.report.progress());
        let names = self.names(id, path);
        for (name, leads_to) in names {
            let mut below = path.to_vec();
            if !below.is_empty() {
                below.push(b'/');
            }
            below.extend_from_slice(name.as_bytes());
            self.name(made, name.as_bytes(), leads_to, &below, depth + 1)?;
        }
        self.report.copied_directory();
        match self.record(id) {
            Ok(Some(mut record)) => {
                // The stub has the time of the last change of names.
                record.mtime = record.mtime.max(self.stub_time(id));
                self.attributes(id, made, path)?;
                let finished = target::finish(made, &record);
                self.made(finished, path)?;
            }
            Ok(None) => {
                self.find(Finding::Damaged, path, "the directory's inode is not there: owner and mode are not its own")
            }
            Err(error) => self.find(Finding::Damaged, path, &format!("the directory's owner, mode and times: {error}")),
        }
        Ok(())
    }

    /// The positions at which this brick may have names of a directory.
    fn places(&self, id: InodeId) -> Vec<KeyPrefix> {
        let shares = self.inodes.shares.get(&id).into_iter().flatten().copied();
        let place = |position| KeyPrefix { ring: self.ring, position, volume: self.volume };
        std::iter::once(id.position()).chain(shares).map(place).collect()
    }

    fn stub_time(&self, id: InodeId) -> Time {
        let stub = |place| self.source.contents.get(&Key::stub(place, id)).ok().flatten();
        let time = |place| stub(place).and_then(|stub| StubRecord::from_bytes(stub).ok()).map(|stub| stub.mtime);
        self.places(id).into_iter().filter_map(time).max().unwrap_or(Time(i64::MIN))
    }

    /// A directory's names, without those that are invalid: a damaged brick may have `..`.
    fn names(&mut self, id: InodeId, path: &[u8]) -> Vec<(Name, NameRecord)> {
        let (mut names, mut problems) = (Vec::new(), Vec::new());
        for all in self.places(id).into_iter().map(|place| Key::name(place, id, b"")) {
            let gone_through = self.source.contents.scan(&all, &all.prefix_end(), &mut |key, value| {
                let record = value.and_then(|value| Ok(NameRecord::from_bytes(value)?));
                match (Name::new(key.rest()), record) {
                    (Ok(name), Ok(record)) => names.push((name, record)),
                    (Ok(name), Err(error)) => problems.push((name.as_bytes().to_vec(), error.to_string())),
                    (Err(error), _) => problems.push((Vec::new(), format!("{:?}: {error}", key.rest()))),
                }
                true
            });
            if let Err(error) = gone_through {
                problems.push((Vec::new(), format!("names of the directory: {error}")));
            }
        }
        for (name, what) in problems {
            let path = [path, b"/", &name].concat();
            self.find(Finding::Damaged, &path, &what);
        }
        names
    }

    fn name(
        &mut self,
        within: BorrowedFd,
        name: &[u8],
        leads_to: NameRecord,
        path: &[u8],
        depth: usize,
    ) -> Result<(), Failure> {
        let id = leads_to.inode;
        let record = match self.record(id) {
            Ok(Some(record)) => record,
            // A directory whose inode is lost still has names.
            Ok(None) | Err(_) if self.inodes.directories.contains(&id) => {
                return self.subdirectory(within, name, id, path, depth);
            }
            Ok(None) => {
                self.missing(id, path);
                return Ok(());
            }
            Err(error) => {
                self.done.insert(id);
                self.find(Finding::Damaged, path, &error.to_string());
                return Ok(());
            }
        };
        if record.kind == NodeKind::Directory {
            return self.subdirectory(within, name, id, path, depth);
        }
        self.node(within, name, id, &record, path)
    }

    fn subdirectory(
        &mut self,
        within: BorrowedFd,
        name: &[u8],
        id: InodeId,
        path: &[u8],
        depth: usize,
    ) -> Result<(), Failure> {
        if depth > DEPTH_MAX {
            self.find(Finding::LostAndFound, path, &format!("over {DEPTH_MAX} directories deep: in lost+found/{id:?}"));
            return Ok(());
        }
        if !self.done.insert(id) {
            self.find(Finding::Damaged, path, "a second name of a directory");
            return Ok(());
        }
        let made = target::make_directory(within, name);
        match self.made(made, path)? {
            Some(made) => self.directory(id, made.as_fd(), path, depth),
            None => Ok(()),
        }
    }

    /// Reports a name whose inode is not on this brick.
    fn missing(&mut self, id: InodeId, path: &[u8]) {
        let holds = self.source.known.holds(self.source.contents, self.catalog, self.ring, id.position());
        match holds {
            Holds::Yes => self.find(Finding::Damaged, path, &format!("its inode {id:?} is not there")),
            Holds::No | Holds::Unknown => {
                self.find(Finding::Elsewhere, path, &format!("its inode {id:?} is not on this brick"));
            }
        }
    }

    /// Copies an inode that is no directory.
    fn node(
        &mut self,
        within: BorrowedFd,
        name: &[u8],
        id: InodeId,
        record: &InodeRecord,
        path: &[u8],
    ) -> Result<(), Failure> {
        if let Some((first, wrong)) = self.links.get(&id).cloned() {
            let made = target::make_link(self.top, &first, within, name);
            if let (Some(_), Some(wrong)) = (self.made(made, path)?, wrong) {
                self.find(wrong, path, &format!("the same file as {:?}", String::from_utf8_lossy(&first)));
            }
            return Ok(());
        }
        self.done.insert(id);
        let made = match record.kind {
            NodeKind::File => return self.file(within, name, id, record, path),
            NodeKind::Symlink => {
                let content = self.source.contents.get(&Key::inode(self.ring, self.volume, id, Kind::Content));
                match content {
                    Ok(Some(to)) => target::make_symlink(within, name, &to, record),
                    Ok(None) => {
                        self.find(Finding::Damaged, path, "a symlink without a target");
                        return Ok(());
                    }
                    Err(error) => {
                        self.find(Finding::Damaged, path, &format!("the symlink's target: {error}"));
                        return Ok(());
                    }
                }
            }
            _ => target::make_node(within, name, record),
        };
        if self.made(made, path)?.is_some() {
            self.report.copied_other();
            self.remember(id, record, path, None);
        }
        Ok(())
    }

    fn file(
        &mut self,
        within: BorrowedFd,
        name: &[u8],
        id: InodeId,
        record: &InodeRecord,
        path: &[u8],
    ) -> Result<(), Failure> {
        let made = target::make_file(within, name);
        let Some(made) = self.made(made, path)? else { return Ok(()) };
        let file = File::from(made);
        let before = self.report.counts();
        let size = self.fill(&file, id, record, path)?;
        let wrong = self.report.worst_since(&before);
        self.attributes(id, file.as_fd(), path)?;
        let finished = target::finish(file.as_fd(), record);
        self.made(finished, path)?;
        self.report.copied_file(size);
        self.remember(id, record, path, wrong);
        Ok(())
    }

    fn remember(&mut self, id: InodeId, record: &InodeRecord, path: &[u8], wrong: Option<Finding>) {
        if record.nlink > 1 {
            self.links.insert(id, (path.to_vec(), wrong));
        }
    }

    /// Copies attributes of users, and those that doors for objects set, as attributes of users. Others (`security.`, `trusted.`) have a meaning on the machine where they were set.
    fn attributes(&mut self, id: InodeId, file: BorrowedFd, path: &[u8]) -> Result<(), Failure> {
        let all = Key::xattr(self.ring, self.volume, id, b"");
        let mut found = Vec::new();
        let gone_through = self.source.contents.scan(&all, &all.prefix_end(), &mut |key, value| {
            found.push((key.rest(), value));
            true
        });
        if let Err(error) = gone_through {
            self.find(Finding::Damaged, path, &format!("extended attributes: {error}"));
        }
        for (name, value) in found {
            let name = if name.starts_with(b"hekate.") { [b"user.", &name[..]].concat().into() } else { name };
            let shown = String::from_utf8_lossy(&name).into_owned();
            match value {
                Err(error) => self.find(Finding::Damaged, path, &format!("the attribute {shown}: {error}")),
                Ok(_) if !name.starts_with(b"user.") => {
                    self.find(Finding::NotMade, path, &format!("the attribute {shown} is no user's"));
                }
                Ok(value) => match target::set_attribute(file, &name, &value) {
                    Err(NotMade::Said(what)) => self.find(Finding::NotMade, path, &format!("{shown}: {what}")),
                    Err(NotMade::Ends(failure)) => return Err(failure),
                    Ok(()) => {}
                },
            }
        }
        Ok(())
    }

    /// Copies the inodes that no name led to: directories first, each with the directories in it.
    fn nameless(&mut self) -> Result<(), Failure> {
        let inodes = self.inodes;
        let named = |id: &InodeId| inodes.named.contains(id);
        let tops = inodes.directories.iter().filter(|id| !named(id));
        // A second pass for directories that lie too deep, or in a loop of directories.
        let rest = inodes.directories.iter().filter(|id| named(id));
        let is_empty = self.names(SYSTEM, b"").is_empty();
        let is_lost = |id: &InodeId| *id != ROOT && (*id != SYSTEM || !is_empty);
        let all: Vec<InodeId> = tops.chain(rest).chain(&inodes.files).copied().filter(is_lost).collect();
        let mut found = None;
        for id in all {
            if self.done.contains(&id) {
                continue;
            }
            let (within, directory) = match found.take() {
                Some(made) => made,
                None => self.lost_and_found()?,
            };
            self.lost(id, within.as_fd(), &directory)?;
            found = Some((within, directory));
        }
        Ok(())
    }

    /// A free name for `lost+found`: the volume may have one of its own.
    fn lost_and_found(&mut self) -> Result<(OwnedFd, String), Failure> {
        for number in 0.. {
            let name = if number == 0 { "lost+found".to_string() } else { format!("lost+found.{number}") };
            match target::make_directory(self.top, name.as_bytes()) {
                Ok(made) => return Ok((made, name)),
                Err(NotMade::Ends(failure)) => return Err(failure),
                Err(NotMade::Said(_)) if number < 100 => {}
                Err(NotMade::Said(what)) => return Err(Failure::new(73, format!("make {name}: {what}"))),
            }
        }
        Err(Error::bug("all names lost+found.N are in use").into())
    }

    fn lost(&mut self, id: InodeId, within: BorrowedFd, directory: &str) -> Result<(), Failure> {
        let name = format!("{id:?}");
        let path = format!("{directory}/{name}").into_bytes();
        self.find(Finding::LostAndFound, &path, "no name on this brick leads to it");
        if self.inodes.directories.contains(&id) {
            return self.subdirectory(within, name.as_bytes(), id, &path, 1);
        }
        match self.record(id) {
            Ok(Some(record)) => self.node(within, name.as_bytes(), id, &record, &path),
            Ok(None) => Ok(()),
            Err(error) => {
                self.find(Finding::Damaged, &path, &error.to_string());
                Ok(())
            }
        }
    }
}
