//! Pages that the kernel keeps of files whose bytes are pledged ([`crate::kept_pages`]).

use super::Filesystem;
use super::data::{is_durable, is_quiet};
use super::locks::HandleKind;
use crate::abi::*;
use crate::encode::{Outcome, attr_reply};
use crate::kept_pages::Reader;
use hekate_proto::{Attr, NodeKind, Time};
use rustix::fs::OFlags;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Different times of modification, in ns after the right one, that are given to the kernel to have it drop pages.
const FORGED_TIMES: u32 = 1_000_000;

impl Filesystem {
    /// True if a file that is opened with these flags is read through pages. Only files that are opened to be read: a
    /// write through pages is several requests. The first read of a small file goes past them, as it moves the time of
    /// access, and takes its bytes along.
    pub(super) fn may_keep_pages(&self, attr: &Attr, flags: u32) -> bool {
        let only_reads = flags & OFlags::ACCMODE.bits() == OFlags::RDONLY.bits();
        let is_plain = only_reads && flags & (OFlags::DIRECT | OFlags::APPEND).bits() == 0 && !is_durable(flags);
        let is_first = attr.layout.is_inline() && !is_quiet(flags) && self.volume.moves_access(attr);
        is_plain
            && !is_first
            && attr.kind == NodeKind::File
            && self.cache.is_zero()
            && self.can_recall.load(Ordering::Relaxed)
            && self.volume.pledges().keeps_contents()
            && !self.volume.has_layers()
            && !self.pages.has_changed(attr.id.number())
            // Pages that a mapping may be written through need the mapping right.
            && !self.volume.pledges().has_writers(attr.id)
    }

    /// The reply to the open of such a file.
    pub(super) fn open_kept(&self, attr: &Attr, flags: u32) -> OpenOut {
        let keep = self.pages.opened(attr.id.number(), self.content_number(attr));
        if self.volume.moves_access(attr) {
            // From now on the kernel has to ask before each read.
            self.forget_passed(attr.id.number());
        }
        let handle = self.locks.new_handle(HandleKind { quiet: is_quiet(flags), kept: true, ..HandleKind::default() });
        self.losses.opened(attr.id, handle);
        OpenOut { handle, flags: if keep { FOPEN_KEEP_CACHE } else { 0 }, padding: 0 }
    }

    /// Has the kernel forget attributes that it may use.
    pub(super) fn forget_passed(&self, node: u64) {
        if self.nodes.passed_at(node).is_some()
            && let Some(forget_node) = self.forget_node.get()
        {
            forget_node(node);
        }
    }

    /// True if the kernel may answer by its pages as long as it may use these attributes.
    pub(super) fn may_use_pages(&self, attr: &Attr) -> bool {
        let node = attr.id.number();
        let is_whole = self.pages.is_whole(node, || self.content_number(attr));
        // A read that moves the time of access must not be answered by the kernel. And what this mount changes at the
        // moment would be forgotten at once.
        let is_asked = || self.pages.is_open(node) && (self.volume.moves_access(attr) || self.pages.has_changed(node));
        is_whole && !is_asked()
    }

    /// The answer to the kernel's question before it reads from pages of the file: it has it drop those that are old.
    pub(super) fn attributes_before_pages(&self, attr: &Attr, reader: Reader) -> Outcome {
        if !self.pages.must_drop(attr.id.number(), || self.content_number(attr)) {
            self.pages.note_asked(attr.id.number(), reader);
            return self.attributes(attr);
        }
        self.nodes.note_attr(attr);
        // Each time another one.
        let times = 1 + self.forged_times.fetch_add(1, Ordering::Relaxed) % FORGED_TIMES;
        let mtime = Time(attr.mtime.0.saturating_add(times.into()));
        Ok(attr_reply(&Attr { mtime, ..attr.clone() }, Duration::ZERO))
    }

    /// What stands for the bytes of a file.
    fn content_number(&self, attr: &Attr) -> Option<u64> {
        (!self.volume.has_layers()).then(|| self.volume.pledges().content_number(attr)).flatten()
    }
}
