//! Space and holes in files, and copies between files: FALLOCATE, LSEEK, COPY_FILE_RANGE.

use super::locks::{is_durable_handle, is_quiet_handle};
use super::{Caller, Filesystem};
use crate::abi::*;
use crate::encode::{Outcome, bytes_of};
use bytes::Bytes;
use hekate_client::{Context, FilePosition};
use hekate_proto::Allocate;
use rustix::fs::FallocateFlags;
use rustix::io::Errno;

/// `whence` of lseek(2).
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;

impl Filesystem {
    /// FALLOCATE and COPY_FILE_RANGE do not say whether set-id bits must be cleared.
    pub(super) fn fallocate(&self, caller: &Caller, asked: &FallocateIn) -> Outcome {
        let mode = allocate_mode(asked.mode)?;
        let context = Context { durable: is_durable_handle(asked.handle), ..caller.context };
        let drop_set_id = !self.may_keep_set_id(caller);
        self.volume.allocate(&context, caller.inode, asked.offset, asked.length, mode, drop_set_id)?;
        if drop_set_id {
            self.drop_group_bit(caller, caller.inode)?;
        }
        Ok(Bytes::new())
    }

    /// The kernel executes everything but SEEK_DATA and SEEK_HOLE itself.
    pub(super) fn lseek(&self, caller: &Caller, asked: &LseekIn) -> Outcome {
        let hole = match asked.whence {
            SEEK_DATA => false,
            SEEK_HOLE => true,
            _ => return Err(Errno::INVAL.into()),
        };
        let offset = self.volume.seek(&caller.context, caller.inode, asked.offset, hole)?;
        Ok(bytes_of(&LseekOut { offset }))
    }

    pub(super) fn copy_file_range(&self, caller: &Caller, asked: &CopyIn) -> Outcome {
        if asked.flags != 0 {
            return Err(Errno::INVAL.into());
        }
        let to = FilePosition { inode: self.inode(asked.to_node)?, offset: asked.to_offset };
        // The reply has 32 bits.
        let length = asked.length.min(u64::from(u32::MAX));
        let context = Context { durable: is_durable_handle(asked.to_handle), ..caller.context };
        let from = FilePosition { inode: caller.inode, offset: asked.from_offset };
        let drop_set_id = !self.may_keep_set_id(caller);
        let touch = !is_quiet_handle(asked.from_handle);
        let copied = self.volume.copy(&context, from, to, length, drop_set_id, touch)?;
        if drop_set_id {
            self.drop_group_bit(caller, to.inode)?;
        }
        Ok(bytes_of(&WriteOut { size: copied as u32, padding: 0 }))
    }
}

fn allocate_mode(flags: u32) -> Result<Allocate, Errno> {
    let keep_size = flags & FallocateFlags::KEEP_SIZE.bits() != 0;
    match FallocateFlags::from_bits_retain(flags & !FallocateFlags::KEEP_SIZE.bits()) {
        flags if flags.is_empty() => Ok(Allocate::Reserve { keep_size }),
        FallocateFlags::PUNCH_HOLE if keep_size => Ok(Allocate::Punch),
        FallocateFlags::ZERO_RANGE => Ok(Allocate::Zero { keep_size }),
        _ => Err(Errno::OPNOTSUPP),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_those_of_fallocate_2() {
        assert_eq!(allocate_mode(0), Ok(Allocate::Reserve { keep_size: false }));
        assert_eq!(allocate_mode(1), Ok(Allocate::Reserve { keep_size: true }));
        assert_eq!(allocate_mode(3), Ok(Allocate::Punch));
        assert_eq!(allocate_mode(0x10), Ok(Allocate::Zero { keep_size: false }));
        assert_eq!(allocate_mode(0x11), Ok(Allocate::Zero { keep_size: true }));
        // A punch that moves the end, collapse, insert.
        assert!([2, 8, 0x20, 0x13].into_iter().all(|flags| allocate_mode(flags) == Err(Errno::OPNOTSUPP)));
    }
}
